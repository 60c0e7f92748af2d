"""Rows of the requests of transactional producers, and of those who administer transactions."""

from __future__ import annotations

from typing import Any

from korvet.errors import ErrorCode
from korvet.protocol.types import AclOperation
from tests.handlers import apis
from tests.handlers.rows.groups import consuming, member, sharing, stable, static
from tests.handlers.rows.records import fenced, open_one
from tests.handlers.scene import CLUSTER, GROUP, TOPIC, TRANSACTIONAL_ID, Scene
from tests.handlers.table import Fields, Row, Rows, Where, steps

READ, WRITE, ALTER, DESCRIBE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
)
UNKNOWN, INVALID, NO_MAPPING, FENCED, OTHER_EPOCH, NO_STATE, ABORTABLE, CONCURRENT, NOT_ATTEMPTED = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
)
ILLEGAL, UNKNOWN_ID = ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID


def producer_id(scene: Scene) -> int:
    return scene.producer_id


def epoch(distance: int) -> Any:
    return lambda scene: scene.producer_epoch + distance


BY: Fields = {"transactional_id": "tx", "producer_id": producer_id, "producer_epoch": epoch(0)}
NOBODY: Fields = {"transactional_id": "tx", "producer_id": 5, "producer_epoch": 0}


def not_completed(scene: Scene) -> None:
    """End a transaction whose marker cannot be written."""
    open_one(scene)
    state = "{korvet:orders:0}:state"
    scene.raw.rename(state, f"{state}:aside")
    scene.raw.set(state, "no state")
    scene.do(apis.EndTxn, 4, **BY, committed=True)


def ended(scene: Scene) -> None:
    open_one(scene)
    scene.do(apis.EndTxn, 4, **BY, committed=True)


def joins(by: Fields, *partitions: int, topic: str = "orders", **fields: Any) -> Fields:
    """Add partitions as a client does, and from version 4 on as a broker."""
    topics = [{"name": topic, "partitions": list(partitions or (0,))}]
    return {
        **{f"v3_and_below_{name}": value for name, value in by.items()},
        "v3_and_below_topics": topics,
        "transactions": [{**by, "topics": topics} | fields],
    }


def joined(*partitions: int) -> Fields:
    results = [{"partition_index": index} for index in partitions]
    topics = [{"name": "orders", "results_by_partition": results}]
    return {
        "results_by_topic_v3_and_below": topics,
        "results_by_transaction": [{"transactional_id": "tx", "topic_results": topics}],
    }


DESCRIBED_ERROR = "transaction_states.error_code"
PARTITIONS_ADDED = {
    3: "results_by_topic_v3_and_below.results_by_partition.partition_error_code",
    5: "results_by_transaction.topic_results.results_by_partition.partition_error_code",
}
"""Where an error stands up to a version."""


def cannot_join(code: ErrorCode, request: Fields, first: int = 0, last: int = 5, **fields: Any) -> list[Row]:
    bounds = ((max(first, 0), min(last, 3), 3), (max(first, 4), min(last, 5), 5))
    return [
        Row(request, {}, code, PARTITIONS_ADDED[form], (low, high), **fields)
        for low, high, form in bounds
        if low <= high
    ]


ADD_PARTITIONS = (
    Row(joins(BY, 0, 1), joined(0, 1), before=Scene.init_producer),
    Row(
        joins(BY),
        versions=(3, 3),
        before=Scene.init_producer,
        rights=[(WRITE, TRANSACTIONAL_ID), (WRITE, TOPIC)],
    ),
    Row(joins(BY), before=Scene.init_producer, rights=[(AclOperation.CLUSTER_ACTION, CLUSTER)]),
    Row(joins(BY, verify_only=True), joined(0), versions=(4, 5), before=open_one),
    Row(joins(BY, 1, 0, 1), joined(1, 0, 1), before=Scene.init_producer),
    Row({"transactions": []}, {"results_by_transaction": []}, versions=(4, 5)),
    *cannot_join(UNKNOWN, joins(BY, topic="missing"), before=Scene.init_producer),
    # All partitions of a transaction join, or none.
    *cannot_join(UNKNOWN, joins(BY, 0, 7), before=Scene.init_producer, also=[NOT_ATTEMPTED]),
    *cannot_join(OTHER_EPOCH, joins(BY), last=1, before=fenced),
    *cannot_join(FENCED, joins(BY), first=2, before=fenced),
    *cannot_join(NO_MAPPING, joins(NOBODY), before=Scene.init_producer),
    *cannot_join(INVALID, joins({**BY, "transactional_id": ""}), before=Scene.init_producer),
    *cannot_join(ABORTABLE, joins(BY, verify_only=True), first=4, before=Scene.init_producer),
    *cannot_join(CONCURRENT, joins(BY), before=not_completed),
)


