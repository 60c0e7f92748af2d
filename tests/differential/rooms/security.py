"""ACLs, quotas, SCRAM credentials, delegation tokens and logins."""

from __future__ import annotations

from typing import Any

from tests.differential.brokers import PASSWORD, USER
from tests.differential.session import Session

_ACL = {
    "ResourceType": 2,
    "ResourceName": "acl",
    "ResourcePatternType": 3,
    "Principal": "User:u",
    "Host": "*",
    "Operation": 3,
    "PermissionType": 3,
}
_FILTER = {
    "ResourceTypeFilter": 2,
    "ResourceNameFilter": "acl",
    "PatternTypeFilter": 3,
    "PrincipalFilter": "User:u",
    "HostFilter": None,
    "Operation": 1,
    "PermissionType": 1,
}


def acls(session: Session) -> None:
    values: dict[str, Any] = {
        "Creations.ResourceType": (0, 1, 3, 4, 5, 6, 7, 8, 99),
        "Creations.ResourcePatternType": (0, 1, 2, 4, 9),
        "Creations.Operation": (0, 1, 2, *range(4, 16), 99),
        "Creations.PermissionType": (0, 1, 2, 9),
        "Creations.ResourceName": ("", "*", "a/b", "x" * 300),
        "Creations.Principal": ("", "u", "User:", ":u", "Group:g", "User:*", "User:a:b"),
        "Creations.Host": ("", "h", "127.0.0.1", "10.0.0.0/8"),
        "Creations": {
            "none": [],
            "good and bad": [_ACL, {**_ACL, "Operation": 0}],
            "cluster": [{**_ACL, "ResourceType": 4, "ResourceName": "kafka-cluster", "Operation": 8}],
            "id": [{**_ACL, "ResourceType": 5, "Operation": 4}],
            "token": [{**_ACL, "ResourceType": 6, "Operation": 8}],
            "user": [{**_ACL, "ResourceType": 7, "ResourceName": "User:x", "Operation": 13}],
        },
    }
    for version in session.versions["CreateAcls"]:
        for label in ("good", "again"):
            session.ask("CreateAcls", version, label, {"Creations": [_ACL]})
        session.vary("CreateAcls", version, {"Creations": [_ACL]}, values)
    values = {
        "ResourceTypeFilter": (0, 1, 3, 99),
        "PatternTypeFilter": (0, 1, 2, 4, 9),
        "Operation": (0, 2, 3, 99),
        "PermissionType": (0, 2, 3, 9),
        "ResourceNameFilter": (None, "", "*", "acl"),
        "PrincipalFilter": ("", "u", "User:nobody", None),
        "HostFilter": ("*", "", "1.2.3.4"),
    }
    for version in session.versions["DescribeAcls"]:
        session.vary("DescribeAcls", version, _FILTER, values)
    deletions: dict[str, Any] = {f"Filters.{name}": options for name, options in values.items()} | {
        "Filters": ([],)
    }
    for version in session.versions["DeleteAcls"]:
        session.vary("DeleteAcls", version, {"Filters": [_FILTER]}, deletions)
        session.ask("CreateAcls", version, f"before the next version {version}", {"Creations": [_ACL]})


def _entity(*parts: tuple[str, str | None]) -> list[dict[str, Any]]:
    return [{"EntityType": kind, "EntityName": name} for kind, name in parts]


_USER = ("user", "q")
_ENTITIES: dict[str, tuple[tuple[str, str | None], ...]] = {
    **{
        f"{kind} {name!r}": ((kind, name),) for kind, name in (_USER, ("client-id", "c"), ("ip", "127.0.0.1"))
    },
    **{f"{kind} {name!r}": ((kind, name),) for kind, name in (("zz", "c"), ("user", ""), ("client-id", ""))},
    "default user": (("user", None),),
    "bad ip": (("ip", "no.such.host.invalid"),),
    "none": (),
    "user and client": (_USER, ("client-id", "c")),
    "ip and user": (("ip", "127.0.0.1"), _USER),
    "user twice": (("user", "a"), ("user", "b")),
}
_QUOTAS = {
    "consumer_byte_rate": (5.0,),
    "request_percentage": (50.0, -1.0),
    "controller_mutation_rate": (5.0, 0.0),
    "producer_byte_rate": (0.0, -1.0, 1.5, 1e300, float("nan")),
    "connection_creation_rate": (1.5,),
    **dict.fromkeys(("zz", "", "SCRAM-SHA-256"), (1.0,)),
}
_COMPONENTS: tuple[tuple[tuple[str, int, str | None], ...], ...] = (
    *((("user", match, name),) for match, name in ((0, "q"), (0, "nobody"), (9, "a"), (0, None), (0, ""))),
    *((("user", 1, "a"),), (("user", 2, "a"),), (("zz", 0, "a"),), (("", 0, "a"),)),
    *((("user", 0, "a"), ("user", 0, "b")), (("ip", 0, "1.1.1.1"), ("user", 0, "a"))),
)


