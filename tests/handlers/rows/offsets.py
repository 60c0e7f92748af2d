"""Rows of OffsetCommit, OffsetFetch, OffsetDelete and FindCoordinator."""

from __future__ import annotations

from typing import Any

from korvet.errors import ErrorCode
from korvet.protocol.types import AclOperation, CoordinatorType
from tests.handlers import apis
from tests.handlers.rows.groups import consuming, joined, member, sharing, stable, static
from tests.handlers.scene import CLUSTER, GROUP, TOPIC, TRANSACTIONAL_ID, Scene, topic_id
from tests.handlers.table import Fields, Row, Rows, Where

READ, DELETE, DESCRIBE = AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE
UNKNOWN, UNKNOWN_ID, NO_GROUP, NO_MEMBER, NO_NAME, OTHER_GENERATION, OTHER_EPOCH = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH,
)
IN_PARTITIONS = "topics.partitions.error_code"


def committed(partition: int = 0, topic: str = "orders", metadata: str = "note", **fields: Any) -> Fields:
    one = {"partition_index": partition, "committed_offset": 2, "committed_metadata": metadata}
    one |= {"committed_leader_epoch": 3}
    topics = [{"name": topic, "topic_id": topic_id(topic), "partitions": [one]}]
    return {"group_id": "billing", "generation_id_or_member_epoch": -1, "topics": topics} | fields


def commit(scene: Scene) -> None:
    scene.do(apis.OffsetCommit, **committed())
    scene.services.groups.offsets.flush()


def by_member(**fields: Any) -> Fields:
    named: Fields = {"member_id": member, "generation_id_or_member_epoch": 1}
    return committed(**named | fields)


def subscribed(scene: Scene) -> None:
    """Commit as a member that is subscribed to topic `orders`, which the broker can read from its metadata."""
    consuming(scene)
    scene.do(apis.OffsetCommit, **committed(member_id="m", generation_id_or_member_epoch=1))


def unassigned(scene: Scene) -> None:
    """Join again, after which the group has no assignments of its second generation."""
    stable(scene)
    joined(scene, member_id=scene.member)


def fetched(topics: Any = ("orders",), partition: int = 0, **fields: Any) -> Fields:
    """Ask for offsets of one group, in the form that each version has for it."""
    named = [
        {"name": name, "topic_id": topic_id(name), "partition_indexes": [partition]} for name in topics or ()
    ]
    group = {"group_id": "billing", "topics": None if topics is None else named}
    stable_only = fields.pop("require_stable", False)
    # All offsets of a group are returned once, however often it is named.
    groups = [group | {"member_epoch": -1} | fields] * (2 if topics is None else 1)
    return group | {"groups": groups, "require_stable": stable_only}


def offsets(*partitions: Fields) -> Fields:
    """Return the answer to `fetched`, in the form that each version has for it."""
    topics = (
        [{"name": "orders", "topic_id": topic_id(), "partitions": list(partitions)}] if partitions else []
    )
    return {"topics": topics, "groups": [{"group_id": "billing", "topics": topics}]}


FOUND = {"partition_index": 0, "committed_offset": 2, "committed_leader_epoch": 3, "metadata": "note"}
NOTHING = {"partition_index": 0, "committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


def pending(scene: Scene) -> None:
    """Commit an offset in a transaction, which is open."""
    scene.init_producer()
    by = {"producer_id": scene.producer_id, "producer_epoch": scene.producer_epoch, "generation_id": -1}
    one = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1}
    topics = [{"name": "orders", "partitions": [one]}]
    scene.do(apis.TxnOffsetCommit, transactional_id="tx", group_id="billing", topics=topics, **by)


def forgotten(partition: int = 0, topic: str = "orders", group: str = "billing") -> Fields:
    return {"group_id": group, "topics": [{"name": topic, "partitions": [{"partition_index": partition}]}]}


COMMIT = (
    Row(
        committed(),
        {"topics": {"name": "orders", "topic_id": topic_id(), "partitions": {}}},
        rights=[(READ, GROUP), (READ, TOPIC)],
    ),
    Row(committed(retention_time_ms=5000), versions=(2, 4)),
    Row(by_member(), before=stable),
    *(
        Row(committed(**fields), error=code, at=IN_PARTITIONS, versions=versions)
        for code, fields, versions in (
            (UNKNOWN, {"partition": 7}, None),
            (UNKNOWN, {"topic": "missing"}, (2, 9)),
            (UNKNOWN_ID, {"topic": "missing"}, (10, 10)),
            (ErrorCode.OFFSET_METADATA_TOO_LARGE, {"metadata": "x" * 4097}, None),
            (OTHER_GENERATION, {"generation_id_or_member_epoch": 1, "member_id": "m"}, (2, 8)),
            (NO_GROUP, {"generation_id_or_member_epoch": 1, "member_id": "m"}, (9, 10)),
        )
    ),
    *(
        Row(request, error=code, at=IN_PARTITIONS, before=before, versions=versions)
        for code, request, before, versions in (
            (OTHER_GENERATION, by_member(generation_id_or_member_epoch=7), stable, None),
            (NO_MEMBER, by_member(member_id="nobody"), stable, None),
            (NO_MEMBER, by_member(group_instance_id=""), stable, (7, 10)),
            (ErrorCode.FENCED_INSTANCE_ID, by_member(member_id="x", group_instance_id="i"), static, (7, 10)),
            (ErrorCode.REBALANCE_IN_PROGRESS, by_member(generation_id_or_member_epoch=2), unassigned, None),
            (NO_GROUP, committed(), sharing, None),
            (ErrorCode.UNSUPPORTED_VERSION, by_member(member_id="m"), consuming, (2, 8)),
            (OTHER_EPOCH, by_member(member_id="m", generation_id_or_member_epoch=0), consuming, (9, 10)),
        )
    ),
)