def offset_added(**fields: Any) -> Fields:
    return {**BY, "group_id": "billing"} | fields


ADD_OFFSETS = (
    Row(offset_added(), before=Scene.init_producer, rights=[(WRITE, TRANSACTIONAL_ID), (READ, GROUP)]),
    Row(offset_added(group_id=""), before=Scene.init_producer),
    *(
        Row(request, {}, code, versions=versions, before=before)
        for code, request, before, versions in (
            (INVALID, offset_added(transactional_id=""), Scene.init_producer, None),
            (OTHER_EPOCH, offset_added(), fenced, (0, 1)),
            (FENCED, offset_added(), fenced, (2, 4)),
            (NO_MAPPING, offset_added(producer_id=5), Scene.init_producer, None),
            (CONCURRENT, offset_added(), not_completed, None),
        )
    ),
)

END = (
    Row(
        {**BY, "committed": True},
        {"producer_id": producer_id, "producer_epoch": epoch(1)},
        before=open_one,
        rights=[(WRITE, TRANSACTIONAL_ID)],
    ),
    Row(
        {**BY, "committed": False}, {"producer_id": producer_id, "producer_epoch": epoch(1)}, before=open_one
    ),
    Row({**BY, "committed": True}, {"producer_id": producer_id}, versions=(0, 4), before=ended),
    # A producer that does not know what became of a request to add partitions (KIP-890).
    Row(
        {**BY, "committed": False}, {"producer_epoch": epoch(1)}, versions=(5, 5), before=Scene.init_producer
    ),
    *(
        Row(
            {**by, "committed": commit},
            {"producer_id": -1, "producer_epoch": -1},
            code,
            versions=versions,
            before=before,
        )
        for code, by, commit, before, versions in (
            (NO_STATE, BY, True, Scene.init_producer, None),
            (NO_STATE, BY, False, Scene.init_producer, (0, 4)),
            (NO_STATE, BY, False, ended, (0, 4)),
            (OTHER_EPOCH, BY, True, fenced, (0, 1)),
            (FENCED, BY, True, fenced, (2, 5)),
            (NO_MAPPING, NOBODY, True, Scene.init_producer, None),
            (INVALID, {**BY, "transactional_id": ""}, True, Scene.init_producer, None),
        )
    ),
)


def initialized(name: str | None = "tx", timeout_ms: int = 60_000, **fields: Any) -> Fields:
    identity = {"producer_id": -1, "producer_epoch": -1}
    return {"transactional_id": name, "transaction_timeout_ms": timeout_ms} | identity | fields


def twice_fenced(scene: Scene) -> None:
    fenced(scene)
    scene.do(apis.InitProducerId, **initialized())


