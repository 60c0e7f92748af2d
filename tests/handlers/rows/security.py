"""Rows of the requests about ACLs, quotas, SCRAM credentials, delegation tokens and logins."""

from __future__ import annotations

from math import inf, nan
from typing import Any

from korvet.errors import ErrorCode
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest
from korvet.protocol.schema import Message
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from korvet.security.sasl import Authenticator, SaslListener
from korvet.security.session import Session
from tests.handlers import apis
from tests.handlers.scene import ALICE, CLUSTER, Scene
from tests.handlers.table import Fields, Row, Rows, Where, said

ALTER, DESCRIBE = AclOperation.ALTER, AclOperation.DESCRIBE
ALTER_CONFIGS, DESCRIBE_CONFIGS = AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS
INVALID = ErrorCode.INVALID_REQUEST
WITHOUT = {"authorizer_class_name": ""}
"""Settings of a broker without an authorizer."""
EVERYTHING: Fields = {
    "resource_type_filter": AclResourceType.ANY,
    "pattern_type_filter": PatternType.ANY,
    "operation": AclOperation.ANY,
    "permission_type": AclPermissionType.ANY,
}
RULE: Fields = {"principal": "User:bob", "host": "*", "operation": 3, "permission_type": 3}
RESOURCE: Fields = {"resource_type": AclResourceType.TOPIC, "resource_name": "orders"}
CREATION = RESOURCE | RULE | {"resource_pattern_type": PatternType.LITERAL}
UNUSUAL: tuple[Fields, ...] = ({"principal": ":u"}, {"principal": "User:"}, {"host": ""})


def created(scene: Scene) -> None:
    scene.do(apis.CreateAcls, creations=[CREATION])


ACL_ROWS: Rows = {
    apis.DescribeAcls: (
        Row(
            EVERYTHING,
            {"error_message": None, "resources": {**RESOURCE, "pattern_type": 3, "acls": [RULE]}},
            before=created,
        ),
        Row(
            EVERYTHING | {"principal_filter": "User:nobody"},
            {"resources": []},
            before=created,
            rights=[(DESCRIBE, CLUSTER)],
        ),
        *(
            Row(EVERYTHING | {name: 99}, {"resources": []}, before=created)
            for name in ("operation", "permission_type")
        ),
        Row(EVERYTHING | {"operation": 0}, {"error_message": Where(bool)}, INVALID),
        Row(EVERYTHING, {"error_message": Where(bool)}, ErrorCode.SECURITY_DISABLED, settings=WITHOUT),
    ),
    apis.CreateAcls: (
        Row(
            {"creations": [CREATION, CREATION, *(CREATION | item for item in UNUSUAL)]},
            {"results": [{"error_message": None}] * 5},
            rights=[(ALTER, CLUSTER)],
        ),
        Row(
            {"creations": [CREATION | {"operation": 1}]},
            {"results.error_message": "Invalid operation ANY"},
            INVALID,
            "results.error_code",
        ),
        Row({"creations": [CREATION] * 10_001}, error=ErrorCode.POLICY_VIOLATION, at="results.error_code"),
        Row(
            {"creations": [CREATION]},
            error=ErrorCode.SECURITY_DISABLED,
            at="results.error_code",
            settings=WITHOUT,
        ),
    ),
    apis.DeleteAcls: (
        Row(
            {"filters": [EVERYTHING, EVERYTHING]},
            {
                "filter_results": [
                    {"error_message": None, "matching_acls": [{**RESOURCE, **RULE, "pattern_type": 3}]}
                ]
                * 2
            },
            before=created,
        ),
        Row(
            {"filters": [EVERYTHING | {"resource_name_filter": "nothing"}]},
            {"filter_results.matching_acls": []},
            before=created,
            rights=[(ALTER, CLUSTER)],
        ),
        Row({"filters": [EVERYTHING | {"operation": 0}]}, error=INVALID, at="filter_results.error_code"),
        Row(
            {"filters": [EVERYTHING]},
            error=ErrorCode.SECURITY_DISABLED,
            at="filter_results.error_code",
            settings=WITHOUT,
        ),
        Row(
            {"filters": [EVERYTHING] * 1_001},
            error=ErrorCode.POLICY_VIOLATION,
            at="filter_results.error_code",
        ),
    ),
}


def entity(*pairs: tuple[str, str | None]) -> list[Fields]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in pairs]


USER = entity(("user", "alice"))
RATE: Fields = {"key": "producer_byte_rate", "value": 1e12}
PERCENT: Fields = {"key": "request_percentage", "value": 5}
CONNECTIONS: Fields = {"key": "connection_creation_rate", "value": 5}
ANY_IP = entity(("ip", None))


def limits(*ops: Fields, entity: Any = USER, **fields: Any) -> Fields:
    return {"entries": [{"entity": entity, "ops": list(ops) or [RATE]}]} | fields


