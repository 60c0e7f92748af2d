"""Rows of the requests of members of share groups, and of what is asked about where these are."""

from __future__ import annotations

from typing import Any

from korvet.errors import ErrorCode
from korvet.protocol.types import AclOperation, ResourceType
from korvet.protocol.wire import ZERO_UUID
from korvet.share.types import ACCEPT, RENEW
from tests.handlers import apis
from tests.handlers.rows.configs import altered
from tests.handlers.rows.consumer_groups import ASKED, OWNED, described, describing, lowered
from tests.handlers.rows.groups import sharing, stable
from tests.handlers.rows.records import transactional
from tests.handlers.scene import ALICE, GROUP, TOPIC, Scene, topic_id
from tests.handlers.table import Fields, Row, Rows, Where, codes, steps

READ, DELETE, DESCRIBE = AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE
NO_GROUP, INVALID, UNKNOWN, NOT_EMPTY, NO_FEATURE, NO_SESSION, OTHER_EPOCH = (
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NON_EMPTY_GROUP,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
)
FETCHED, ACKNOWLEDGED = "responses.partitions.error_code", "responses.partitions.acknowledge_error_code"
LIMITS = {"max_bytes": 1 << 20, "max_records": 500, "batch_size": 500}


def beating(epoch: int = 0, **fields: Any) -> Fields:
    names = {"subscribed_topic_names": ["orders"]} if epoch == 0 else {"subscribed_topic_names": None}
    return {"group_id": "billing", "member_id": "m", "member_epoch": epoch} | names | fields


def no_heartbeat(code: ErrorCode, request: Fields, before: Any = lambda _scene: None, **fields: Any) -> Row:
    return Row(request, {"error_message": Where(bool), "assignment": None}, code, before=before, **fields)


HEARTBEAT = (
    Row(
        beating(),
        {
            "error_message": None,
            "member_id": "m",
            "member_epoch": 1,
            "heartbeat_interval_ms": 5000,
            "assignment.topic_partitions": {"topic_id": topic_id(), "partitions": [0, 1]},
        },
        rights=[(READ, GROUP), (DESCRIBE, TOPIC)],
    ),
    Row(beating(1), {"member_epoch": 1, "assignment": None}, before=sharing),
    Row(beating(-1), {"member_epoch": -1}, before=sharing),
    no_heartbeat(INVALID, beating(member_id="")),
    no_heartbeat(NO_GROUP, beating(5)),
    no_heartbeat(NO_GROUP, beating(), stable),
    no_heartbeat(ErrorCode.UNKNOWN_MEMBER_ID, beating(1, member_id="other"), sharing),
    no_heartbeat(ErrorCode.FENCED_MEMBER_EPOCH, beating(9), sharing),
    no_heartbeat(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        beating(member_id="other"),
        sharing,
        settings={"group_share_max_size": 1},
    ),
    no_heartbeat(NO_FEATURE, beating(), lowered("share.version")),
)

DESCRIBE_GROUP = (
    Row(
        ASKED,
        described(
            error_message=None,
            group_state="Stable",
            group_epoch=1,
            assignment_epoch=1,
            assignor_name="simple",
            members=[
                {
                    "member_id": "m",
                    "rack_id": None,
                    "member_epoch": 1,
                    "client_id": "wire",
                    "client_host": "/10.0.0.1",
                    "subscribed_topic_names": ["orders"],
                    "assignment": OWNED,
                }
            ],
            authorized_operations=-(2**31),
        ),
        before=sharing,
    ),
    *describing(sharing),
    Row(
        {"group_ids": ["billing"]},
        described(members=[]),
        NO_FEATURE,
        before=lowered("share.version"),
        at="groups.error_code",
    ),
)


def place(partition: int = 0, topic: str = "orders", acks: Any = ()) -> list[Fields]:
    batches = [
        {"first_offset": first, "last_offset": last, "acknowledge_types": [kind]}
        for first, last, kind in acks
    ]
    one = {"partition_index": partition, "acknowledgement_batches": batches}
    return [{"topic_id": topic_id(topic), "partitions": [one]}]


