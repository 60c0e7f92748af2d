"""What a broker is asked before anything else: versions, features, the cluster; and frames that no client sends."""

from __future__ import annotations

import struct

from tests.differential import wire
from tests.differential.session import CLOSED, Session
from tests.differential.wire import Request

_SOFTWARE = (
    ("", ""),
    ("a b", "1"),
    ("-x", "1"),
    ("x", "v 1"),
    ("x" * 300, "1"),
    ("\u00e9", "1"),
    ("a.b-c", "1.2-3"),
)
_FEATURES = (
    *(("unknown", 1, 1), ("unknown", -1, 1), ("", 1, 1), ("kraft.version", 1, 1), ("metadata.version", 1, 1)),
    *(
        ("metadata.version", 100, 1),
        ("metadata.version", 7, 2),
        ("metadata.version", 7, 3),
        ("metadata.version", 0, 3),
    ),
    *(("transaction.version", level, kind) for level in (-1, 0, 1, 2, 3) for kind in (0, 1, 2, 9)),
    *(("group.version", 1, 1), ("group.version", 0, 2), ("group.version", 9, 1)),
    *(("share.version", 1, 1), ("share.version", 0, 2), ("share.version", 2, 1)),
    *(("streams.version", 1, 1), ("streams.version", 0, 2)),
    *(("eligible.leader.replicas.version", 1, 1), ("eligible.leader.replicas.version", 0, 2)),
)


def versions(session: Session) -> None:
    for version in session.versions["ApiVersions"]:
        request = {"ClientSoftwareName": "x", "ClientSoftwareVersion": "1"}
        session.ask("ApiVersions", version, "plain", request)
    for name, number in _SOFTWARE:
        request = {"ClientSoftwareName": name, "ClientSoftwareVersion": number}
        session.ask("ApiVersions", 3, f"software {name[:5]!r} {number!r}", request)
    for version in (5, 99, 32767):

        def as_version(data: bytes, version: int = version) -> bytes:
            return data[:2] + struct.pack(">h", version) + data[4:]

        session.ask("ApiVersions", 3, f"as version {version}", {}, spoil=as_version, answered_in=0)


def features(session: Session) -> None:
    for version in session.versions["UpdateFeatures"]:
        rows = {
            f"{name} {level} by {kind}": [{"Feature": name, "MaxVersionLevel": level, "UpgradeType": kind}]
            for name, level, kind in _FEATURES
            if version or name == "unknown"
        }
        good, unknown = rows.get("transaction.version 2 by 1"), rows["unknown 1 by 1"]
        mixed = {"twice": good * 2, "good and unknown": good + unknown} if good else {}
        request = {"TimeoutMs": 1000, "ValidateOnly": bool(version)}
        session.vary("UpdateFeatures", version, request, {"FeatureUpdates": {**rows, **mixed, "none": []}})


def cluster(session: Session) -> None:
    for version in session.versions["DescribeCluster"]:
        values = {
            "EndpointType": (1, 2, 3, 0),
            "IncludeFencedBrokers": (True,),
            "IncludeClusterAuthorizedOperations": (True, False),
        }
        session.vary("DescribeCluster", version, {}, values)


def frames(session: Session) -> None:
    def of_key(key: int, version: int) -> bytes:
        return struct.pack(">ihhi", 12, key, version, 1) + b"\xff\xff\0\0"

    for label, data in {
        **{f"size {size}": struct.pack(">i", size) + bytes(20) for size in (0, -1, 104_857_601)},
        "size 1": struct.pack(">i", 1) + b"\0",
        "size 4": struct.pack(">i", 4) + b"\0\3\0\0",
        "HTTP": b"GET / HTTP/1.1\r\n\r\n",
        "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(60),
        **{
            f"key {key}": of_key(key, version)
            for key, version in ((999, 0), (-1, 0), (4, 0), (56, 2), (52, 0), (58, 0))
        },
        "client id of length -2": struct.pack(">ihhih", 10, 3, 0, 1, -2),
        "client id longer than the request": struct.pack(">ihhih", 10, 3, 0, 1, 500),
    }.items():
        answer = session.send(data, on=label, sized=False)
        session.note(label, "any API", 0, answer if isinstance(answer, str) else {"Answer": "bytes"})
    requests = [
        wire.encode(session.apis["Metadata"], 4, {"Topics": []}, number, Request()) for number in range(3)
    ]
    first = session.send(
        b"".join(struct.pack(">i", len(data)) + data for data in requests), on="three", sized=False
    )
    answers = [first, session.receive("three"), session.receive("three")] if first != CLOSED else [first]
    order = [data if isinstance(data, str) else struct.unpack(">i", data[:4])[0] for data in answers]
    session.note("three requests at once", "Metadata", 4, {"Order": f"{order}"})


ROOM = [versions, features, cluster, frames]
