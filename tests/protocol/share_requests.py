"""Kafka's schemas of the requests about records and offsets of share groups, which kafka-python's wheel does not carry.

They are transcribed from the message classes of kafka-clients 4.2.0. tests/jvm has Kafka's own client send some.
"""

from __future__ import annotations

from typing import Any


def _field(name: str, kind: str, versions: str = "0+", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "versions": versions, **more}


def _nullable(name: str, kind: str = "string", **more: Any) -> dict[str, Any]:
    return _field(name, kind, nullableVersions="0+", default="null", **more)


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
            ("Response", [_field("ThrottleTimeMs", "int32"), *response]),
        )
    }


_ERROR = [_field("ErrorCode", "int16"), _nullable("ErrorMessage")]
_MEMBER = [
    _nullable("GroupId"),
    _field("MemberId", "string", nullableVersions="0+"),
    _field("ShareSessionEpoch", "int32"),
]
_RENEW = _field("IsRenewAck", "bool", "2+", default="false")
_LEADER = _field(
    "CurrentLeader", "LeaderIdAndEpoch", fields=[_field("LeaderId", "int32"), _field("LeaderEpoch", "int32")]
)
_ENDPOINTS = _field(
    "NodeEndpoints",
    "[]NodeEndpoint",
    fields=[
        _field("NodeId", "int32"),
        _field("Host", "string"),
        _field("Port", "int32"),
        _nullable("Rack"),
    ],
)


def _acknowledged(topic: str, partition: str) -> dict[str, Any]:
    batches = [
        _field("FirstOffset", "int64"),
        _field("LastOffset", "int64"),
        _field("AcknowledgeTypes", "[]int8"),
    ]
    partitions = [
        _field("PartitionIndex", "int32"),
        _field("AcknowledgementBatches", "[]AcknowledgementBatch", fields=batches),
    ]
    return _field(
        "Topics",
        f"[]{topic}",
        fields=[_field("TopicId", "uuid"), _field("Partitions", f"[]{partition}", fields=partitions)],
    )


def _topics(name: str, kind: str, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    return _field(
        name,
        f"[]{kind}Topic",
        fields=[
            _field("TopicName", "string"),
            _field("TopicId", "uuid"),
            _field("Partitions", f"[]{kind}Partition", fields=partitions),
        ],
    )


SCHEMAS: dict[str, dict[str, Any]] = {
    **_schemas(
        "ShareFetch",
        78,
        "1-2",
        [
            *_MEMBER,
            _field("MaxWaitMs", "int32"),
            _field("MinBytes", "int32"),
            _field("MaxBytes", "int32", default="0x7fffffff"),
            _field("MaxRecords", "int32", "1+"),
            _field("BatchSize", "int32", "1+"),
            _field("ShareAcquireMode", "int8", "2+", default="0", ignorable=True),
            _RENEW,
            _acknowledged("FetchTopic", "FetchPartition"),
            _field(
                "ForgottenTopicsData",
                "[]ForgottenTopic",
                fields=[_field("TopicId", "uuid"), _field("Partitions", "[]int32")],
            ),
        ],
        [
            *_ERROR,
            _field("AcquisitionLockTimeoutMs", "int32"),
            _field(
                "Responses",
                "[]ShareFetchableTopicResponse",
                fields=[
                    _field("TopicId", "uuid"),
                    _field(
                        "Partitions",
                        "[]PartitionData",
                        fields=[
                            _field("PartitionIndex", "int32"),
                            *_ERROR,
                            _field("AcknowledgeErrorCode", "int16"),
                            _nullable("AcknowledgeErrorMessage"),
                            _LEADER,
                            _field("Records", "records"),
                            _field(
                                "AcquiredRecords",
                                "[]AcquiredRecords",
                                fields=[
                                    _field("FirstOffset", "int64"),
                                    _field("LastOffset", "int64"),
                                    _field("DeliveryCount", "int16"),
                                ],
                            ),
                        ],
                    ),
                ],
            ),
            _ENDPOINTS,
        ],
    ),
    **_schemas(
        "ShareAcknowledge",
        79,
        "1-2",
        [*_MEMBER, _RENEW, _acknowledged("AcknowledgeTopic", "AcknowledgePartition")],
        [
            *_ERROR,
            _field("AcquisitionLockTimeoutMs", "int32", "2+", ignorable=True),
            _field(
                "Responses",
                "[]ShareAcknowledgeTopicResponse",
                fields=[
                    _field("TopicId", "uuid"),
                    _field(
                        "Partitions",
                        "[]PartitionData",
                        fields=[_field("PartitionIndex", "int32"), *_ERROR, _LEADER],
                    ),
                ],
            ),
            _ENDPOINTS,
        ],
    ),
    **_schemas(
        "DescribeShareGroupOffsets",
        90,
        "0-1",
        [
            _field(
                "Groups",
                "[]DescribeShareGroupOffsetsRequestGroup",
                fields=[
                    _field("GroupId", "string"),
                    _field(
                        "Topics",
                        "[]DescribeShareGroupOffsetsRequestTopic",
                        nullableVersions="0+",
                        fields=[_field("TopicName", "string"), _field("Partitions", "[]int32")],
                    ),
                ],
            )
        ],
        [
            _field(
                "Groups",
                "[]DescribeShareGroupOffsetsResponseGroup",
                fields=[
                    _field("GroupId", "string"),
                    _topics(
                        "Topics",
                        "DescribeShareGroupOffsetsResponse",
                        [
                            _field("PartitionIndex", "int32"),
                            _field("StartOffset", "int64"),
                            _field("LeaderEpoch", "int32"),
                            _field("Lag", "int64", "1+", default="-1", ignorable=True),
                            *_ERROR,
                        ],
                    ),
                    *_ERROR,
                ],
            )
        ],
    ),
    **_schemas(
        "AlterShareGroupOffsets",
        91,
        "0",
        [
            _field("GroupId", "string"),
            _field(
                "Topics",
                "[]AlterShareGroupOffsetsRequestTopic",
                fields=[
                    _field("TopicName", "string"),
                    _field(
                        "Partitions",
                        "[]AlterShareGroupOffsetsRequestPartition",
                        fields=[_field("PartitionIndex", "int32"), _field("StartOffset", "int64")],
                    ),
                ],
            ),
        ],
        [
            *_ERROR,
            _topics(
                "Responses", "AlterShareGroupOffsetsResponse", [_field("PartitionIndex", "int32"), *_ERROR]
            ),
        ],
    ),
    **_schemas(
        "DeleteShareGroupOffsets",
        92,
        "0",
        [
            _field("GroupId", "string"),
            _field("Topics", "[]DeleteShareGroupOffsetsRequestTopic", fields=[_field("TopicName", "string")]),
        ],
        [
            *_ERROR,
            _field(
                "Responses",
                "[]DeleteShareGroupOffsetsResponseTopic",
                fields=[_field("TopicName", "string"), _field("TopicId", "uuid"), *_ERROR],
            ),
        ],
    ),
}