def fetching(epoch: int = 0, topics: Any = None, **fields: Any) -> Fields:
    return (
        {
            "group_id": "billing",
            "member_id": "m",
            "share_session_epoch": epoch,
            "topics": place() if topics is None else topics,
        }
        | LIMITS
        | fields
    )


def acknowledging(epoch: int = 1, acks: Any = ((0, 0, ACCEPT),), **fields: Any) -> Fields:
    return {
        "group_id": "billing",
        "member_id": "m",
        "share_session_epoch": epoch,
        "topics": place(acks=acks),
    } | fields


def from_the_start(scene: Scene) -> None:
    """Let the group begin with the oldest record."""
    config = altered(ResourceType.GROUP, "billing", "share.auto.offset.reset", "earliest")
    scene.do(apis.IncrementalAlterConfigs, **config)
    sharing(scene)


def three_batches(scene: Scene) -> None:
    from_the_start(scene)
    for value in (b"3", b"4"):
        scene.append(value)


def begins(reset: str, isolation: str = "read_uncommitted") -> Any:
    """Return what sets where a group begins, and what it reads."""

    def before(scene: Scene) -> None:
        for key, value in (("share.auto.offset.reset", reset), ("share.isolation.level", isolation)):
            config = altered(ResourceType.GROUP, "billing", key, value)
            scene.do(apis.IncrementalAlterConfigs, **config)
        sharing(scene)

    return before


def write_uncommitted(scene: Scene) -> None:
    scene.init_producer()
    scene.produce(transactional()(scene), partition=1, transactional_id="tx")


def forgets(scene: Scene) -> None:
    """Open a session at the end of the log, and append a record."""
    sharing(scene)
    scene.do(apis.ShareFetch, **fetching())
    scene.append(b"new")


def grows(scene: Scene) -> None:
    """Ask for a partition that is created after that."""
    sharing(scene)
    assert codes(scene.ask(apis.ShareFetch, **fetching(topics=place(2))))
    scene.do(apis.CreatePartitions, topics=[{"name": "orders", "count": 3}], timeout_ms=1000)


def acquires(*ranges: tuple[int, int]) -> Fields:
    acquired_records = [{"first_offset": first, "last_offset": last} for first, last in ranges]
    return {"responses": [{"partitions": [{"acquired_records": acquired_records}]}]}


def acquired(scene: Scene) -> None:
    """Open a session, and acquire all three records in it."""
    from_the_start(scene)
    scene.do(apis.ShareFetch, **fetching())


def accepted(first: int, last: int) -> Any:
    return steps(
        acquired, lambda scene: scene.do(apis.ShareAcknowledge, **acknowledging(1, [(first, last, ACCEPT)]))
    )


def acquired_by_alice(scene: Scene) -> None:
    from_the_start(scene)
    for resource in (GROUP, TOPIC):
        scene.allow(READ, resource)
    assert not codes(scene.ask(apis.ShareFetch, session=ALICE, **fetching()))
    scene.revoke_all()


