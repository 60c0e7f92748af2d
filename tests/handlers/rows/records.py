"""Rows of Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords and DescribeProducers."""

from __future__ import annotations

from typing import Any

from korvet.errors import ErrorCode
from korvet.protocol.types import AclOperation, SpecialTimestamp
from korvet.protocol.wire import ZERO_UUID
from tests.handlers import apis
from tests.handlers.scene import ALICE, CLUSTER, TOPIC, TRANSACTIONAL_ID, Scene, topic_id
from tests.handlers.table import Fields, Row, Rows, Where, errors, steps
from tests.support.batches import TIMESTAMP, ZSTD, Record, batch, forged

READ, WRITE, DELETE, DESCRIBE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
)
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
FAR_MS = 1 << 50
"""A time that is later than any topic allows."""
PRODUCED, FETCHED, IN_PARTITIONS = (
    "responses.partition_responses.error_code",
    "responses.partitions.error_code",
    "topics.partitions.error_code",
)


def produced(
    records: Any = None, partition: int = 0, topic: str = "orders", acks: int = -1, tx: str | None = None
) -> Fields:
    data = [{"index": partition, "records": batch(b"v") if records is None else records}]
    topics = [{"name": topic, "topic_id": topic_id(topic), "partition_data": data}]
    return {"acks": acks, "timeout_ms": 1000, "transactional_id": tx, "topic_data": topics}


NO_ID: Fields = {
    "acks": -1,
    "topic_data": [{"topic_id": ZERO_UUID, "partition_data": [{"records": batch(b"v")}]}],
}


TIMED = forged(batch(b"v"), attributes=8)
"""A batch that claims to have a broker's time."""


def by_its_time(scene: Scene) -> None:
    scene.create("timed", message_timestamp_type="LogAppendTime")


def idempotent(sequence: int, epoch: int = 1, producer_id: int = 77) -> bytes:
    return batch(b"v", producer_id=producer_id, epoch=epoch, sequence=sequence)


def six_sent(scene: Scene) -> None:
    for sequence in range(6):
        scene.produce(idempotent(sequence))


def transactional(epoch: int = 0, producer_id: int | None = None) -> Any:
    return lambda scene: batch(
        b"v",
        producer_id=scene.producer_id if producer_id is None else producer_id,
        epoch=scene.producer_epoch + epoch,
        sequence=0,
        transactional=True,
    )


def fenced(scene: Scene) -> None:
    scene.init_producer()
    old = scene.producer_epoch
    scene.init_producer()
    scene.producer_epoch = old


def open_one(scene: Scene) -> None:
    scene.init_producer()
    scene.produce(transactional()(scene), transactional_id="tx")


def aborted(scene: Scene) -> None:
    scene.do(
        apis.EndTxn, transactional_id="tx", producer_id=scene.producer_id, producer_epoch=scene.producer_epoch
    )


def unconfirmed(scene: Scene) -> None:
    """Append to a topic whose replicas do not exist, so that nobody may read it."""
    scene.create("held", min_insync_replicas="2")
    scene.ask(apis.Produce, **produced(topic="held", acks=1))


def fetched(offset: int = 0, partition: int = 0, topic: str = "orders", **fields: Any) -> Fields:
    of_partition = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    for name in ("current_leader_epoch", "last_fetched_epoch"):
        of_partition |= {name: fields.pop(name, -1)}
    topics = [{"topic": topic, "topic_id": topic_id(topic), "partitions": [of_partition]}]
    return {"max_bytes": 1 << 20, "session_epoch": -1, "topics": topics} | fields


def in_session(session_id: Any, epoch: int) -> Fields:
    return {"max_bytes": 1 << 20, "session_id": session_id, "session_epoch": epoch}


def generation(scene: Scene) -> int:
    return scene.generation


def session(version: int) -> Any:
    """Open a session by names or ids, whose id the scene then has as its generation."""

    def opened(scene: Scene) -> None:
        answer = scene.do(apis.Fetch, version, **fetched(session_epoch=0))
        scene.generation = answer.session_id

    return opened


def zstd(scene: Scene) -> None:
    scene.create("zstd")
    scene.produce(batch(b"v" * 500, codec=ZSTD), topic="zstd")


def asked(timestamp: int, partition: int = 0, topic: str = "orders", epoch: Any = -1) -> Fields:
    one = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": epoch}
    return {"replica_id": -1, "topics": [{"name": topic, "partitions": [one]}]}


def offset_found(**fields: Any) -> Fields:
    return {"topics": [{"name": "orders", "partitions": [{"partition_index": 0} | fields]}]}


