"""Rows of AlterReplicaLogDirs, ApiVersions, DescribeCluster, DescribeLogDirs, DescribeQuorum and UpdateFeatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from korvet.errors import ErrorCode
from korvet.handlers.registry import HANDLERS
from korvet.protocol.types import AclOperation, FeatureUpgradeType
from tests.handlers import apis
from tests.handlers.rows.topics import moved
from tests.handlers.scene import CLUSTER, Scene
from tests.handlers.table import Fields, Row, Rows, Where

DESCRIBE, ALTER = AclOperation.DESCRIBE, AclOperation.ALTER
SOFTWARE = {"client_software_name": "wire", "client_software_version": "1.0"}
METADATA, FORMAT = "metadata.version", "korvet.format"
ONE_LEVEL = ("eligible.leader.replicas", "group", "kraft", "share", "streams")
LEVELS = {**{f"{name}.version": 1 for name in ONE_LEVEL}, METADATA: 29, FORMAT: 2, "transaction.version": 2}
EVERYTHING = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""Every operation on the cluster, by the numbers of AclOperation."""
LOWEST = {METADATA: 7, FORMAT: 2}
KINDS = {"endpoint_type": 1}
METADATA_LOG, POSITIVE = "__cluster_metadata", Where(lambda given: given > 0)
NO_DIRECTORY, UNKNOWN = ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
IN_RESULTS = "results.partitions.error_code"
FINALIZED = [
    {"name": name, "max_version_level": level, "min_version_level": level}
    for name, level in sorted(LEVELS.items())
]
SUPPORTED = [
    {"name": name, "min_version": LOWEST.get(name, 0), "max_version": level}
    for name, level in sorted(LEVELS.items())
]
FROM_1 = [feature for feature in SUPPORTED if feature["name"] in LOWEST]


def advertised(api_keys: Any) -> bool:
    listed = {api_key.api_key: (api_key.min_version, api_key.max_version) for api_key in api_keys}
    return listed == {key: handler.request.api.advertised for key, handler in HANDLERS.items()}


SERVED = {"api_keys": Where(advertised), "finalized_features": FINALIZED}


def sized(partition: int) -> Where:
    """Return whether just one partition has bytes, of the two of its topic."""

    def holds(results: Any) -> bool:
        topics = [topic for directory in results for topic in directory.topics]  # each server is a directory
        sizes = {item.partition_index: item.partition_size for topic in topics for item in topic.partitions}
        return sizes.keys() == {0, 1} and [index for index, size in sizes.items() if size] == [partition]

    return Where(holds)


def without_topics(results: Any) -> bool:
    return all((result.topics, result.total_bytes, result.usable_bytes) == ([], -1, -1) for result in results)


def own_directory(scene: Scene) -> str:
    return scene.services.log_dirs.name_of(scene.services.topics.get("orders").partitions[0])


def to_directory(
    topic: str = "orders", partition: int = 0, directory: Callable[[Scene], str] = own_directory
) -> Fields:
    return {"dirs": [{"path": directory, "topics": [{"name": topic, "partitions": [partition]}]}]}


