"""Rows of Metadata, DescribeTopicPartitions, and of what creates, grows, places and deletes topics."""

from __future__ import annotations

from typing import Any

from korvet.errors import ErrorCode
from korvet.protocol.messages.alter_client_quotas import AlterClientQuotasRequest
from korvet.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from korvet.protocol.messages.create_partitions import CreatePartitionsRequest
from korvet.protocol.messages.create_topics import CreateTopicsRequest
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest
from korvet.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from korvet.protocol.messages.elect_leaders import ElectLeadersRequest
from korvet.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.types import AclOperation, ElectionType
from korvet.protocol.wire import ZERO_UUID
from tests.handlers.scene import CLUSTER, TOPIC, UNKNOWN_ID, Scene, topic_id
from tests.handlers.table import Fields, Row, Rows, Where

CREATE, ALTER, DELETE, DESCRIBE = (
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
)
UNKNOWN, INVALID, AWAY = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
)
NOT_ASKED_FOR = -(2**31)
EVERYTHING = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Every operation on a topic, by the numbers of AclOperation."""
FAILED, MOVED, ELECTED = (
    "topics.error_code",
    "responses.partitions.error_code",
    "replica_election_results.partition_result.error_code",
)
SOMETHING = Where(bool)


def described(*names: str | None, ids: Any = ZERO_UUID, **fields: Any) -> Fields:
    topics = [{"name": name, "topic_id": ids} for name in names]
    return {"topics": topics, "allow_auto_topic_creation": False} | fields


def partitions(count: int) -> list[Fields]:
    one = {"leader_id": 0, "leader_epoch": Where(lambda epoch: epoch > 0), "offline_replicas": []}
    return [
        one | {"partition_index": index, "replica_nodes": [0], "isr_nodes": [0]} for index in range(count)
    ]


def created(name: str = "new", count: int = 3, factor: int = 1, **fields: Any) -> Fields:
    configs = [{"name": key, "value": value} for key, value in fields.pop("configs", {}).items()]
    assignments = [
        {"partition_index": index, "broker_ids": brokers}
        for index, brokers in enumerate(fields.pop("brokers", ()))
    ]
    topic = {"name": name, "num_partitions": count, "replication_factor": factor}
    topic |= {"configs": configs, "assignments": assignments}
    return {"topics": [topic], "timeout_ms": 10_000} | fields


def cannot_be_created(code: ErrorCode, request: Fields, **fields: Any) -> Row:
    answer = {"topics": [{"topic_id": ZERO_UUID, "error_message": SOMETHING}]}
    return Row(request, answer, code, FAILED, **fields)


def grown(count: int = 4, name: str = "orders", **fields: Any) -> Fields:
    return {"topics": [{"name": name, "count": count} | fields], "timeout_ms": 1000}


def cannot_grow(code: ErrorCode, request: Fields, **fields: Any) -> Row:
    return Row(request, {"results": [{"error_message": SOMETHING}]}, code, "results.error_code", **fields)


def gone(name: str | None = "orders", given_id: Any = ZERO_UUID) -> Fields:
    return {
        "topics": [{"name": name, "topic_id": given_id}],
        "topic_names": [name],
        "timeout_ms": 10_000,
    }


def few_changes(scene: Scene) -> None:
    """Leave no change of topics to anybody."""
    ops = [{"key": "controller_mutation_rate", "value": 0.01, "remove": False}]
    entity = [{"entity_type": "user", "entity_name": None}]
    scene.do(AlterClientQuotasRequest, entries=[{"entity": entity, "ops": ops}])
    scene.ask(CreateTopicsRequest, **created("last", 1))
    scene.ids["last"] = scene.do(MetadataRequest, **described("last")).topics[0].topic_id


def moved(replicas: Any, name: str = "orders", partition: int = 0, **fields: Any) -> Fields:
    one = {"partition_index": partition, "replicas": replicas}
    return {"topics": [{"name": name, "partitions": [one]}], "allow_replication_factor_change": True} | fields


def elected(*indexes: int, name: str = "orders", kind: int = ElectionType.PREFERRED) -> Fields:
    return {"election_type": kind, "topic_partitions": [{"topic": name, "partitions": list(indexes)}]}


def of_two_brokers(scene: Scene) -> None:
    """Move the first partition to a broker that was there."""
    registration = scene.other_broker(7)
    scene.do(AlterPartitionReassignmentsRequest, **moved([7]))
    scene.brokers.unregister(registration)


def pages(*names: str, **fields: Any) -> Fields:
    return {"topics": [{"name": name} for name in names], "response_partition_limit": 2000} | fields


METADATA = (
    Row(
        described("orders"),
        {
            "brokers": [{"node_id": 0, "host": "127.0.0.1", "port": 9092}],
            "cluster_id": "c",
            "controller_id": 0,
            "topics": [
                {
                    "name": "orders",
                    "topic_id": topic_id(),
                    "is_internal": False,
                    "partitions": partitions(2),
                    "topic_authorized_operations": NOT_ASKED_FOR,
                }
            ],
            "cluster_authorized_operations": NOT_ASKED_FOR,
        },
        rights=[(DESCRIBE, TOPIC)],
    ),
    Row(
        described(None, ids=topic_id()),
        {"topics": [{"name": "orders"}]},
        versions=(12, 13),
        rights=[(DESCRIBE, TOPIC)],
    ),
    Row(described("another", ids=topic_id()), {"topics": [{"name": "orders"}]}, versions=(12, 13)),
    Row(
        {"topics": [], "include_cluster_authorized_operations": True},
        {"topics": [], "cluster_authorized_operations": Where(lambda given: given > 0)},
        versions=(8, 10),
        rights=[(DESCRIBE, CLUSTER)],
        refused=[],
    ),
    Row(
        described("orders", include_topic_authorized_operations=True),
        {"topics": [{"topic_authorized_operations": EVERYTHING}]},
        versions=(8, 13),
    ),
    Row({"topics": []}, {"topics": [{"name": "orders"}]}, versions=(0, 0)),
    Row({"topics": None}, {"topics": [{"name": "orders"}]}, versions=(1, 13)),
    Row({"topics": []}, {"topics": [], "brokers": [{"node_id": 0}]}, versions=(1, 13)),
    Row(
        described("new", "new", allow_auto_topic_creation=True),
        {"topics": [{"name": "new", "partitions": partitions(1)}]},
    ),
    *(
        Row(
            described("new", allow_auto_topic_creation=True),
            {"topics": [{"name": "new"}]},
            rights=[(CREATE, *on), (DESCRIBE, TOPIC, "new")],
            versions=(9, 13),
            refused=[ErrorCode.TOPIC_AUTHORIZATION_FAILED],
        )
        for on in ((TOPIC, "new"), (CLUSTER,))
    ),
    Row(
        described("missing"),
        {"topics": [{"name": "missing", "partitions": []}]},
        UNKNOWN,
        FAILED,
        versions=(4, 13),
    ),
    Row(described("a b"), error=ErrorCode.INVALID_TOPIC_EXCEPTION, at=FAILED),
    Row(
        described("__new", allow_auto_topic_creation=True), error=ErrorCode.INVALID_TOPIC_EXCEPTION, at=FAILED
    ),
    Row(
        described(None, ids=UNKNOWN_ID),
        {"topics": [{"name": None, "topic_id": UNKNOWN_ID}]},
        ErrorCode.UNKNOWN_TOPIC_ID,
        FAILED,
        versions=(12, 13),
    ),
    Row(described("orders", ids=topic_id()), error=INVALID, at=FAILED, versions=(10, 11)),
)

TOPIC_PARTITIONS = (
    Row(
        pages("orders", "orders"),
        {
            "topics": [
                {
                    "name": "orders",
                    "topic_id": topic_id(),
                    "partitions": partitions(2),
                    "topic_authorized_operations": EVERYTHING,
                }
            ],
            "next_cursor": None,
        },
    ),
    Row(pages("orders"), rights=[(DESCRIBE, TOPIC)]),
    Row(
        pages("orders", response_partition_limit=1),
        {
            "topics": [{"partitions": partitions(1)}],
            "next_cursor": {"topic_name": "orders", "partition_index": 1},
        },
    ),
    Row(
        pages(cursor={"topic_name": "orders", "partition_index": 1}),
        {"topics": [{"partitions": [{"partition_index": 1}]}], "next_cursor": None},
    ),
    Row(pages("missing"), {"topics": [{"topic_id": ZERO_UUID, "partitions": []}]}, UNKNOWN, FAILED),
    Row(pages("a b"), error=ErrorCode.INVALID_TOPIC_EXCEPTION, at=FAILED),
    Row(pages("orders", cursor={"topic_name": "orders", "partition_index": -1}), error=INVALID, at=FAILED),
    Row(pages("orders", cursor={"topic_name": "a", "partition_index": 0}), error=INVALID, at=FAILED),
)

CREATIONS = (
    Row(
        created(configs={"retention.ms": "5"}),
        {
            "topics": [
                {
                    "name": "new",
                    "topic_id": Where(lambda given: given != ZERO_UUID),
                    "error_message": None,
                    "num_partitions": 3,
                    "replication_factor": 1,
                    "configs": Where(
                        lambda given: ("retention.ms", "5") in [(c.name, c.value) for c in given]
                    ),
                }
            ]
        },
    ),
    *(
        Row(created(), rights=[(CREATE, *on)], refused=[ErrorCode.TOPIC_AUTHORIZATION_FAILED])
        for on in ((TOPIC, "new"), (CLUSTER,))
    ),
    Row(created(), rights=[(AclOperation.DESCRIBE_CONFIGS, TOPIC, "new"), (CREATE, TOPIC, "new")]),
    Row(created(count=-1, factor=-1), {"topics": [{"num_partitions": 1}]}, versions=(4, 7)),
    Row(created(count=-1, factor=-1, brokers=[[0], [0]]), {"topics": [{"num_partitions": 2}]}),
    Row(
        created(validate_only=True),
        {"topics": [{"num_partitions": 3, "topic_id": ZERO_UUID}]},
        versions=(2, 6),
    ),
    cannot_be_created(ErrorCode.TOPIC_ALREADY_EXISTS, created("orders", 0)),
    cannot_be_created(ErrorCode.INVALID_TOPIC_EXCEPTION, created("a b")),
    cannot_be_created(ErrorCode.INVALID_PARTITIONS, created(count=0)),
    cannot_be_created(ErrorCode.INVALID_REPLICATION_FACTOR, created(factor=0)),
    cannot_be_created(ErrorCode.INVALID_CONFIG, created(configs={"no.such.config": "1"})),
    cannot_be_created(ErrorCode.INVALID_REPLICA_ASSIGNMENT, created(count=-1, factor=-1, brokers=[[77]])),
    cannot_be_created(INVALID, created(brokers=[[0]])),
    Row(
        {"topics": [*created("a", 9_998)["topics"], *created("b", 9)["topics"]]},
        {"topics": [{"error_message": SOMETHING}, {"error_message": SOMETHING}]},
        ErrorCode.POLICY_VIOLATION,
        FAILED,
    ),
    cannot_be_created(ErrorCode.THROTTLING_QUOTA_EXCEEDED, created(), versions=(6, 7), before=few_changes),
)

GROWTHS = (
    Row(grown(), {"results": [{"name": "orders", "error_message": None}]}, rights=[(ALTER, TOPIC)]),
    Row(grown(4, assignments=[{"broker_ids": [0]}, {"broker_ids": [0]}]), {"results": [{"name": "orders"}]}),
    cannot_grow(UNKNOWN, grown(name="missing")),
    cannot_grow(ErrorCode.INVALID_PARTITIONS, grown(2)),
    cannot_grow(ErrorCode.INVALID_REPLICA_ASSIGNMENT, grown(3, assignments=[{"broker_ids": [77]}])),
    cannot_grow(INVALID, {"topics": grown()["topics"] * 2}),
    cannot_grow(ErrorCode.THROTTLING_QUOTA_EXCEEDED, grown(), versions=(3, 3), before=few_changes),
)

DELETIONS = (
    Row(
        gone(),
        {"responses": [{"name": "orders", "topic_id": topic_id(), "error_message": None}]},
        rights=[(DELETE, TOPIC)],
    ),
    Row(gone(), versions=(5, 5), rights=[(DELETE, TOPIC)]),
    *(
        Row(
            gone(None, topic_id()),
            {"responses": [{"name": "orders", "topic_id": topic_id()}]},
            versions=(6, 6),
            rights=[(DELETE, on)],
            refused=[ErrorCode.TOPIC_AUTHORIZATION_FAILED],
        )
        for on in (TOPIC, CLUSTER)
    ),
    Row(
        gone("missing"),
        {"responses": [{"name": "missing", "error_message": SOMETHING}]},
        UNKNOWN,
        "responses.error_code",
    ),
    Row(
        gone(None, UNKNOWN_ID),
        {"responses": [{"name": None, "topic_id": UNKNOWN_ID}]},
        ErrorCode.UNKNOWN_TOPIC_ID,
        "responses.error_code",
        versions=(6, 6),
    ),
    *(
        Row(request, error=INVALID, at="responses.error_code", versions=versions)
        for request, versions in (
            ({"topics": gone()["topics"] * 2, "topic_names": ["orders"] * 2}, None),
            (gone("orders", topic_id()), (6, 6)),
            (gone(None), (6, 6)),
        )
    ),
    Row(
        {"topics": [*gone()["topics"], *gone(None, topic_id())["topics"]]},
        error=INVALID,
        at="responses.error_code",
        versions=(6, 6),
    ),
    *(
        Row(
            gone(),
            error=code,
            at="responses.error_code",
            versions=versions,
            settings={"delete_topic_enable": False},
        )
        for code, versions in ((INVALID, (1, 2)), (ErrorCode.TOPIC_DELETION_DISABLED, (3, 6)))
    ),
    Row(
        gone("last"),
        error=ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        at="responses.error_code",
        versions=(5, 6),
        before=few_changes,
    ),
)

MOVES = (
    Row(
        moved([0]),
        {"error_message": None, "responses": [{"name": "orders", "partitions": [{}]}]},
        rights=[(ALTER, CLUSTER)],
    ),
    *(
        Row(request, {"responses": [{"partitions": [{"error_message": SOMETHING}]}]}, code, MOVED, versions)
        for code, request, versions in (
            (UNKNOWN, moved([0], "missing"), None),
            (UNKNOWN, moved([0], partition=7), None),
            (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, moved(None), None),
            (ErrorCode.INVALID_REPLICA_ASSIGNMENT, moved([77]), None),
        )
    ),
    Row(
        moved([0, 7], allow_replication_factor_change=False),
        error=ErrorCode.INVALID_REPLICATION_FACTOR,
        at=MOVED,
        versions=(1, 1),
        before=lambda scene: scene.other_broker(7),
    ),
)

ELECTIONS = (
    Row({"topic_partitions": None}, {"replica_election_results": []}, rights=[(ALTER, CLUSTER)]),
    *(
        Row(
            request,
            {"replica_election_results": [{"partition_result": [{"error_message": SOMETHING}]}]},
            code,
            ELECTED,
            versions,
        )
        for code, request, versions in (
            (ErrorCode.ELECTION_NOT_NEEDED, elected(0), None),
            (ErrorCode.ELECTION_NOT_NEEDED, elected(0, kind=ElectionType.UNCLEAN), (1, 2)),
            (UNKNOWN, elected(7), None),
            (UNKNOWN, elected(0, name="missing"), None),
        )
    ),
    Row(
        elected(0),
        {"replica_election_results": [{"partition_result": [{"error_message": SOMETHING}]}]},
        AWAY,
        ELECTED,
        before=of_two_brokers,
    ),
    Row(
        {"election_type": 2, "topic_partitions": None},
        {"replica_election_results": []},
        INVALID,
        versions=(1, 2),
    ),
)

TOPIC_ROWS: Rows = {
    MetadataRequest: METADATA,
    DescribeTopicPartitionsRequest: TOPIC_PARTITIONS,
    CreateTopicsRequest: CREATIONS,
    CreatePartitionsRequest: GROWTHS,
    DeleteTopicsRequest: DELETIONS,
    AlterPartitionReassignmentsRequest: MOVES,
    ElectLeadersRequest: ELECTIONS,
    ListPartitionReassignmentsRequest: (
        Row({"topics": None}, {"error_message": None, "topics": []}, rights=[(DESCRIBE, CLUSTER)]),
        Row({"topics": [{"name": "orders", "partition_indexes": [0]}]}, {"topics": []}),
    ),
}