INIT = (
    *(
        Row(
            initialized(None),
            {"producer_id": Where(lambda given: given >= 0), "producer_epoch": 0},
            rights=[right],
            refused=[ErrorCode.CLUSTER_AUTHORIZATION_FAILED],
        )
        for right in ((WRITE, TOPIC), (AclOperation.IDEMPOTENT_WRITE, CLUSTER))
    ),
    Row(
        initialized(None, producer_id=5, producer_epoch=0),
        {"producer_id": Where(lambda given: given != 5), "producer_epoch": 0},
        versions=(3, 5),
    ),
    Row(
        initialized(),
        {"producer_id": producer_id, "producer_epoch": 1},
        before=Scene.init_producer,
        rights=[(WRITE, TRANSACTIONAL_ID)],
    ),
    Row(
        initialized(producer_id=producer_id, producer_epoch=epoch(0)),
        {"producer_id": producer_id, "producer_epoch": 1},
        versions=(3, 5),
        before=Scene.init_producer,
    ),
    *(
        Row(request, {"producer_id": -1, "producer_epoch": -1}, code, versions=versions, before=before)
        for code, request, before, versions in (
            (INVALID, initialized(""), lambda _scene: None, None),
            (INVALID, initialized(producer_id=5), lambda _scene: None, (3, 5)),
            (ErrorCode.INVALID_TRANSACTION_TIMEOUT, initialized(timeout_ms=0), lambda _scene: None, None),
            *(
                (code, initialized(producer_id=known, producer_epoch=known_epoch), before, versions)
                for code, versions in ((OTHER_EPOCH, (3, 3)), (FENCED, (4, 5)))
                for known, known_epoch, before in (
                    (producer_id, epoch(0), twice_fenced),
                    (-5, -5, Scene.init_producer),
                )
            ),
            (CONCURRENT, initialized(), not_completed, None),
        )
    ),
)


def markers(
    number: Any = 5, at_epoch: Any = 0, topic: str = "orders", partition: int = 0, *, second: bool = False
) -> Fields:
    return {
        "markers": [
            {
                "producer_id": number,
                "producer_epoch": at_epoch,
                "transaction_result": False,
                "topics": [{"name": topic, "partition_indexes": [partition]}],
                "transaction_version": 2 if second else 0,
            }
        ]
    }


WRITTEN = "markers.topics.partitions.error_code"
MARKERS = (
    Row(
        markers(producer_id, epoch(0)),
        {"markers": {"producer_id": producer_id, "topics": {"name": "orders", "partitions": {}}}},
        before=open_one,
    ),
    *(Row(markers(), rights=[(operation, CLUSTER)]) for operation in (ALTER, AclOperation.CLUSTER_ACTION)),
    Row(markers(producer_id, epoch(1), second=True), before=open_one),
    Row(markers(producer_id, epoch(-1)), error=OTHER_EPOCH, at=WRITTEN, before=open_one),
    # A marker of the second protocol has a later epoch than its transaction (KIP-1228).
    Row(
        markers(producer_id, epoch(0), second=True),
        error=OTHER_EPOCH,
        at=WRITTEN,
        versions=(2, 2),
        before=open_one,
    ),
    Row(markers(partition=7), error=UNKNOWN, at=WRITTEN),
    Row(markers(topic="missing"), error=UNKNOWN, at=WRITTEN),
)


def committed(partition: int = 0, metadata: str = "", **fields: Any) -> Fields:
    one = {"partition_index": partition, "committed_offset": 2, "committed_metadata": metadata}
    one |= {"committed_leader_epoch": -1}
    topics = [{"name": "orders", "partitions": [one]}]
    return {**BY, "group_id": "billing", "generation_id": -1, "topics": topics} | fields


def added(scene: Scene, **fields: Any) -> None:
    """Let the group join a transaction, which versions before 5 do not do themselves."""
    scene.init_producer()
    scene.do(apis.AddOffsetsToTxn, **offset_added(**fields))


def added_and_fenced(scene: Scene) -> None:
    added(scene)
    former = scene.producer_epoch
    scene.init_producer()
    scene.producer_epoch = former