def quotas(session: Session) -> None:
    rate = {"Key": "producer_byte_rate", "Value": 1000.0, "Remove": False}
    entities = {label: _entity(*parts) for label, parts in _ENTITIES.items()}
    operations: dict[str, Any] = {
        f"{key}={value}": [{"Key": key, "Value": value}]
        for key, values in _QUOTAS.items()
        for value in values
    }
    removals = {f"removes {key}": [{"Key": key, "Remove": True}] for key in ("consumer_byte_rate", "zz")}
    operations |= {**removals, "twice": [rate, rate], "none": []}
    for version in session.versions["AlterClientQuotas"]:
        request = {"Entries": [{"Entity": _entity(_USER), "Ops": [rate]}], "ValidateOnly": True}
        for key in ("producer_byte_rate", "connection_creation_rate"):
            keyed = {**request, "Entries": [{"Entity": [], "Ops": [{**rate, "Key": key}]}]}
            session.vary("AlterClientQuotas", version, keyed, {"Entries.Entity": entities}, key)
        session.vary("AlterClientQuotas", version, request, {"Entries.Ops": operations, "Entries": ([],)})
        session.ask("AlterClientQuotas", version, "set", {**request, "ValidateOnly": False})
    rows = {
        f"{parts}": [{"EntityType": kind, "MatchType": match, "Match": name} for kind, match, name in parts]
        for parts in _COMPONENTS
    }
    for version in session.versions["DescribeClientQuotas"]:
        for strict in (False, True):
            base, label = {"Strict": strict}, f"strict {strict}"
            session.vary("DescribeClientQuotas", version, base, {"Components": rows}, label)


def credentials(session: Session) -> None:
    good = {"Name": "scram", "Mechanism": 1, "Iterations": 8192, "Salt": b"salt", "SaltedPassword": b"p" * 32}
    longer = {**good, "Mechanism": 2, "Iterations": 4096, "SaltedPassword": b"p" * 64}
    gone = {"Name": "scram", "Mechanism": 1}
    values: dict[str, Any] = {
        "Upsertions.Iterations": (4095, 4096, 16384, 16385),
        "Upsertions.Mechanism": (0, 9),
        "Upsertions.Name": ("",),
        "Upsertions.Salt": (b"",),
        "Upsertions.SaltedPassword": (b"", b"p"),
        "Upsertions": {
            "twice": [good, good],
            "both": [good, longer],
            "good and bad": [good, {**good, "Name": "s2", "Iterations": 5}],
        },
        "Deletions": {
            "the same": [gone],
            "absent": [{**gone, "Name": "nobody"}],
            "mechanism 0": [{**gone, "Mechanism": 0}],
        },
    }
    session.vary("AlterUserScramCredentials", 0, {"Upsertions": [good]}, values)
    session.ask("AlterUserScramCredentials", 0, "512", {"Upsertions": [longer]})
    names = (["scram"], ["nobody"], [""], ["scram", "scram"], ["scram", "nobody"])
    users = {str(group): [{"Name": name} for name in group] for group in names}
    session.vary("DescribeUserScramCredentials", 0, {}, {"Users": users})
    rows = {"256": [gone], "both": [gone, {**gone, "Mechanism": 2}], "512": [{**gone, "Mechanism": 2}]}
    session.vary("AlterUserScramCredentials", 0, {}, {"Deletions": {**rows, "none": []}})


