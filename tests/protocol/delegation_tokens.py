"""Kafka's schemas of the messages about delegation tokens, which kafka-python's wheel does not carry: transcribed.

tests/jvm/kafka_tools has Kafka's own tool send them and read the answers.
"""

from __future__ import annotations

from typing import Any


def _field(name: str, kind: str, versions: str = "0+", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "versions": versions, **more}


def _principal(prefix: str, versions: str = "0+", **more: Any) -> list[dict[str, Any]]:
    return [_field(f"{prefix}Principal{part}", "string", versions, **more) for part in ("Type", "Name")]


def _schemas(
    api: str, key: int, last: int, request: list[dict[str, Any]], response: list[dict[str, Any]]
) -> dict[str, Any]:
    head = {"apiKey": key, "validVersions": f"1-{last}", "flexibleVersions": "2+"}
    answered = [_field("ErrorCode", "int16"), *response, _field("ThrottleTimeMs", "int32")]
    parts = {"Request": request, "Response": answered}
    return {
        f"{api}DelegationToken{kind}": {
            **head,
            "type": kind.lower(),
            "name": f"{api}DelegationToken{kind}",
            "fields": fields,
        }
        for kind, fields in parts.items()
    }


_OWNER = [*_principal(""), *_principal("TokenRequester", "3+")]

SCHEMAS: dict[str, dict[str, Any]] = {
    **_schemas(
        "Create",
        38,
        3,
        [
            *_principal("Owner", "3+", nullableVersions="3+"),
            _field("Renewers", "[]CreatableRenewers", fields=_principal("")),
            _field("MaxLifetimeMs", "int64"),
        ],
        [
            *_OWNER,
            *(_field(name, "int64") for name in ("IssueTimestampMs", "ExpiryTimestampMs", "MaxTimestampMs")),
            _field("TokenId", "string"),
            _field("Hmac", "bytes"),
        ],
    ),
    **_schemas(
        "Renew",
        39,
        2,
        [_field("Hmac", "bytes"), _field("RenewPeriodMs", "int64")],
        [_field("ExpiryTimestampMs", "int64")],
    ),
    **_schemas(
        "Expire",
        40,
        2,
        [_field("Hmac", "bytes"), _field("ExpiryTimePeriodMs", "int64")],
        [_field("ExpiryTimestampMs", "int64")],
    ),
    **_schemas(
        "Describe",
        41,
        3,
        [
            _field(
                "Owners",
                "[]DescribeDelegationTokenOwner",
                nullableVersions="0+",
                fields=_principal(""),
            )
        ],
        [
            _field(
                "Tokens",
                "[]DescribedDelegationToken",
                fields=[
                    *_OWNER,
                    *(
                        _field(name, "int64")
                        for name in ("IssueTimestamp", "ExpiryTimestamp", "MaxTimestamp")
                    ),
                    _field("TokenId", "string"),
                    _field("Hmac", "bytes"),
                    _field("Renewers", "[]DescribedDelegationTokenRenewer", fields=_principal("")),
                ],
            )
        ],
    ),
}