def leader_epoch(distance: int) -> Any:
    # In seconds: in a cluster one that a client claims to know begins if it lies in the past.
    def epoch(scene: Scene) -> int:
        answer = scene.do(apis.ListOffsets, **asked(SpecialTimestamp.LATEST))
        return int(answer.topics[0].partitions[0].leader_epoch) + distance

    return epoch


def epoch_end(epoch: Any, current: Any = -1, topic: str = "orders") -> Fields:
    one = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
    return {"topics": [{"topic": topic, "partitions": [one]}]}


def deleted(offset: int, partition: int = 0, topic: str = "orders") -> Fields:
    return {"topics": [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}]}


def producers(partition: int = 0, topic: str = "orders") -> Fields:
    return {"topics": [{"name": topic, "partition_indexes": [partition]}]}


def refused(error: ErrorCode, request: Fields, **fields: Any) -> Row:
    answer = {"responses": [{"partition_responses": [{"index": Where(lambda _: True), "base_offset": -1}]}]}
    return Row(request, answer, error, PRODUCED, **fields)


PRODUCE = (
    Row(
        produced(partition=1),
        {
            "responses": {"name": "orders", "topic_id": topic_id()},
            "responses.partition_responses": {"index": 1, "base_offset": 0},
            "responses.partition_responses.log_append_time_ms": -1,
            "responses.partition_responses.log_start_offset": 0,
        },
        rights=[(WRITE, TOPIC)],
    ),
    Row(produced(), versions=(9, 9), rights=[(WRITE, TOPIC)]),
    Row(
        produced(topic="timed"),
        {"responses.partition_responses.log_append_time_ms": Where(lambda at: at > TIMESTAMP)},
        before=by_its_time,
    ),
    Row({"acks": 1}, {"responses": []}),
    Row(
        produced(transactional(), tx="tx"),
        before=Scene.init_producer,
        versions=(12, 13),
        rights=[(WRITE, TRANSACTIONAL_ID), (WRITE, TOPIC)],
    ),
    refused(ErrorCode.INVALID_REQUIRED_ACKS, produced(acks=2)),
    refused(UNKNOWN, produced(partition=7)),
    refused(UNKNOWN, produced(topic="missing", acks=2), versions=(3, 12)),
    refused(ErrorCode.UNKNOWN_TOPIC_ID, produced(topic="missing", acks=2), versions=(13, 13)),
    refused(ErrorCode.UNKNOWN_TOPIC_ID, NO_ID, versions=(13, 13), session=lambda _scene: ALICE),
    refused(ErrorCode.CORRUPT_MESSAGE, produced(forged(batch(b"v"), crc=1))),
    refused(
        ErrorCode.INVALID_RECORD,
        produced(batch(Record(b"without a key")), topic="compacted"),
        before=lambda scene: scene.create("compacted", cleanup_policy="compact"),
    ),
    refused(ErrorCode.MESSAGE_TOO_LARGE, produced(batch(b"v" * 1_100_000))),
    *(
        refused(ErrorCode.INVALID_TIMESTAMP, produced(records, topic=topic), before=by_its_time)
        for records, topic in (
            (batch(Record(timestamp=FAR_MS)), "orders"),
            (TIMED, "timed"),
            (forged(batch(Record(timestamp=-1)), attributes=8), "orders"),
        )
    ),
    refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, produced(batch(b"v" * 500, codec=ZSTD)), versions=(3, 6)),
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, produced(idempotent(9)), before=six_sent),
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, produced(idempotent(6, epoch=0)), before=six_sent),
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, produced(transactional(), tx="tx"), before=fenced),
    *(
        refused(code, produced(records, tx="tx"), before=Scene.init_producer, versions=versions)
        for code, records, versions in (
            (ErrorCode.INVALID_TXN_STATE, transactional(), (3, 10)),
            (ErrorCode.TRANSACTION_ABORTABLE, transactional(), (11, 11)),
            (ErrorCode.INVALID_PRODUCER_ID_MAPPING, transactional(producer_id=5), None),
        )
    ),
    refused(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, produced(transactional()), before=Scene.init_producer
    ),
    refused(
        ErrorCode.NOT_ENOUGH_REPLICAS,
        produced(topic="held"),
        before=lambda scene: scene.create("held", min_insync_replicas="2"),
    ),
)