RENEWAL = {"is_renew_ack": True, "max_bytes": 0, "max_records": 0}
FETCH = (
    Row(
        fetching(),
        {
            "error_message": None,
            "acquisition_lock_timeout_ms": 30_000,
            "responses.topic_id": topic_id(),
            "responses.partitions": {
                "partition_index": 0,
                "records": Where(bool),
                "acquired_records": {"first_offset": 0, "last_offset": 2, "delivery_count": 1},
                "current_leader": {"leader_id": 0, "leader_epoch": 0},
            },
        },
        before=from_the_start,
    ),
    Row(fetching(), acquires(), rights=[(READ, GROUP), (READ, TOPIC)]),
    Row(
        fetching(1, place(1)),
        {"responses.partitions": {"partition_index": 1, "acquired_records": []}},
        before=acquired,
    ),
    Row(
        fetching(1, place(acks=[(0, 2, ACCEPT)])),
        {"responses.partitions": {"acquired_records": [], "records": b""}},
        before=acquired,
    ),
    Row(fetching(-1, place(acks=[(0, 2, ACCEPT)])), {"responses.partitions": {}}, before=acquired),
    Row(
        fetching(1, place(acks=[(0, 2, RENEW)]), **RENEWAL),
        {"responses.partitions": {}},
        versions=(2, 2),
        before=acquired,
    ),
    Row(fetching(), acquires((0, 2)), before=begins("by_duration:P36500D")),
    Row(fetching(), acquires(), before=begins("by_duration:PT1H")),
    *(
        Row(fetching(**fields), acquires(*ranges), versions=versions, before=three_batches)
        for versions, fields, ranges in (
            ((1, 2), {}, [(0, 4)]),
            ((1, 2), {"batch_size": 4}, [(0, 3), (4, 4)]),
            ((2, 2), {"batch_size": 1, "share_acquire_mode": 1}, [(0, 4)]),
            ((1, 2), {"max_records": 2}, [(0, 2)]),
            ((2, 2), {"max_records": 2, "share_acquire_mode": 1}, [(0, 1)]),
        )
    ),
    Row(
        fetching(batch_size=1),
        {"responses.partitions.acquired_records": [{}, {}, {}]},
        before=from_the_start,
        settings={"storage_format": "record"},
    ),
    *(
        Row(fetching(topics=place(1)), answer, before=steps(begins("earliest", isolation), write_uncommitted))
        for isolation, answer in (("read_uncommitted", acquires((0, 0))), ("read_committed", acquires()))
    ),
    Row(fetching(1, []), acquires((3, 3)), before=forgets),
    Row(fetching(max_records=0), {"responses": []}, before=from_the_start),
    Row(fetching(1, []), {"responses.partitions.partition_index": 2}, before=grows),
    Row(
        fetching(1, [], forgotten_topics_data=[{"topic_id": topic_id(), "partitions": [0]}]),
        {"responses": []},
        before=forgets,
    ),
    *(
        Row(request, {"responses": []}, code, versions=versions, before=before, settings=settings)
        for code, request, before, versions, settings in (
            (INVALID, fetching(group_id=""), sharing, None, {}),
            (INVALID, fetching(member_id=""), sharing, None, {}),
            (INVALID, fetching(member_id="m" * 37), sharing, None, {}),
            (INVALID, fetching(topics=place() * 2), sharing, None, {}),
            (INVALID, fetching(topics=place(acks=[(0, 0, ACCEPT)])), sharing, None, {}),
            (INVALID, fetching(1, place(acks=[(0, 2, RENEW)]), is_renew_ack=True), acquired, (2, 2), {}),
            (NO_SESSION, fetching(1, place() * 2), sharing, None, {}),
            (OTHER_EPOCH, fetching(5), acquired, None, {"workers": 1}),
            (NO_FEATURE, fetching(), lowered("share.version"), None, {}),
            (
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                fetching(member_id="n"),
                acquired,
                None,
                {"group_share_max_share_sessions": 1},
            ),
        )
    ),
    Row(fetching(topics=place(7)), error=UNKNOWN, at=FETCHED, before=sharing),
    Row(
        fetching(topics=place(topic="missing")), error=ErrorCode.UNKNOWN_TOPIC_ID, at=FETCHED, before=sharing
    ),
    *(
        Row(fetching(epoch, place(acks=acks)), error=code, at=ACKNOWLEDGED, versions=(2, 2), before=before)
        for code, before, epoch, acks in (
            (ErrorCode.INVALID_RECORD_STATE, accepted(2, 2), 2, [(2, 2, ACCEPT)]),
            (INVALID, acquired, 1, [(2, 3, ACCEPT)]),
            (INVALID, acquired, 1, [(5, 4, ACCEPT)]),
        )
    ),
)