def tokens(session: Session) -> None:
    for api, request in (
        ("CreateDelegationToken", {"MaxLifetimeMs": -1}),
        ("RenewDelegationToken", {"Hmac": b"x", "RenewPeriodMs": 1}),
        ("ExpireDelegationToken", {"Hmac": b"x", "ExpiryTimePeriodMs": 1}),
        ("DescribeDelegationToken", {"Owners": None}),
    ):
        for version in session.versions[api]:
            session.ask(api, version, "tokens", request)


_PLAIN = {
    "good": f"\0{USER}\0{PASSWORD}".encode(),
    "wrong": f"\0{USER}\0x".encode(),
    "unknown user": b"\0nobody\0x",
    "one part": b"abc",
    "empty": b"",
    "for another": f"bob\0{USER}\0{PASSWORD}".encode(),
    "for the same": f"{USER}\0{USER}\0{PASSWORD}".encode(),
    "empty password": f"\0{USER}\0".encode(),
    "empty user": b"\0\0x",
    "four parts": f"a\0{USER}\0{PASSWORD}\0z".encode(),
    "invalid UTF-8": b"\0\xff\0x",
}
_SCRAM = {
    "first": b"n,,n=nobody,r=abcd",
    "without a header": b"n=nobody,r=abcd",
    "channel binding": b"p=tls,,n=nobody,r=abcd",
    "y": b"y,,n=nobody,r=abcd",
    "empty nonce": b"n,,n=nobody,r=",
    "garbage": b"zz",
    "empty": b"",
    "for another": b"n,a=bob,n=nobody,r=abcd",
    "token": b"n,,n=nobody,r=abcd,tokenauth=true",
}
_HELLO = {"ClientSoftwareName": "x", "ClientSoftwareVersion": "1"}
_SHAKE = ("SaslHandshake", 1, {"Mechanism": "PLAIN"})
_LOGIN = ("SaslAuthenticate", 2, {"AuthBytes": _PLAIN["good"]})
_ASK: Any = ("Metadata", 9, {"Topics": []})
_GREET = ("ApiVersions", 3, _HELLO)
CONVERSATIONS = {
    "nothing first": (_ASK,),
    "greets twice": (_GREET, _GREET),
    "logs in without a handshake": (_LOGIN,),
    "shakes twice": (_SHAKE, _SHAKE),
    "greets after the handshake": (_SHAKE, _GREET),
    "asks": (_SHAKE, _LOGIN, _ASK),
    "logs in again": (_SHAKE, _LOGIN, _SHAKE, _LOGIN, _ASK),
}


def logins(session: Session) -> None:
    for version in (0, 1):
        session.ask("SaslHandshake", version, "without logins", {"Mechanism": "PLAIN"}, on="plain")
    for version in range(3):
        session.ask("SaslAuthenticate", version, "without logins", {"AuthBytes": b"\0a\0b"}, on="plain")
    for version in (0, 1):
        for mechanism in (
            "PLAIN",
            "plain",
            "SCRAM-SHA-256",
            "SCRAM-SHA-512",
            "GSSAPI",
            "OAUTHBEARER",
            "",
            "zz",
        ):
            session.ask("SaslHandshake", version, mechanism, {"Mechanism": mechanism}, login=True)
            session.close_all()
    for mechanism, parts in (("PLAIN", _PLAIN), ("SCRAM-SHA-256", _SCRAM)):
        for version in range(3):
            for label, data in parts.items():
                session.ask("SaslHandshake", 1, None, {"Mechanism": mechanism}, login=True)
                given = {"AuthBytes": data}
                hide = () if mechanism == "PLAIN" else ("AuthBytes",)
                session.ask("SaslAuthenticate", version, f"{mechanism} {label}", given, login=True, hide=hide)
                session.close_all()


def conversations(session: Session) -> None:
    for label, steps in CONVERSATIONS.items():
        for api, version, request in steps:
            session.ask(api, version, label, request, login=True)
        session.close_all()
    session.ask("SaslHandshake", 2, "unknown version", {"Mechanism": "PLAIN"}, login=True, answered_in=1)
    for label, data in _PLAIN.items():
        session.close_all()
        session.ask("SaslHandshake", 0, None, {"Mechanism": "PLAIN"}, login=True)
        answer = session.send(data, login=True)
        session.note(
            f"bytes after handshake 0, {label}",
            "SaslHandshake",
            0,
            answer if isinstance(answer, str) else {"Bytes": repr(answer)},
        )


ROOM = [acls, quotas, credentials, tokens, logins, conversations]