NOT_READ: Fields = {"records": [], "high_watermark": -1, "last_stable_offset": -1, "log_start_offset": -1}
FETCH = (
    Row(
        fetched(1),
        {
            "session_id": 0,
            "responses": {"topic": "orders", "topic_id": topic_id()},
            "responses.partitions": {
                "partition_index": 0,
                "high_watermark": 3,
                "last_stable_offset": 3,
                "log_start_offset": 0,
                "aborted_transactions": None,
                "records": Where(lambda records: len(records) > 0),
            },
        },
        rights=[(READ, TOPIC)],
    ),
    *(
        Row(
            fetched(1, **replica),
            {"responses.partitions": NOT_READ},
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            FETCHED,
            (version, version),
            rights=[(AclOperation.CLUSTER_ACTION, CLUSTER)],
            refused=[ErrorCode.TOPIC_AUTHORIZATION_FAILED],
        )
        for version, replica in ((14, {"replica_id": 1}), (18, {"replica_state": {"replica_id": 1}}))
    ),
    Row(fetched(4), versions=(4, 4), rights=[(READ, TOPIC)], before=lambda scene: scene.append(b"a", b"b")),
    Row(fetched(topic="zstd"), {"responses.partitions.records": Where(bool)}, versions=(4, 10), before=zstd),
    Row(
        fetched(3),
        {"responses.partitions.records": Where(lambda records: records[22] == 0)},
        before=lambda scene: scene.produce(TIMED),
    ),
    Row(
        fetched() | {"topics": [fetched(*at)["topics"][0] for at in ((0,), (0, 0, "zstd"), (0, 1))]},
        {"responses": [{"topic_id": topic_id(name)} for name in ("orders", "zstd", "orders")]},
        before=zstd,
    ),
    Row(
        fetched() | {"topics": [*fetched(3)["topics"], *fetched()["topics"]]},
        {"responses.partitions": {"partition_index": 0, "records": Where(bool)}},
    ),
    Row(fetched(isolation_level=1), {"responses.partitions.aborted_transactions": []}),
    Row(fetched(current_leader_epoch=-2, last_fetched_epoch=-2), versions=(9, 18)),
    *(
        Row(
            fetched(3, isolation_level=level),
            {"responses.partitions": {"last_stable_offset": 3, "high_watermark": 4, "records": Where(holds)}},
            before=open_one,
        )
        for level, holds in ((0, bool), (1, lambda records: not records))
    ),
    Row(fetched(session_epoch=0), {"session_id": Where(lambda given: given > 0)}, versions=(7, 18)),
    Row(in_session(generation, 1), {"session_id": generation}, versions=(12, 12), before=session(12)),
    *(
        Row(
            fetched(topic=topic, partition=partition),
            {"responses.partitions": NOT_READ | {"aborted_transactions": []}},
            code,
            FETCHED,
            versions,
        )
        for topic, partition, code, versions in (
            ("orders", 7, UNKNOWN, None),
            ("missing", 0, UNKNOWN, (4, 12)),
            ("missing", 0, ErrorCode.UNKNOWN_TOPIC_ID, (13, 18)),
        )
    ),
    *errors(
        FETCHED,
        {"responses.partitions": NOT_READ | {"aborted_transactions": None}},
        (ErrorCode.OFFSET_OUT_OF_RANGE, fetched(9)),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, fetched(current_leader_epoch=leader_epoch(10**6)), (9, 18)),
        (ErrorCode.FENCED_LEADER_EPOCH, fetched(current_leader_epoch=leader_epoch(-1)), (9, 18)),
    ),
    Row(
        in_session(5, 1),
        {"session_id": 0, "responses": []},
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        versions=(7, 18),
    ),
    *errors(
        "error_code",
        {"session_id": 0},
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, in_session(generation, 5), (7, 12), session(12)),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, in_session(generation, 1), (13, 18), session(12)),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, in_session(generation, 1), (7, 12), session(13)),
    ),
)