FETCH = (
    Row(fetched(), offsets(FOUND), before=commit, rights=[(DESCRIBE, GROUP), (DESCRIBE, TOPIC)]),
    Row(fetched(), offsets(NOTHING)),
    Row(fetched(None), offsets(FOUND), versions=(2, 10), before=commit),
    Row(fetched(), offsets(NOTHING), before=sharing),
    Row(fetched(None), offsets(), versions=(2, 10)),
    Row(fetched(require_stable=True), offsets(FOUND), before=commit, versions=(7, 10)),
    Row(fetched(member_id="m", member_epoch=1), offsets(FOUND), before=subscribed, versions=(9, 10)),
    Row(fetched(member_id="m", member_epoch=1), offsets(NOTHING), versions=(9, 10)),
    *(
        Row(
            fetched(member_id=who, member_epoch=epoch),
            {"groups.topics": []},
            code,
            "groups.error_code",
            (9, 10),
            before,
        )
        for code, who, epoch, before in (
            (NO_MEMBER, "nobody", 1, subscribed),
            (OTHER_EPOCH, "m", 7, subscribed),
        )
    ),
    Row(
        fetched(["missing", "orders"]),
        {
            "groups": {
                "topics": [
                    {"topic_id": topic_id()},
                    {"topic_id": topic_id("missing"), "partitions": [NOTHING]},
                ]
            }
        },
        UNKNOWN_ID,
        "groups.topics.partitions.error_code",
        (10, 10),
    ),
    *(
        Row(
            fetched(require_stable=True),
            offsets({"committed_offset": -1}),
            ErrorCode.UNSTABLE_OFFSET_COMMIT,
            at,
            versions,
            pending,
        )
        for at, versions in ((IN_PARTITIONS, (7, 7)), (f"groups.{IN_PARTITIONS}", (8, 10)))
    ),
)

FORGET = (
    Row(
        forgotten(),
        {"topics": {"name": "orders", "partitions.partition_index": 0}},
        before=commit,
        rights=[(DELETE, GROUP), (READ, TOPIC)],
    ),
    Row(forgotten(), {"topics": []}, NO_GROUP, before=sharing),
    Row(forgotten(group="missing"), {"topics": []}, NO_GROUP),
    Row(forgotten(group=""), {"topics": []}, NO_NAME),
    Row(forgotten(7), error=UNKNOWN, at=IN_PARTITIONS, before=commit),
    Row(forgotten(), error=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, at=IN_PARTITIONS, before=subscribed),
    Row(
        forgotten(),
        {"topics": []},
        ErrorCode.NON_EMPTY_GROUP,
        before=lambda scene: stable(scene, protocol_type="connect"),
    ),
)


def coordinators(key: str = "billing", kind: CoordinatorType | int = CoordinatorType.GROUP) -> Fields:
    return {"key": key, "key_type": kind, "coordinator_keys": [key]}


BROKER = {"node_id": 0, "host": "127.0.0.1", "port": 9092}
NOWHERE = {"node_id": -1, "host": "", "port": -1, "error_message": Where(bool)}

FIND = (
    Row(coordinators(), BROKER | {"coordinators": [BROKER | {"key": "billing"}]}, rights=[(DESCRIBE, GROUP)]),
    Row(coordinators(), BROKER, versions=(0, 2), rights=[(DESCRIBE, GROUP)]),
    Row(
        coordinators("tx", CoordinatorType.TRANSACTION),
        BROKER | {"coordinators": [BROKER | {"key": "tx"}]},
        versions=(1, 6),
        rights=[(DESCRIBE, TRANSACTIONAL_ID)],
    ),
    Row(
        {"coordinator_keys": ["a", "b", "a"]},
        {"coordinators": [{"key": "a"}, {"key": "b"}, {"key": "a"}]},
        versions=(4, 6),
    ),
    *(
        Row(coordinators("billing:x:0", kind), answer, ErrorCode.INVALID_REQUEST, at, versions, rights=rights)
        for kind, rights in ((CoordinatorType.SHARE, [(AclOperation.CLUSTER_ACTION, CLUSTER)]), (3, ()))
        for at, versions, answer in (
            ("error_code", (1, 3), NOWHERE),
            ("coordinators.error_code", (4, 6), {"coordinators": [NOWHERE]}),
        )
    ),
)

OFFSET_ROWS: Rows = {
    apis.OffsetCommit: COMMIT,
    apis.OffsetFetch: FETCH,
    apis.OffsetDelete: FORGET,
    apis.FindCoordinator: FIND,
}