def changed(level: int, name: str = "transaction.version", **fields: Any) -> Fields:
    down = level < LEVELS.get(name, 0)
    kind = FeatureUpgradeType.SAFE_DOWNGRADE if down else FeatureUpgradeType.UPGRADE
    update = {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": down}
    return {"feature_updates": [update | fields]}


def quorum(topic: str = METADATA_LOG, partition: int = 0) -> Fields:
    return {"topics": [{"topic_name": topic, "partitions": [{"partition_index": partition}]}]}


NOT_DOWN: Fields = {"upgrade_type": FeatureUpgradeType.UPGRADE, "allow_downgrade": False}
CLUSTER_ROWS: Rows = {
    apis.AlterReplicaLogDirs: (
        Row(
            to_directory(),
            {"results": {"topic_name": "orders", "partitions.partition_index": 0}},
            rights=[(ALTER, CLUSTER)],
        ),
        Row(
            to_directory("elsewhere", directory=lambda _scene: "elsewhere"), error=NO_DIRECTORY, at=IN_RESULTS
        ),
        Row(to_directory("x" * 214), error=ErrorCode.INVALID_TOPIC_EXCEPTION, at=IN_RESULTS),
        Row(to_directory("x" * 213), error=UNKNOWN, at=IN_RESULTS),
        Row(to_directory("missing"), error=UNKNOWN, at=IN_RESULTS),
        Row(to_directory(partition=2), error=UNKNOWN, at=IN_RESULTS),
        Row(
            to_directory(),
            error=ErrorCode.REPLICA_NOT_AVAILABLE,
            at=IN_RESULTS,
            before=lambda scene: (
                scene.other_broker(7),
                scene.do(apis.AlterPartitionReassignments, **moved([7])),
            ),
        ),
    ),
    apis.ApiVersions: (
        Row(SOFTWARE, SERVED | {"supported_features": FROM_1}, versions=(0, 3)),
        Row(SOFTWARE, SERVED | {"supported_features": SUPPORTED}, versions=(4, 4)),
        *(
            Row(SOFTWARE | {field: text}, {"api_keys": []}, ErrorCode.INVALID_REQUEST, versions=(3, 4))
            for field, texts in (
                ("client_software_name", ("", "-wire", "two words")),
                ("client_software_version", ("", "1.")),
            )
            for text in texts
        ),
    ),
    apis.DescribeCluster: (
        Row(
            KINDS,
            {
                "error_message": None,
                "cluster_id": "c",
                "controller_id": 0,
                "brokers": {
                    "broker_id": 0,
                    "host": "127.0.0.1",
                    "port": 9092,
                    "rack": None,
                    "is_fenced": False,
                },
                "cluster_authorized_operations": -(2**31),
            },
        ),
        Row(
            KINDS | {"include_cluster_authorized_operations": True},
            {"cluster_authorized_operations": EVERYTHING},
            rights=[(DESCRIBE, CLUSTER)],
            refused=[],
        ),
        *(
            Row({"endpoint_type": kind}, {"error_message": Where(bool), "brokers": []}, code, versions=(1, 2))
            for kind, code in (
                (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
                (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
                (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
            )
        ),
    ),
    apis.DescribeLogDirs: (
        Row({"topics": None}, {"results": sized(0)}, rights=[(DESCRIBE, CLUSTER)]),
        Row(
            {"topics": [{"topic": "orders", "partitions": [1, 0, 1, 7, -1]}, {"topic": "missing"}]},
            {"results": sized(0)},
        ),
        Row({"topics": []}, {"results": Where(without_topics)}),
    ),
    apis.DescribeQuorum: (
        Row(
            quorum(),
            {
                "error_message": None,
                "topics": {
                    "topic_name": METADATA_LOG,
                    "partitions": {
                        "partition_index": 0,
                        "error_message": None,
                        "leader_id": 0,
                        "high_watermark": POSITIVE,
                        "current_voters": [
                            {
                                "replica_id": broker_id,
                                "log_end_offset": POSITIVE,
                                "last_fetch_timestamp": POSITIVE,
                                "last_caught_up_timestamp": POSITIVE,
                            }
                            for broker_id in (0, 7)
                        ],
                        "observers": [],
                    },
                },
                "nodes": [
                    {"node_id": 0, "listeners": {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9092}},
                    {"node_id": 7, "listeners.host": "other.example"},
                ],
            },
            before=lambda scene: scene.other_broker(7),
            rights=[(DESCRIBE, CLUSTER)],
        ),
        *(
            Row(
                request,
                {"topics.partitions": {"error_message": Where(bool), "current_voters": []}, "nodes": []},
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "topics.partitions.error_code",
            )
            for request in (quorum("orders"), quorum(METADATA_LOG, 1))
        ),
    ),
    apis.UpdateFeatures: (
        Row(
            changed(1),
            {"error_message": None, "results": {"feature": "transaction.version", "error_message": "NONE"}},
            rights=[(ALTER, CLUSTER)],
        ),
        *(
            Row(changed(level, name), {"error_message": None})
            for name, level in (("transaction.version", 2), (METADATA, 29), (METADATA, 23))
        ),
        Row({**changed(0), "validate_only": True}, versions=(1, 2)),
        Row(
            {"feature_updates": changed(1)["feature_updates"] * 2},
            {"results": [{"feature": "transaction.version"}] * 2},
        ),
        *(
            Row(request, {"error_message": Where(bool), "results": []}, ErrorCode.INVALID_UPDATE_VERSION)
            for request in (
                changed(1, **NOT_DOWN),
                changed(3),
                changed(7, METADATA),
                changed(30, METADATA),
                changed(0, "zk.version"),
            )
        ),
    ),
}