LIST_OFFSETS = (
    Row(
        asked(SpecialTimestamp.LATEST),
        offset_found(offset=3, timestamp=-1, leader_epoch=leader_epoch(0)),
        rights=[(DESCRIBE, TOPIC)],
    ),
    Row(asked(1001), offset_found(offset=1, timestamp=1001, leader_epoch=leader_epoch(0))),
    Row(asked(2000), offset_found(offset=-1, timestamp=-1, leader_epoch=-1)),
    Row(asked(SpecialTimestamp.EARLIEST) | {"isolation_level": 1}, offset_found(offset=0)),
    Row(asked(SpecialTimestamp.MAX_TIMESTAMP), offset_found(offset=2, timestamp=1002), versions=(7, 11)),
    Row(asked(SpecialTimestamp.EARLIEST_LOCAL), offset_found(offset=0), versions=(8, 11)),
    Row(asked(SpecialTimestamp.LATEST_TIERED), offset_found(offset=-1), versions=(9, 11)),
    Row(asked(SpecialTimestamp.EARLIEST_PENDING_UPLOAD), offset_found(offset=-1), versions=(11, 11)),
    Row(asked(SpecialTimestamp.LATEST, epoch=1), versions=(1, 3)),
    *(
        Row(
            asked(timestamp), offset_found(offset=-1), ErrorCode.UNSUPPORTED_VERSION, IN_PARTITIONS, (1, last)
        )
        for timestamp, last in (
            (SpecialTimestamp.MAX_TIMESTAMP, 6),
            (SpecialTimestamp.EARLIEST_LOCAL, 7),
            (SpecialTimestamp.LATEST_TIERED, 8),
            (SpecialTimestamp.EARLIEST_PENDING_UPLOAD, 10),
            (-7, 11),
        )
    ),
    *errors(
        IN_PARTITIONS,
        {},
        (UNKNOWN, asked(-1, partition=7)),
        (UNKNOWN, asked(-1, topic="missing")),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, asked(-1, epoch=leader_epoch(10**6)), (4, 11)),
        (ErrorCode.FENCED_LEADER_EPOCH, asked(-1, epoch=leader_epoch(-1)), (4, 11)),
        (ErrorCode.INVALID_REQUEST, {"replica_id": -1, "topics": asked(-1)["topics"] * 2}),
        (ErrorCode.LEADER_NOT_AVAILABLE, asked(-1, topic="held"), (1, 4), unconfirmed),
        (ErrorCode.OFFSET_NOT_AVAILABLE, asked(-1, topic="held"), (5, 11), unconfirmed),
    ),
)

EPOCH_ENDS = (
    Row(
        epoch_end(leader_epoch(0), leader_epoch(0)),
        {"topics": {"topic": "orders", "partitions": {"leader_epoch": leader_epoch(0), "end_offset": 3}}},
        rights=[(DESCRIBE, TOPIC)],
    ),
    Row(
        epoch_end(leader_epoch(5)),
        {"topics.partitions": {"leader_epoch": -1, "end_offset": -1}},
        rights=[(AclOperation.CLUSTER_ACTION, CLUSTER)],
        refused=[ErrorCode.TOPIC_AUTHORIZATION_FAILED],
    ),
    *errors(
        IN_PARTITIONS,
        {},
        (UNKNOWN, epoch_end(1, topic="missing")),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, epoch_end(1, leader_epoch(10**6))),
        (ErrorCode.FENCED_LEADER_EPOCH, epoch_end(1, leader_epoch(-1))),
    ),
)

DELETE_RECORDS = (
    Row(deleted(2), {"topics": {"name": "orders", "partitions.low_watermark": 2}}, rights=[(DELETE, TOPIC)]),
    Row(deleted(-1), {"topics.partitions.low_watermark": 3}),
    *(
        Row(request, {"topics.partitions.low_watermark": -1}, code, IN_PARTITIONS, before=before)
        for request, code, before in (
            (deleted(4), ErrorCode.OFFSET_OUT_OF_RANGE, lambda _scene: None),
            (deleted(0, partition=7), UNKNOWN, lambda _scene: None),
            (
                deleted(0, topic="compacted"),
                ErrorCode.POLICY_VIOLATION,
                lambda scene: scene.create("compacted", cleanup_policy="compact"),
            ),
            (deleted(-1, topic="held"), ErrorCode.OFFSET_NOT_AVAILABLE, unconfirmed),
        )
    ),
)

DESCRIBE_PRODUCERS = (
    Row(
        producers(),
        {
            "topics.name": "orders",
            "topics.partitions.error_message": None,
            "topics.partitions.active_producers": {
                "producer_id": 77,
                "producer_epoch": 1,
                "last_sequence": 5,
                "last_timestamp": Where(lambda given: given > 0),
                "coordinator_epoch": -1,
                "current_txn_start_offset": -1,
            },
        },
        before=six_sent,
        rights=[(READ, TOPIC)],
    ),
    Row(producers(), {"topics.partitions.active_producers.current_txn_start_offset": 3}, before=open_one),
    Row(
        producers(),
        {"topics.partitions.active_producers": {"coordinator_epoch": 0, "current_txn_start_offset": -1}},
        before=steps(open_one, aborted),
    ),
    Row(producers(topic="a b"), {"topics.name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION, IN_PARTITIONS),
    Row(producers(7), {"topics.partitions.error_message": Where(bool)}, UNKNOWN, IN_PARTITIONS),
)

RECORD_ROWS: Rows = {
    apis.Produce: PRODUCE,
    apis.Fetch: FETCH,
    apis.ListOffsets: LIST_OFFSETS,
    apis.OffsetForLeaderEpoch: EPOCH_ENDS,
    apis.DeleteRecords: DELETE_RECORDS,
    apis.DescribeProducers: DESCRIBE_PRODUCERS,
}
