"""Kafka's schemas of the messages about streams groups, which kafka-python's wheel does not carry.

They are transcribed. tests/jvm has Kafka's own clients send them and read the answers.
"""

from __future__ import annotations

from typing import Any


def _field(name: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "versions": "0+", **more}


def _nullable(name: str, kind: str, **more: Any) -> dict[str, Any]:
    return _field(name, kind, nullableVersions="0+", default="null", **more)


def _schemas(
    api: str, key: int, request: list[dict[str, Any]], response: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        f"StreamsGroup{api}{kind}": {
            "apiKey": key,
            "type": kind.lower(),
            "name": f"StreamsGroup{api}{kind}",
            "validVersions": "0",
            "flexibleVersions": "0+",
            "fields": fields,
        }
        for kind, fields in (
            ("Request", request),
            ("Response", [_field("ThrottleTimeMs", "int32", default="0"), *response]),
        )
    }


_ERROR = [_field("ErrorCode", "int16", default="0"), _nullable("ErrorMessage", "string")]
_KEY_VALUE = [_field("Key", "string"), _field("Value", "string")]
_ENDPOINT = [_field("Host", "string"), _field("Port", "uint16")]
_TASKS = [_field("SubtopologyId", "string"), _field("Partitions", "[]int32")]
_TASK_OFFSET = [_field("SubtopologyId", "string"), _field("Partition", "int32"), _field("Offset", "int64")]
_TOPIC_PARTITIONS = [_field("Topic", "string"), _field("Partitions", "[]int32")]
_TOPIC_INFO = [
    _field("Name", "string"),
    _field("Partitions", "int32"),
    _field("ReplicationFactor", "int16"),
    _field("TopicConfigs", "[]KeyValue", fields=_KEY_VALUE),
]
_TASK_KINDS = ("ActiveTasks", "StandbyTasks", "WarmupTasks")
_ASSIGNMENT = [_field(kind, "[]TaskIds", fields=_TASKS) for kind in _TASK_KINDS]

SCHEMAS: dict[str, dict[str, Any]] = {
    **_schemas(
        "Heartbeat",
        88,
        [
            _field("GroupId", "string"),
            _field("MemberId", "string"),
            _field("MemberEpoch", "int32"),
            _field("EndpointInformationEpoch", "int32"),
            _nullable("InstanceId", "string"),
            _nullable("RackId", "string"),
            _field("RebalanceTimeoutMs", "int32", default="-1"),
            _nullable(
                "Topology",
                "Topology",
                fields=[
                    _field("Epoch", "int32"),
                    _field(
                        "Subtopologies",
                        "[]Subtopology",
                        fields=[
                            _field("SubtopologyId", "string"),
                            _field("SourceTopics", "[]string"),
                            _field("SourceTopicRegex", "[]string"),
                            _field("StateChangelogTopics", "[]TopicInfo", fields=_TOPIC_INFO),
                            _field("RepartitionSinkTopics", "[]string"),
                            _field("RepartitionSourceTopics", "[]TopicInfo", fields=_TOPIC_INFO),
                            _field(
                                "CopartitionGroups",
                                "[]CopartitionGroup",
                                fields=[
                                    _field("SourceTopics", "[]int16"),
                                    _field("SourceTopicRegex", "[]int16"),
                                    _field("RepartitionSourceTopics", "[]int16"),
                                ],
                            ),
                        ],
                    ),
                ],
            ),
            *(_nullable(kind, "[]TaskIds", fields=_TASKS) for kind in _TASK_KINDS),
            _nullable("ProcessId", "string"),
            _nullable("UserEndpoint", "Endpoint", fields=_ENDPOINT),
            _nullable("ClientTags", "[]KeyValue", fields=_KEY_VALUE),
            _nullable("TaskOffsets", "[]TaskOffset", fields=_TASK_OFFSET),
            _nullable("TaskEndOffsets", "[]TaskOffset", fields=_TASK_OFFSET),
            _field("ShutdownApplication", "bool", default="false"),
        ],
        [
            *_ERROR,
            _field("MemberId", "string", default=""),
            _field("MemberEpoch", "int32", default="0"),
            _field("HeartbeatIntervalMs", "int32", default="0"),
            _field("AcceptableRecoveryLag", "int32", default="0"),
            _field("TaskOffsetIntervalMs", "int32", default="0"),
            _field(
                "Status",
                "[]Status",
                nullableVersions="0+",
                fields=[_field("StatusCode", "int8"), _field("StatusDetail", "string")],
            ),
            *(_nullable(kind, "[]TaskIds", fields=_TASKS) for kind in _TASK_KINDS),
            _field("EndpointInformationEpoch", "int32", default="0"),
            _nullable(
                "PartitionsByUserEndpoint",
                "[]EndpointToPartitions",
                fields=[
                    _field("UserEndpoint", "Endpoint", fields=_ENDPOINT),
                    _field("ActivePartitions", "[]TopicPartition", fields=_TOPIC_PARTITIONS),
                    _field("StandbyPartitions", "[]TopicPartition", fields=_TOPIC_PARTITIONS),
                ],
            ),
        ],
    ),
    **_schemas(
        "Describe",
        89,
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
                    _nullable(
                        "Topology",
                        "Topology",
                        fields=[
                            _field("Epoch", "int32"),
                            _nullable(
                                "Subtopologies",
                                "[]Subtopology",
                                fields=[
                                    _field("SubtopologyId", "string"),
                                    _field("SourceTopics", "[]string"),
                                    _field("RepartitionSinkTopics", "[]string"),
                                    _field("StateChangelogTopics", "[]TopicInfo", fields=_TOPIC_INFO),
                                    _field("RepartitionSourceTopics", "[]TopicInfo", fields=_TOPIC_INFO),
                                ],
                            ),
                        ],
                    ),
                    _field(
                        "Members",
                        "[]Member",
                        fields=[
                            _field("MemberId", "string"),
                            _field("MemberEpoch", "int32"),
                            _nullable("InstanceId", "string"),
                            _nullable("RackId", "string"),
                            _field("ClientId", "string"),
                            _field("ClientHost", "string"),
                            _field("TopologyEpoch", "int32"),
                            _field("ProcessId", "string"),
                            _nullable("UserEndpoint", "Endpoint", fields=_ENDPOINT),
                            _field("ClientTags", "[]KeyValue", fields=_KEY_VALUE),
                            _field("TaskOffsets", "[]TaskOffset", fields=_TASK_OFFSET),
                            _field("TaskEndOffsets", "[]TaskOffset", fields=_TASK_OFFSET),
                            _field("Assignment", "Assignment", fields=_ASSIGNMENT),
                            _field("TargetAssignment", "Assignment", fields=_ASSIGNMENT),
                            _field("IsClassic", "bool"),
                        ],
                    ),
                    _field("AuthorizedOperations", "int32", default="-2147483648"),
                ],
            )
        ],
    ),
}