def limited(scene: Scene) -> None:
    scene.do(apis.AlterClientQuotas, **limits())


def component(kind: str = "user", match: str | None = "alice", how: int = 0, **fields: Any) -> Fields:
    return {"components": [{"entity_type": kind, "match_type": how, "match": match}]} | fields


QUOTA_ROWS: Rows = {
    apis.DescribeClientQuotas: (
        Row(
            component(strict=True),
            {"error_message": None, "entries": {"entity": USER, "values": [RATE]}},
            before=limited,
        ),
        Row({}, {"entries.entity": USER}, before=limited, rights=[(DESCRIBE_CONFIGS, CLUSTER)]),
        Row(component(match="bob"), {"entries": []}, before=limited),
        *(
            Row(request, {"error_message": said(text), "entries": None}, code)
            for code, request, text in (
                (INVALID, component(""), "Invalid empty entity type."),
                (INVALID, {"components": component()["components"] * 2}, "more than once"),
                (ErrorCode.UNSUPPORTED_VERSION, component("group"), "Unsupported entity type group"),
                (INVALID, component(match=None), "no match string"),
                (INVALID, component(how=1), "and a match string"),
                (INVALID, component(how=2), "and a match string"),
                (INVALID, component(how=3, match=None), "Unknown match type 3"),
                (
                    INVALID,
                    {"components": [*component("ip")["components"], *component()["components"]]},
                    "should not be used with",
                ),
            )
        ),
    ),
    apis.AlterClientQuotas: (
        Row(
            limits(), {"entries": {"error_message": None, "entity": USER}}, rights=[(ALTER_CONFIGS, CLUSTER)]
        ),
        Row(limits(RATE | {"remove": True}), before=limited),
        Row(limits(CONNECTIONS | {"value": 0}, entity=entity(("ip", "::1")))),
        *(
            Row(request, {"entries.error_message": said(text)}, INVALID, "entries.error_code")
            for request, text in (
                (limits(entity=entity()), "Invalid empty client quota entity"),
                (limits(entity=entity(("group", "g"))), "Unhandled client quota entity type: group"),
                (limits(entity=entity(("user", ""))), "Empty user not supported"),
                (limits(entity=entity(("user", "a"), ("user", "b"))), "more than once"),
                (limits(CONNECTIONS, entity=entity(("ip", "::1"), ("user", "a"))), "cannot be combined"),
                (limits(CONNECTIONS, entity=entity(("ip", "none"))), "none is not a valid IP."),
                (limits(entity=entity(("ip", "::1"))), "Invalid configuration key"),
                (limits(CONNECTIONS), "Invalid configuration key connection_creation_rate"),
                (limits(RATE | {"key": "no_such_rate"}), "Invalid configuration key no_such_rate"),
                (limits(RATE | {"value": 1000.5}), "producer_byte_rate cannot be a fractional value."),
                (limits(RATE | {"value": 0.5}, validate_only=True), "cannot be a fractional value."),
                *((limits(CONNECTIONS | {"value": n}, entity=ANY_IP), "greater than 0") for n in (0, 1e-9)),
                (limits(RATE | {"value": 1e19}), "producer_byte_rate is too large for a LONG."),
                (limits(CONNECTIONS | {"value": 3e9}, entity=entity(("ip", "::1"))), "too large for an INT."),
                *((limits(RATE | {"value": value}), "must be greater than 0") for value in (-1, 0)),
                *((limits(PERCENT | {"value": value}), "must be greater than 0") for value in (nan, inf)),
                (limits(PERCENT, PERCENT | {"value": 6}), "Duplicate quota key"),
                ({"entries": limits()["entries"] * 2}, "names the entity twice"),
            )
        ),
    ),
}

SALTED: Fields = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": bytes(32)}


def upsertion(**fields: Any) -> Fields:
    return {"upsertions": [{"name": "bob", **SALTED} | fields]}


def deletion(mechanism: int = 1) -> Fields:
    return {"deletions": [{"name": "bob", "mechanism": mechanism}]}


def with_bob(scene: Scene) -> None:
    scene.do(apis.AlterUserScramCredentials, **upsertion())