ACKNOWLEDGE = (
    Row(
        acknowledging(acks=[(0, 2, ACCEPT)]),
        {
            "error_message": None,
            "acquisition_lock_timeout_ms": 30_000,
            "responses.topic_id": topic_id(),
            "responses.partitions": {"partition_index": 0, "error_message": None},
        },
        before=acquired,
    ),
    Row(acknowledging(acks=[(0, 2, RENEW)], is_renew_ack=True), versions=(2, 2), before=acquired),
    Row(acknowledging(topics=place()), {"responses": []}, before=acquired),
    Row(acknowledging(2, [(0, 1, ACCEPT)]), versions=(2, 2), before=accepted(0, 1)),
    *(
        Row(request, {"responses": []}, code, before=before)
        for code, request, before in (
            (INVALID, acknowledging(group_id=""), acquired),
            (INVALID, acknowledging(member_id=""), acquired),
            (OTHER_EPOCH, acknowledging(0), acquired),
            (NO_FEATURE, acknowledging(), lowered("share.version")),
        )
    ),
    Row(acknowledging(5), {"responses": []}, OTHER_EPOCH, before=acquired, settings={"workers": 1}),
    Row(acknowledging(), {"responses": []}, NO_SESSION, before=sharing, settings={"workers": 1}),
    Row(acknowledging(), {"responses": []}, NO_SESSION),
    # Another worker may have served the requests between, and may have the session.
    Row(acknowledging(5), before=acquired, settings={"workers": 2}),
    Row(
        acknowledging(), {}, ErrorCode.INVALID_RECORD_STATE, FETCHED, before=sharing, settings={"workers": 2}
    ),
    Row(acknowledging(-1, topics=[]), {"responses": []}, before=sharing, settings={"workers": 2}),
    *(
        Row(acknowledging(topics=topics), {"responses": []}, NO_SESSION, settings={"workers": 2})
        for topics in (place(), place(topic="missing"), place(7, acks=[(0, 0, ACCEPT)]))
    ),
    # To root, which serves this row first, the session is that of another connection.
    Row(
        acknowledging(acks=[(0, 2, ACCEPT)]),
        before=acquired_by_alice,
        rights=[(READ, TOPIC), (READ, GROUP)],
        refused=[ErrorCode.GROUP_AUTHORIZATION_FAILED],
    ),
    *(
        Row(request, error=code, at=FETCHED, versions=(2, 2), before=before)
        for before, code, request in (
            (accepted(1, 2), ErrorCode.INVALID_RECORD_STATE, acknowledging(2, [(1, 2, ACCEPT)])),
            (acquired, INVALID, acknowledging(acks=[(5, 4, ACCEPT)])),
            (acquired, INVALID, acknowledging(acks=[(0, 1, ACCEPT), (1, 2, ACCEPT)])),
            (acquired, INVALID, acknowledging(acks=[(0, 0, 5)])),
            (acquired, INVALID, acknowledging(acks=[(-1, 0, ACCEPT)])),
            (acquired, INVALID, acknowledging(acks=[(0, 0, RENEW)])),
            (acquired, INVALID, acknowledging(acks=[(0, 2, ACCEPT), (5, 9, ACCEPT)])),
            (
                acquired,
                ErrorCode.UNKNOWN_TOPIC_ID,
                acknowledging() | {"topics": place(topic="missing", acks=[(0, 0, ACCEPT)])},
            ),
            (acquired, UNKNOWN, acknowledging() | {"topics": place(7, acks=[(0, 0, ACCEPT)])}),
        )
    ),
)


def offsets(partition: int = 0, topic: str = "orders") -> Fields:
    return {"groups": [{"group_id": "billing", "topics": [{"topic_name": topic, "partitions": [partition]}]}]}


def positions(topic: str = "orders", **fields: Any) -> Fields:
    return {"groups": [{"group_id": "billing", "topics": [{"topic_name": topic, "partitions": [fields]}]}]}