IN_PARTITIONS = "topics.partitions.error_code"
BY_MEMBER: Fields = {"member_id": member, "generation_id": 1}
COMMIT = (
    Row(
        committed(),
        {"topics": {"name": "orders", "partitions.partition_index": 0}},
        before=added,
        rights=[(WRITE, TRANSACTIONAL_ID), (READ, GROUP), (READ, TOPIC)],
    ),
    Row(committed(), versions=(5, 5), before=Scene.init_producer),
    Row(committed(**BY_MEMBER), versions=(3, 5), before=steps(stable, added)),
    *(
        Row(request, {}, code, IN_PARTITIONS, versions, before)
        for code, request, before, versions in (
            (ErrorCode.INVALID_GROUP_ID, committed(group_id=""), added, None),
            (INVALID, committed(transactional_id=""), added, None),
            (UNKNOWN, committed(7, group_id="", transactional_id=""), added, None),
            (UNKNOWN, committed(7, producer_id=5), added, None),
            (ErrorCode.OFFSET_METADATA_TOO_LARGE, committed(metadata="x" * 4097), added, None),
            (NO_STATE, committed(), Scene.init_producer, (0, 3)),
            (ABORTABLE, committed(), Scene.init_producer, (4, 4)),
            (OTHER_EPOCH, committed(), added_and_fenced, None),
            (NO_MAPPING, committed(producer_id=5), added, None),
            (ILLEGAL, committed(member_id="m", generation_id=3), added, (3, 5)),
            (ILLEGAL, committed(**BY_MEMBER | {"generation_id": 7}), steps(stable, added), (3, 5)),
            (ILLEGAL, committed(member_id="m", generation_id=0), steps(consuming, added), (3, 5)),
            (UNKNOWN_ID, committed(member_id="m", generation_id=1), steps(stable, added), (3, 5)),
            (UNKNOWN_ID, committed(**BY_MEMBER | {"group_instance_id": ""}), steps(stable, added), (3, 5)),
            (
                ErrorCode.FENCED_INSTANCE_ID,
                committed(member_id="m", generation_id=1, group_instance_id="i"),
                steps(static, added),
                (3, 5),
            ),
            (ErrorCode.GROUP_ID_NOT_FOUND, committed(), steps(sharing, added), None),
        )
    ),
    Row(committed(), {}, CONCURRENT, IN_PARTITIONS, (5, 5), not_completed),
)

TRANSACTION: Fields = {
    "transactional_id": "tx",
    "transaction_state": "Ongoing",
    "transaction_timeout_ms": 60_000,
    "transaction_start_time_ms": Where(lambda given: given > 0),
    "producer_id": producer_id,
    "producer_epoch": 0,
    "topics": [{"topic": "orders", "partitions": [0]}],
}
LISTED: Fields = {"transactional_id": "tx", "producer_id": producer_id, "transaction_state": "Ongoing"}

TRANSACTION_ROWS: Rows = {
    apis.InitProducerId: INIT,
    apis.AddPartitionsToTxn: ADD_PARTITIONS,
    apis.AddOffsetsToTxn: ADD_OFFSETS,
    apis.EndTxn: END,
    apis.WriteTxnMarkers: MARKERS,
    apis.TxnOffsetCommit: COMMIT,
    apis.DescribeTransactions: (
        Row(
            {"transactional_ids": ["tx", "tx"]},
            {"transaction_states": [TRANSACTION]},
            before=open_one,
            rights=[(DESCRIBE, TRANSACTIONAL_ID)],
        ),
        Row(
            {"transactional_ids": ["tx"]},
            before=open_one,
            rights=[(DESCRIBE, TOPIC), (DESCRIBE, TRANSACTIONAL_ID)],
            refused=[ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED],
        ),
        *(
            Row(
                {"transactional_ids": [name]},
                {"transaction_states.transactional_id": name},
                code,
                DESCRIBED_ERROR,
            )
            for name, code in (("missing", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), ("", INVALID))
        ),
    ),
    apis.ListTransactions: (
        Row(
            {},
            {"transaction_states": [LISTED], "unknown_state_filters": []},
            before=open_one,
            rights=[(DESCRIBE, TRANSACTIONAL_ID)],
            refused=[],
        ),
        Row(
            {"state_filters": ["Empty", "Nonsense", "Dead"]},
            {"transaction_states": [], "unknown_state_filters": ["Nonsense"]},
            before=open_one,
        ),
        Row(
            {"state_filters": ["Ongoing", "PrepareCommit"]}, {"transaction_states": [LISTED]}, before=open_one
        ),
        Row({"producer_id_filters": [5]}, {"transaction_states": []}, before=open_one),
        Row({"duration_filter": 3_600_000}, {"transaction_states": []}, versions=(1, 2), before=open_one),
        Row(
            {"transactional_id_pattern": "t."},
            {"transaction_states": [LISTED]},
            versions=(2, 2),
            before=open_one,
        ),
        Row({"transactional_id_pattern": "t"}, {"transaction_states": []}, versions=(2, 2), before=open_one),
        Row(
            {"transactional_id_pattern": "("},
            {"transaction_states": []},
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            versions=(2, 2),
        ),
    ),
}