BOB: Fields = {"user": "bob", "credential_infos": [{"mechanism": 1, "iterations": 4096}]}
SCRAM_ROWS: Rows = {
    apis.DescribeUserScramCredentials: (
        Row(
            {"users": None},
            {"error_message": None, "results": [BOB]},
            before=with_bob,
            rights=[(DESCRIBE, CLUSTER)],
        ),
        Row({"users": []}, {"results": [BOB]}, before=with_bob),
        Row({"users": [{"name": "bob"}]}, {"results": [BOB]}, before=with_bob),
        Row(
            {"users": [{"name": "carol"}]},
            {"results": {"user": "carol", "error_message": Where(bool)}},
            ErrorCode.RESOURCE_NOT_FOUND,
            "results.error_code",
        ),
        Row(
            {"users": [{"name": "bob"}] * 2},
            {"results.user": "bob"},
            ErrorCode.DUPLICATE_RESOURCE,
            "results.error_code",
            before=with_bob,
        ),
    ),
    apis.AlterUserScramCredentials: (
        Row(upsertion(), {"results": {"user": "bob", "error_message": None}}, rights=[(ALTER, CLUSTER)]),
        Row(deletion(), {"results.user": "bob"}, before=with_bob),
        Row(upsertion(salted_password=b"x"), {"results.user": "bob"}),
        *(
            Row(request, {"results.error_message": said(text)}, code, "results.error_code")
            for code, request, text in (
                (
                    ErrorCode.UNACCEPTABLE_CREDENTIAL,
                    {"upsertions": upsertion(name="")["upsertions"] * 2},
                    "empty",
                ),
                (ErrorCode.RESOURCE_NOT_FOUND, deletion() | upsertion(mechanism=3), "that does not exist"),
                (ErrorCode.RESOURCE_NOT_FOUND, deletion(), "that does not exist"),
                (ErrorCode.UNSUPPORTED_SASL_MECHANISM, deletion(0), "Unknown SCRAM mechanism"),
            )
        ),
        Row(
            deletion() | upsertion(mechanism=3),
            {"results.error_message": said("altered twice")},
            ErrorCode.DUPLICATE_RESOURCE,
            "results.error_code",
            before=with_bob,
        ),
    ),
}


def with_sasl(mechanism: str = "", *, done: bool = False) -> Any:
    """Return what gives a session on a listener with SASL, at a step of its login."""

    def session(scene: Scene) -> Session:
        scene.do(apis.AlterUserScramCredentials, **upsertion())
        made = Session("10.0.0.3:1")
        listener = SaslListener.of(scene.settings, "SASL_PLAINTEXT", scene.services.users)
        scene.logins[made.peer] = Authenticator(listener, made)
        if mechanism:
            scene.call(SaslHandshakeRequest(mechanism=mechanism), 1, made)
        return made

    return session


SASL = {"sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256", "connection_failed_authentication_delay_ms": 0}
MECHANISMS = ["PLAIN", "SCRAM-SHA-256"]
LOGIN_ROWS: Rows = {
    SaslHandshakeRequest: (
        Row({"mechanism": "SCRAM-SHA-256"}, {"mechanisms": MECHANISMS}, session=with_sasl(), settings=SASL),
        Row(
            {"mechanism": "GSSAPI"},
            {"mechanisms": MECHANISMS},
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            session=with_sasl(),
            settings=SASL,
        ),
        Row({"mechanism": "PLAIN"}, {"mechanisms": []}, ErrorCode.ILLEGAL_SASL_STATE),
        Row({}, error=ErrorCode.ILLEGAL_SASL_STATE, session=with_sasl("PLAIN"), settings=SASL),
    ),
    apis.SaslAuthenticate: (
        Row(
            {"auth_bytes": b"n,,n=bob,r=nonce"},
            {"auth_bytes": Where(lambda token: token.startswith(b"r=nonce"))},
            session=with_sasl("SCRAM-SHA-256"),
            settings=SASL,
        ),
        Row(
            {"auth_bytes": b"\0bob\0wrong"},
            {"error_message": Where(bool), "auth_bytes": b""},
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            session=with_sasl("PLAIN"),
            settings=SASL,
        ),
        Row({"auth_bytes": b"x"}, {"error_message": Where(bool)}, ErrorCode.ILLEGAL_SASL_STATE),
    ),
}


def tokens(kind: type[Message], answer: Fields, **request: Any) -> Rows:
    """Return the rows of an API about delegation tokens, which a client may ask about once it has logged in."""
    return {
        kind: (
            Row(request, answer, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, session=lambda _scene: ALICE),
            Row(
                request,
                {},
                ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
                session=lambda _scene: Session("10.0.0.1:1"),
            ),
        )
    }


OWN: Fields = {"principal_type": "User", "principal_name": "alice", "token_requester_principal_name": "alice"}
NO_TIME: Fields = {"expiry_timestamp_ms": -1}

SECURITY_ROWS: Rows = {
    **ACL_ROWS,
    **QUOTA_ROWS,
    **SCRAM_ROWS,
    **LOGIN_ROWS,
    **tokens(apis.CreateDelegationToken, OWN | NO_TIME, max_lifetime_ms=-1),
    **tokens(apis.RenewDelegationToken, NO_TIME, hmac=b"x", renew_period_ms=-1),
    **tokens(apis.ExpireDelegationToken, NO_TIME, hmac=b"x", expiry_time_period_ms=-1),
    **tokens(apis.DescribeDelegationToken, {"tokens": []}),
}