def left(scene: Scene) -> None:
    """Acquire records, and leave the group without members."""
    acquired(scene)
    scene.do(apis.ShareGroupHeartbeat, **beating(-1))


def moved(start: int = 1, partition: int = 0, topic: str = "orders") -> Fields:
    partitions = [{"partition_index": partition, "start_offset": start}]
    return {"group_id": "billing", "topics": [{"topic_name": topic, "partitions": partitions}]}


def forgotten(topic: str = "orders") -> Fields:
    return {"group_id": "billing", "topics": [{"topic_name": topic}]}


NOTHING_DELETED, DELETED = {"responses.topic_id": ZERO_UUID}, "responses.error_code"
all_forgotten = steps(left, lambda scene: scene.do(apis.DeleteShareGroupOffsets, **forgotten()))
SHARE_ROWS: Rows = {
    apis.ShareGroupHeartbeat: HEARTBEAT,
    apis.ShareGroupDescribe: DESCRIBE_GROUP,
    apis.ShareFetch: FETCH,
    apis.ShareAcknowledge: ACKNOWLEDGE,
    apis.DescribeShareGroupOffsets: (
        Row(
            offsets(),
            positions(partition_index=0, start_offset=1, leader_epoch=Where(bool), lag=2),
            before=accepted(0, 0),
            rights=[(DESCRIBE, GROUP), (DESCRIBE, TOPIC)],
        ),
        Row(
            {"groups": [{"group_id": "billing", "topics": None}]},
            {"groups.topics.partitions": [{"partition_index": 0, "lag": 2}, {"start_offset": -1, "lag": -1}]},
            before=accepted(0, 0),
        ),
        Row(offsets(7), positions(start_offset=-1, lag=-1)),
        Row(offsets(topic="missing"), positions("missing", start_offset=-1)),
    ),
    apis.AlterShareGroupOffsets: (
        Row(
            moved(),
            {"error_message": None, "responses": {"topic_name": "orders", "topic_id": topic_id()}},
            before=left,
            rights=[(READ, GROUP), (READ, TOPIC)],
        ),
        Row(moved(), {"responses.partitions": {}}),
        Row(moved(), {"error_message": Where(bool)}, NO_GROUP, before=stable),
        Row(moved(), error=NOT_EMPTY, before=acquired),
        Row(moved() | {"topics": []}, {"responses": []}, before=stable),
        Row(moved() | {"group_id": ""}, {"responses": []}, ErrorCode.INVALID_GROUP_ID),
        Row(moved(-5), {"responses.topic_id": topic_id()}),
        Row(moved() | {"topics": moved()["topics"] * 2}),
        Row(moved(partition=7), {"responses.topic_id": topic_id()}, UNKNOWN, FETCHED),
        Row(moved(-1, topic="missing"), {"responses.topic_id": ZERO_UUID}, UNKNOWN, FETCHED),
    ),
    apis.DeleteShareGroupOffsets: (
        Row(
            forgotten(),
            {"responses": {"topic_name": "orders", "topic_id": topic_id(), "error_message": None}},
            before=left,
            rights=[(DELETE, GROUP), (READ, TOPIC)],
        ),
        Row(forgotten() | {"group_id": ""}, {"responses": []}, ErrorCode.INVALID_GROUP_ID),
        Row(forgotten("missing"), error=NO_GROUP),
        Row({"group_id": "billing", "topics": []}, error=NO_GROUP),
        Row(forgotten(), error=NO_GROUP, before=stable),
        Row(forgotten(), error=NOT_EMPTY, before=acquired),
        *(
            Row(
                forgotten(topic),
                NOTHING_DELETED | {"responses.error_message": text},
                UNKNOWN,
                DELETED,
                before=before,
            )
            for topic, text, before in (
                ("missing", Where(bool), left),
                ("orders", "There is no offset information to delete.", all_forgotten),
            )
        ),
    ),
}
