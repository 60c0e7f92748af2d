"""Rows of Metadata, DescribeTopicPartitions, and of what creates, grows, places and deletes topics."""

from __future__ import annotations

from typing import Any

from korvet.errors import ErrorCode
from korvet.protocol.types import AclOperation, ElectionType
from korvet.protocol.wire import ZERO_UUID
from tests.handlers import apis
from tests.handlers.scene import CLUSTER, TOPIC, UNKNOWN_ID, Scene, topic_id
from tests.handlers.table import Fields, Row, Rows, Where, errors

CREATE, ALTER, DELETE, DESCRIBE = (
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
)
UNKNOWN, INVALID, AWAY, NO_NAME, TIMED_OUT = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
)
NOT_ASKED_FOR = -(2**31)
EVERYTHING = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""Every operation on a topic, by the numbers of AclOperation."""
FAILED, MOVED, DELETED, ELECTED = (
    "topics.error_code",
    "responses.partitions.error_code",
    "responses.error_code",
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
    pairs = fields.pop("configs", [])
    configs = [{"name": key, "value": value} for key, value in pairs]
    assignments = [
        {"partition_index": index, "broker_ids": brokers}
        for index, brokers in enumerate(fields.pop("brokers", ()))
    ]
    topic = {"name": name, "num_partitions": count, "replication_factor": factor}
    topic |= {"configs": configs, "assignments": assignments}
    return {"topics": [topic], "timeout_ms": 10_000} | fields


def sorted_pairs(configs: Any) -> list[tuple[str, str]]:
    pairs = [(config.name, config.value) for config in configs]
    assert pairs == sorted(pairs)
    return pairs


def cannot_be_created(code: ErrorCode, request: Fields, text: str = "", **fields: Any) -> Row:
    says = Where(lambda given: text in given and 0 < len(given) <= 1000)
    return Row(request, {"topics": {"topic_id": ZERO_UUID, "error_message": says}}, code, FAILED, **fields)


def assigned(brokers: Any, *indexes: int) -> Fields:
    """Assign partitions to brokers: those of `indexes` in place of all from 0 on."""
    request = created(count=-1, factor=-1, brokers=brokers)
    for assignment, index in zip(request["topics"][0]["assignments"], indexes, strict=False):
        assignment["partition_index"] = index
    return request


def grown(count: int = 4, name: str = "orders", **fields: Any) -> Fields:
    return {"topics": [{"name": name, "count": count} | fields], "timeout_ms": 1000}


def cannot_grow(code: ErrorCode, request: Fields, **fields: Any) -> Row:
    return Row(request, {"results.error_message": SOMETHING}, code, "results.error_code", **fields)


def gone(name: str | None = "orders", given_id: Any = ZERO_UUID) -> Fields:
    return {"topics": [{"name": name, "topic_id": given_id}], "topic_names": [name], "timeout_ms": 10_000}


def few_changes(scene: Scene) -> None:
    """Leave no change of topics to anybody."""
    ops = [{"key": "controller_mutation_rate", "value": 0.01, "remove": False}]
    entity = [{"entity_type": "user", "entity_name": None}]
    scene.do(apis.AlterClientQuotas, entries=[{"entity": entity, "ops": ops}])
    scene.ask(apis.CreateTopics, **created("last", 1))
    scene.ids["last"] = scene.do(apis.Metadata, **described("last")).topics[0].topic_id


def moved(replicas: Any, name: str = "orders", partition: int = 0, **fields: Any) -> Fields:
    one = {"partition_index": partition, "replicas": replicas}
    return {"topics": [{"name": name, "partitions": [one]}], "allow_replication_factor_change": True} | fields


def elected(*indexes: int, name: str = "orders", kind: int = ElectionType.PREFERRED) -> Fields:
    return {"election_type": kind, "topic_partitions": [{"topic": name, "partitions": list(indexes)}]}


def of_two_brokers(scene: Scene) -> None:
    """Move the first partition to a broker that was there."""
    registration = scene.other_broker(7)
    scene.do(apis.AlterPartitionReassignments, **moved([7]))
    scene.brokers.unregister(registration, 0)


def pages(*names: str, **fields: Any) -> Fields:
    return {"topics": [{"name": name} for name in names], "response_partition_limit": 2000} | fields


OF_WHO_IS_AWAY = {"leader_id": 0, "replica_nodes": [7, 0], "isr_nodes": [0], "offline_replicas": [7]}
METADATA = (
    Row(
        described("orders"),
        {
            "brokers": {"node_id": 0, "host": "127.0.0.1", "port": 9092},
            "cluster_id": "c",
            "controller_id": 0,
            "topics": {
                "name": "orders",
                "topic_id": topic_id(),
                "is_internal": False,
                "partitions": partitions(2),
                "topic_authorized_operations": NOT_ASKED_FOR,
            },
            "cluster_authorized_operations": NOT_ASKED_FOR,
        },
        rights=[(DESCRIBE, TOPIC)],
    ),
    Row(
        described(None, ids=topic_id()),
        {"topics.name": "orders"},
        versions=(12, 13),
        rights=[(DESCRIBE, TOPIC)],
    ),
    Row(
        {"topics": [{"name": "another", "topic_id": topic_id()}, {"name": "left-out"}]},
        {"topics": [{"name": "orders"}]},
        versions=(12, 13),
    ),
    Row(
        {"topics": [], "include_cluster_authorized_operations": True},
        {"topics": [], "cluster_authorized_operations": Where(lambda given: given > 0)},
        versions=(8, 10),
        rights=[(DESCRIBE, CLUSTER)],
        refused=[],
    ),
    Row(
        described("orders", include_topic_authorized_operations=True),
        {"topics.topic_authorized_operations": EVERYTHING},
        versions=(8, 13),
    ),
    Row({"topics": []}, {"topics.name": "orders"}, versions=(0, 0)),
    Row({"topics": None}, {"topics.name": "orders"}, versions=(1, 13)),
    Row({"topics": []}, {"topics": [], "brokers.node_id": 0}, versions=(1, 13)),
    Row(
        described("new", "new", allow_auto_topic_creation=True),
        {"topics": {"name": "new", "partitions": partitions(1)}},
    ),
    *(
        Row(
            described("new", allow_auto_topic_creation=True),
            {"topics.name": "new"},
            rights=[(CREATE, *on), (DESCRIBE, TOPIC, "new")],
            versions=(9, 13),
            refused=[ErrorCode.TOPIC_AUTHORIZATION_FAILED],
        )
        for on in ((TOPIC, "new"), (CLUSTER,))
    ),
    Row(described("missing"), {"topics": {"name": "missing", "partitions": []}}, UNKNOWN, FAILED, (4, 13)),
    Row(
        described("__new", allow_auto_topic_creation=True),
        error=UNKNOWN,
        at=FAILED,
        settings={"auto_create_topics_enable": False, "topic_reserved_names": ""},
    ),
    Row(described(), {"brokers.node_id": 7}, settings={"broker_id": 7}),
    Row(
        described("orders"),
        {"brokers.node_id": 0, "topics.partitions": [OF_WHO_IS_AWAY, {}]},
        before=of_two_brokers,
    ),
    *errors(
        FAILED,
        {},
        (NO_NAME, described("a b")),
        (NO_NAME, described("__consumer_offsets", allow_auto_topic_creation=True)),
        (INVALID, described("orders", ids=topic_id()), (10, 11)),
    ),
    *errors(
        FAILED,
        {"topics": {"name": None, "topic_id": UNKNOWN_ID}},
        (ErrorCode.UNKNOWN_TOPIC_ID, described(None, ids=UNKNOWN_ID), (12, 13)),
    ),
)

NO_TOPIC: Fields = {"topic_id": ZERO_UUID, "partitions": []}
TOPIC_PARTITIONS = (
    Row(
        pages("orders", "orders"),
        {
            "topics": {
                "name": "orders",
                "topic_id": topic_id(),
                "partitions": partitions(2),
                "topic_authorized_operations": EVERYTHING,
            },
            "next_cursor": None,
        },
    ),
    Row(pages("orders"), rights=[(DESCRIBE, TOPIC)]),
    Row(
        pages("orders", response_partition_limit=1),
        {"topics.partitions": partitions(1), "next_cursor": {"topic_name": "orders", "partition_index": 1}},
    ),
    Row(
        pages(cursor={"topic_name": "orders", "partition_index": 1}),
        {"topics.partitions.partition_index": 1, "next_cursor": None},
    ),
    *(
        Row(pages(name), {"topics": NO_TOPIC | {"topic_authorized_operations": EVERYTHING}}, code, FAILED)
        for name, code in (("missing", UNKNOWN), ("a b", NO_NAME))
    ),
    Row(pages("orders", cursor={"topic_name": "a", "partition_index": 0}), error=INVALID, at=FAILED),
)

COUNTS = ((0, ""), (-2, "not -2"), (10_001, "10000"))
ASSIGNED_WRONGLY = (
    (assigned([[]]), "-0 is assigned to no broker"),
    (assigned([[0, 0]]), "-0 is assigned to a broker twice"),
    (assigned([[0], [77]]), "that are not there, [77]"),
    (assigned([list(range(100_000))]), "not there"),
    (assigned([[0], [0]], 0, 0), "multiple assignments for partition 0"),
    (assigned([[0], [0]], 1, 3), "must be 0, 1, 2, ...: there are 1, 3"),
    (assigned([[0], [0]], 0, 2), "must be 0, 1, 2, ...: there are 0, 2"),
)
CREATIONS = (
    Row(
        created(configs=[("retention.ms", "6"), ("retention.ms", "5")]),
        {
            "topics": {
                "name": "new",
                "topic_id": Where(lambda given: given != ZERO_UUID),
                "error_message": None,
                "num_partitions": 3,
                "replication_factor": 1,
                "configs": Where(lambda given: ("retention.ms", "5") in sorted_pairs(given)),
            }
        },
    ),
    *(
        Row(created(), rights=[(CREATE, *on)], refused=[ErrorCode.TOPIC_AUTHORIZATION_FAILED])
        for on in ((TOPIC, "new"), (CLUSTER,))
    ),
    Row(created(), rights=[(AclOperation.DESCRIBE_CONFIGS, TOPIC, "new"), (CREATE, TOPIC, "new")]),
    Row(created("__debezium-heartbeat.new"), {"topics.name": "__debezium-heartbeat.new"}),
    Row(created(count=-1, factor=-1), {"topics.num_partitions": 1}, versions=(4, 7)),
    Row(assigned([[0], [0]]), {"topics.num_partitions": 2}),
    Row(created(factor=32_767), {"topics.replication_factor": 1}),
    Row(
        created(validate_only=True), {"topics": {"num_partitions": 3, "topic_id": ZERO_UUID}}, versions=(2, 6)
    ),
    cannot_be_created(ErrorCode.TOPIC_ALREADY_EXISTS, created("orders", 0)),
    cannot_be_created(NO_NAME, created("a b")),
    *(cannot_be_created(TIMED_OUT, created(timeout_ms=timeout_ms)) for timeout_ms in (0, -1)),
    cannot_be_created(ErrorCode.TOPIC_ALREADY_EXISTS, created("__transaction_state"), "topic.reserved.names"),
    cannot_be_created(NO_NAME, created("__cluster_metadata"), "topic.reserved.names"),
    *(cannot_be_created(ErrorCode.INVALID_PARTITIONS, created(count=n), text) for n, text in COUNTS),
    cannot_be_created(ErrorCode.INVALID_REPLICATION_FACTOR, created(factor=0)),
    cannot_be_created(ErrorCode.INVALID_REPLICATION_FACTOR, created(factor=-2), "not -2"),
    cannot_be_created(ErrorCode.INVALID_CONFIG, created(configs=[("retention.ms", None)]), "retention.ms"),
    cannot_be_created(ErrorCode.INVALID_CONFIG, created(configs=[("x" * 32_767, "x" * 32_767)]), "xxx..."),
    *(cannot_be_created(ErrorCode.INVALID_REPLICA_ASSIGNMENT, *case) for case in ASSIGNED_WRONGLY),
    cannot_be_created(INVALID, created(factor=-1, brokers=[[0]]), "must be -1"),
    cannot_be_created(INVALID, created(count=-1, brokers=[[0]]), "must be -1"),
    Row(
        {"topics": [*created("a", 9_998)["topics"], *created("b", 9)["topics"]]},
        {"topics": [{"error_message": SOMETHING}, {"error_message": SOMETHING}]},
        ErrorCode.POLICY_VIOLATION,
        FAILED,
    ),
    cannot_be_created(ErrorCode.THROTTLING_QUOTA_EXCEEDED, created(), versions=(6, 7), before=few_changes),
)

GROWTHS = (
    Row(grown(), {"results": {"name": "orders", "error_message": None}}, rights=[(ALTER, TOPIC)]),
    Row(grown(4, assignments=[{"broker_ids": [0]}, {"broker_ids": [0]}]), {"results.name": "orders"}),
    cannot_grow(UNKNOWN, grown(name="missing")),
    cannot_grow(TIMED_OUT, grown() | {"timeout_ms": 0}),
    cannot_grow(ErrorCode.INVALID_PARTITIONS, grown(2)),
    cannot_grow(ErrorCode.INVALID_REPLICA_ASSIGNMENT, grown(3, assignments=[{"broker_ids": [77]}])),
    cannot_grow(INVALID, grown() | {"topics": grown()["topics"] * 2}),
    cannot_grow(ErrorCode.THROTTLING_QUOTA_EXCEEDED, grown(), versions=(3, 3), before=few_changes),
)

DELETIONS = (
    Row(
        gone(),
        {"responses": {"name": "orders", "topic_id": topic_id(), "error_message": None}},
        rights=[(DESCRIBE, TOPIC), (DELETE, TOPIC)],
    ),
    Row(gone(), versions=(5, 5), rights=[(DESCRIBE, TOPIC), (DELETE, TOPIC)]),
    *(
        Row(
            gone(None, topic_id()),
            {"responses": {"name": "orders", "topic_id": topic_id()}},
            versions=(6, 6),
            rights=[(DELETE, on)],
            refused=[ErrorCode.TOPIC_AUTHORIZATION_FAILED],
        )
        for on in (TOPIC, CLUSTER)
    ),
    Row(
        gone("missing"),
        {"responses": {"name": "missing", "error_message": SOMETHING}},
        UNKNOWN,
        DELETED,
        rights=[(DESCRIBE, TOPIC, "missing")],
    ),
    *errors(
        DELETED,
        {"responses": {"name": None, "topic_id": UNKNOWN_ID}},
        (ErrorCode.UNKNOWN_TOPIC_ID, gone(None, UNKNOWN_ID), (6, 6)),
    ),
    *errors(
        DELETED,
        {"responses": [{"name": "orders", "topic_id": topic_id()}]},
        (INVALID, gone() | {"topics": [*gone()["topics"], *gone(None, topic_id())["topics"]]}, (6, 6)),
    ),
    *errors(
        DELETED,
        {},
        (INVALID, gone() | {"topics": gone()["topics"] * 2, "topic_names": ["orders"] * 2}),
        (TIMED_OUT, gone() | {"timeout_ms": 0}),
        (INVALID, gone("orders", topic_id()), (6, 6)),
        (INVALID, gone(None), (6, 6)),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, gone("last"), (5, 6), few_changes),
    ),
    *(
        Row(gone(), {}, code, DELETED, versions, settings={"delete_topic_enable": False})
        for code, versions in ((INVALID, (1, 2)), (ErrorCode.TOPIC_DELETION_DISABLED, (3, 6)))
    ),
)

MOVES = (
    Row({"topics": [{"name": "orders"}], "timeout_ms": 0}, {"error_message": SOMETHING}, TIMED_OUT),
    Row(
        moved([0]),
        {"error_message": None, "responses": {"name": "orders", "partitions": {}}},
        rights=[(ALTER, CLUSTER)],
    ),
    *errors(
        MOVED,
        {"responses.partitions.error_message": SOMETHING},
        (UNKNOWN, moved([0], "missing")),
        (UNKNOWN, moved([0], partition=7)),
        (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, moved(None)),
        (ErrorCode.INVALID_REPLICA_ASSIGNMENT, moved([77])),
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
    Row(
        {"topic_partitions": None},
        {"replica_election_results": {"topic": "orders", "partition_result": []}},
        rights=[(ALTER, CLUSTER)],
    ),
    Row({"election_type": 2, "topic_partitions": []}, {"replica_election_results": []}, versions=(1, 2)),
    *errors(
        ELECTED,
        {"replica_election_results.partition_result.error_message": SOMETHING},
        (ErrorCode.ELECTION_NOT_NEEDED, elected(0)),
        (ErrorCode.ELECTION_NOT_NEEDED, elected(0, kind=ElectionType.UNCLEAN), (1, 2)),
        (UNKNOWN, elected(7)),
        (UNKNOWN, elected(0, name="missing")),
        (AWAY, elected(0), None, of_two_brokers),
    ),
    Row(
        {"topic_partitions": None},
        {"replica_election_results": {"topic": "orders", "partition_result.partition_id": 0}},
        AWAY,
        ELECTED,
        before=of_two_brokers,
    ),
    Row(
        {"election_type": ElectionType.UNCLEAN, "topic_partitions": None},
        {"replica_election_results": {"topic": "orders", "partition_result": []}},
        versions=(1, 2),
        before=of_two_brokers,
    ),
    Row({"election_type": 2, "topic_partitions": None}, error=INVALID, versions=(1, 2)),
    Row({"topic_partitions": None, "timeout_ms": 0}, error=TIMED_OUT, versions=(1, 2)),
)

TOPIC_ROWS: Rows = {
    apis.Metadata: METADATA,
    apis.DescribeTopicPartitions: TOPIC_PARTITIONS,
    apis.CreateTopics: CREATIONS,
    apis.CreatePartitions: GROWTHS,
    apis.DeleteTopics: DELETIONS,
    apis.AlterPartitionReassignments: MOVES,
    apis.ElectLeaders: ELECTIONS,
    apis.ListPartitionReassignments: (
        Row({"topics": None}, {"error_message": None, "topics": []}, rights=[(DESCRIBE, CLUSTER)]),
        Row({"topics": [{"name": "orders", "partition_indexes": [0]}]}, {"topics": []}),
    ),
}
