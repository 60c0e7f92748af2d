"""Requests made from the schema alone: every API in every version, whole and damaged."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import Any

from tests.differential.session import Session
from tests.differential.wire import Api, Field, Request

# SaslHandshake and SaslAuthenticate end a connection without logins: room `security` asks them.
_LEFT_OUT = {"SaslHandshake", "SaslAuthenticate"}
# How long a broker may wait; extreme values would hold the connection.
_WAITS = {"MaxWaitMs": 1, "TimeoutMs": 5_000}
_INT_MAX = {"int8": 2**7 - 1, "int16": 2**15 - 1, "uint16": 2**16 - 1, "int32": 2**31 - 1, "int64": 2**63 - 1}
_STRING = {"-1": "", "-2": "a b/\u00e9", "maximum": "x" * 300}
_NUMBER = {"-1": -1, "-2": -2}
# What the rooms before have left on a broker is theirs to compare.
_HIDDEN = {
    "ApiVersions": ("ApiKeys", "SupportedFeatures", "FinalizedFeatures", "FinalizedFeaturesEpoch"),
    "DescribeAcls": ("Resources",),
    "DescribeClientQuotas": ("Entries",),
    "DescribeLogDirs": ("Results",),
    "ElectLeaders": ("ReplicaElectionResults",),
    "ListConfigResources": ("ConfigResources",),
    "ListGroups": ("Groups",),
    "ListTransactions": ("TransactionStates",),
    "Metadata": ("Topics",),
    "WriteTxnMarkers": ("ProducerId",),
}
KINDS = ("no element", "one element", "two elements", "null", "-1", "-2", "maximum")
_DAMAGE = ("huge list", "negative list", "null string", "invalid UTF-8")
_CUTS = {
    "cut by one byte": lambda data: data[:-1],
    "cut by half": lambda data: data[: len(data) // 2 + 6],
    "one byte too many": lambda data: data + b"\0",
    "40 bytes too many": lambda data: data + b"z" * 40,
}
_HEADERS = {"no client id": Request(client_id=None), "long client id": Request(client_id="c" * 3000)}
_FLEXIBLE_HEADERS = {
    "unknown tag": Request(body_tags=b"\1\x63\3abc"),
    "tag longer than the request": Request(body_tags=b"\1\x63\x7fabc"),
    "unknown tag in the header": Request(header_tags=b"\1\5\2hi"),
}


def body(fields: Sequence[Field], version: int, kind: str) -> dict[str, Any]:
    """Return fields with values of a kind."""
    values = {
        field.name: _value(field, version, kind)
        for field in fields
        if version in field.versions and version not in field.tagged
    }
    values |= {name: wait for name, wait in _WAITS.items() if name in values}
    if "Acks" in values:
        values["Acks"] = {"-2": -2, "maximum": 2, "-1": -1}.get(kind, 1)
    return values


def _value(field: Field, version: int, kind: str) -> Any:
    if kind == "null" and version in field.nullable:
        return None
    if field.is_list:
        count = {"no element": 0, "two elements": 2}.get(kind, 1)
        return [_element(field, version, kind)] * count
    return _element(field, version, kind)


def _element(field: Field, version: int, kind: str) -> Any:
    if field.type in _INT_MAX:
        number = _INT_MAX[field.type] if kind == "maximum" else _NUMBER.get(kind, 1)
        return max(number, 0) if field.type == "uint16" else number
    simple = {
        "bool": False,
        "float64": 1.0,
        "uuid": uuid.UUID(int=0 if kind in ("-1", "no element") else 0xFF),
        "string": _STRING.get(kind, "schema"),
        "bytes": b"" if kind in ("-1", "no element") else b"\0\1\2",
    }
    simple["records"] = simple["bytes"]
    return simple[field.type] if field.type in simple else body(field.fields, version, kind)


def every_api(session: Session) -> None:
    for name, versions in session.versions.items():
        if name not in _LEFT_OUT:
            for version in versions:
                _whole_and_damaged(session, session.apis[name], version)
            _other_versions(session, session.apis[name], versions)


def _whole_and_damaged(session: Session, api: Api, version: int) -> None:
    bodies = {kind: body(api.request, version, kind) for kind in KINDS}
    hide = _HIDDEN.get(api.name, ())
    for kind in KINDS:
        session.ask(api.name, version, kind, bodies[kind], hide=hide)
    for label, cut in _CUTS.items():
        session.ask(api.name, version, label, bodies["one element"], spoil=cut, hide=hide)
    for damage in _DAMAGE:
        session.ask(
            api.name, version, damage, bodies["one element"], request=Request(damage=damage), hide=hide
        )
    flexible = _FLEXIBLE_HEADERS if version in api.flexible else {}
    for label, request in {**_HEADERS, **flexible}.items():
        session.ask(api.name, version, label, bodies["no element"], request=request, hide=hide)


def _other_versions(session: Session, api: Api, versions: range) -> None:
    for version in (versions.start - 1, versions.stop, versions.stop + 20, -1, 2**15 - 1):
        data = struct.pack(">hhi", api.key, version, 7) + b"\0\4diff" + bytes(12)
        answer = session.send(data)
        shown = answer if isinstance(answer, str) else {"Bytes": answer[4:12].hex()}
        session.note("version out of range", api.name, version, shown)


ROOM = [every_api]
