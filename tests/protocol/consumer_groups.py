"""Kafka's schemas of messages about groups of the consumer protocol and share groups, not in kafka-python's wheel.

They are transcribed. tests/jvm has Kafka's own client send them and read the answers.
"""

from __future__ import annotations

from typing import Any


def _field(name: str, kind: str, versions: str = "0+", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "versions": versions, **more}


def _nullable(name: str, kind: str, versions: str = "0+", **more: Any) -> dict[str, Any]:
    return _field(name, kind, versions, nullableVersions=versions, default="null", **more)


def _schemas(
    api: str, key: int, versions: str, request: list[dict[str, Any]], response: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        f"{api}{kind}": {
            "apiKey": key,
            "type": kind.lower(),
            "name": f"{api}{kind}",
            "validVersions": versions,
            "flexibleVersions": "0+",
            "fields": fields,
        }
        for kind, fields in (
            ("Request", request),
            ("Response", [_field("ThrottleTimeMs", "int32", default="0"), *response]),
        )
    }


_OWNED = [_field("TopicId", "uuid"), _field("Partitions", "[]int32")]
_DESCRIBED = [_field("TopicId", "uuid"), _field("TopicName", "string"), _field("Partitions", "[]int32")]
_ERROR = [_field("ErrorCode", "int16", default="0"), _nullable("ErrorMessage", "string")]


def _assignment(name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return _field(name, "Assignment", fields=[_field("TopicPartitions", "[]TopicPartitions", fields=parts)])


SCHEMAS: dict[str, dict[str, Any]] = {
    **_schemas(
        "ConsumerGroupHeartbeat",
        68,
        "0-1",
        [
            _field("GroupId", "string"),
            _field("MemberId", "string"),
            _field("MemberEpoch", "int32"),
            _nullable("InstanceId", "string"),
            _nullable("RackId", "string"),
            _field("RebalanceTimeoutMs", "int32", default="-1"),
            _nullable("SubscribedTopicNames", "[]string"),
            _nullable("SubscribedTopicRegex", "string", "1+"),
            _nullable("ServerAssignor", "string"),
            _nullable("TopicPartitions", "[]TopicPartitions", fields=_OWNED),
        ],
        [
            *_ERROR,
            _nullable("MemberId", "string"),
            _field("MemberEpoch", "int32", default="0"),
            _field("HeartbeatIntervalMs", "int32", default="0"),
            _assignment("Assignment", _OWNED) | {"nullableVersions": "0+", "default": "null"},
        ],
    ),
    **_schemas(
        "ConsumerGroupDescribe",
        69,
        "0-1",
        [
            _field("GroupIds", "[]string"),
            _field("IncludeAuthorizedOperations", "bool", default="false"),
        ],
        [
            _field(
                "Groups",
                "[]DescribedGroup",
                fields=[
                    *_ERROR,
                    _field("GroupId", "string"),
                    _field("GroupState", "string", default=""),
                    _field("GroupEpoch", "int32", default="0"),
                    _field("AssignmentEpoch", "int32", default="0"),
                    _field("AssignorName", "string", default=""),
                    _field(
                        "Members",
                        "[]Member",
                        fields=[
                            _field("MemberId", "string"),
                            _nullable("InstanceId", "string"),
                            _nullable("RackId", "string"),
                            _field("MemberEpoch", "int32"),
                            _field("ClientId", "string"),
                            _field("ClientHost", "string"),
                            _field("SubscribedTopicNames", "[]string"),
                            _nullable("SubscribedTopicRegex", "string"),
                            _assignment("Assignment", _DESCRIBED),
                            _assignment("TargetAssignment", _DESCRIBED),
                            _field("MemberType", "int8", "1+", default="-1", ignorable=True),
                        ],
                    ),
                    _field("AuthorizedOperations", "int32", default="-2147483648"),
                ],
            )
        ],
    ),
    **_schemas(
        "ShareGroupHeartbeat",
        76,
        "1",
        [
            _field("GroupId", "string"),
            _field("MemberId", "string"),
            _field("MemberEpoch", "int32"),
            _nullable("RackId", "string"),
            _nullable("SubscribedTopicNames", "[]string"),
        ],
        [
            *_ERROR,
            _nullable("MemberId", "string"),
            _field("MemberEpoch", "int32", default="0"),
            _field("HeartbeatIntervalMs", "int32", default="0"),
            _assignment("Assignment", _OWNED) | {"nullableVersions": "0+", "default": "null"},
        ],
    ),
    **_schemas(
        "ShareGroupDescribe",
        77,
        "1",
        [
            _field("GroupIds", "[]string"),
            _field("IncludeAuthorizedOperations", "bool", default="false"),
        ],
        [
            _field(
                "Groups",
                "[]DescribedGroup",
                fields=[
                    *_ERROR,
                    _field("GroupId", "string"),
                    _field("GroupState", "string", default=""),
                    _field("GroupEpoch", "int32", default="0"),
                    _field("AssignmentEpoch", "int32", default="0"),
                    _field("AssignorName", "string", default=""),
                    _field(
                        "Members",
                        "[]Member",
                        fields=[
                            _field("MemberId", "string"),
                            _nullable("RackId", "string"),
                            _field("MemberEpoch", "int32"),
                            _field("ClientId", "string"),
                            _field("ClientHost", "string"),
                            _field("SubscribedTopicNames", "[]string"),
                            _assignment("Assignment", _DESCRIBED),
                        ],
                    ),
                    _field("AuthorizedOperations", "int32", default="-2147483648"),
                ],
            )
        ],
    ),
}
