"""Rows of StreamsGroupHeartbeat and StreamsGroupDescribe."""

from __future__ import annotations

from typing import Any

from korvet.errors import ErrorCode
from korvet.groups.streams.types import GroupStatus
from korvet.protocol.types import AclOperation
from tests.handlers import apis
from tests.handlers.rows.consumer_groups import describing, lowered
from tests.handlers.rows.groups import stable
from tests.handlers.scene import CLUSTER, GROUP, TOPIC, Scene
from tests.handlers.table import Fields, Row, Rows, Where

READ, CREATE, DESCRIBE = AclOperation.READ, AclOperation.CREATE, AclOperation.DESCRIBE
NO_GROUP, INVALID, NO_TOPOLOGY = (
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.STREAMS_INVALID_TOPOLOGY,
)
NO_TASKS: Fields = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
TASK = [{"subtopology_id": "0", "partitions": [0]}]
SOMETHING = Where(bool)
DELAYED, MISSING = GroupStatus.ASSIGNMENT_DELAYED, GroupStatus.MISSING_INTERNAL_TOPICS


def subtopology(**fields: Any) -> Fields:
    return {"subtopology_id": "0", "source_topics": ["orders"]} | fields


def joining(*subtopologies: Fields, **fields: Any) -> Fields:
    return (
        {
            "group_id": "billing",
            "member_id": "m",
            "member_epoch": 0,
            "endpoint_information_epoch": -1,
            "rebalance_timeout_ms": 60_000,
            "topology": {"epoch": 0, "subtopologies": list(subtopologies) or [subtopology()]},
            "process_id": "p",
        }
        | NO_TASKS
        | fields
    )


def storing(**fields: Any) -> Fields:
    """Return the heartbeat of a member whose state is kept in an internal topic."""
    return joining(subtopology(state_changelog_topics=[{"name": "store"}]), **fields)


def beating(epoch: Any, **fields: Any) -> Fields:
    fixed = {"endpoint_information_epoch": -1, "rebalance_timeout_ms": -1}
    return {"group_id": "billing", "member_id": "m", "member_epoch": epoch} | fixed | fields


def joined(scene: Scene, **fields: Any) -> None:
    """Join, and send heartbeats until the first assignment is there."""
    scene.generation = scene.do(apis.StreamsGroupHeartbeat, **joining(**fields)).member_epoch

    def is_assigned() -> bool:
        answer = scene.do(apis.StreamsGroupHeartbeat, **beating(scene.generation))
        scene.generation = answer.member_epoch
        return not answer.status

    scene.until(is_assigned)


def refused(
    code: ErrorCode, request: Fields, before: Any = lambda _scene: None, message: Any = SOMETHING
) -> Row:
    return Row(request, {"error_message": message, "active_tasks": None}, code, before=before)


def missing(statuses: Any) -> bool:
    return [status.status_code for status in statuses] == [DELAYED, MISSING]


def generation(scene: Scene) -> int:
    return scene.generation


UNASSIGNED: Fields = {"group_streams_initial_rebalance_delay_ms": 3000}
"""Settings with which a group's first heartbeat gets no assignment yet."""
TASKS = {
    "active_tasks": [{"subtopology_id": "0", "partitions": [0, 1]}],
    "standby_tasks": [],
    "warmup_tasks": [],
}
SOURCES: Fields = {"source_topics": ["orders", "other"]}
WRONG: list[tuple[Fields, str]] = [
    (joining(member_id=""), "MemberId can't be empty."),
    (joining(instance_id="i"), "Static membership is not yet supported."),
    (joining(subtopology(), subtopology(), instance_id="i"), "Static membership is not yet supported."),
    (joining(task_offsets=[]), "TaskOffsets are not supported yet."),
    (joining(task_end_offsets=[]), "TaskEndOffsets are not supported yet."),
    (joining(warmup_tasks=TASK), "WarmupTasks are not supported yet."),
    (joining(active_tasks=None), "If one task-type is non-null, all must be non-null."),
    (
        joining(subtopology(source_topic_regex=["a.*"])),
        "Regular expressions for source topics are not supported yet.",
    ),
]
WRONG_TOPOLOGIES: list[tuple[Fields, str]] = [
    (
        joining(subtopology(source_topics=["__consumer_offsets"])),
        "Use of Kafka internal topics __consumer_offsets in a Kafka Streams topology is prohibited.",
    ),
    (
        joining(subtopology(source_topics=["a b", "c"]), instance_id="i"),
        "Topic names a b are not valid topic names.",
    ),
    (joining(subtopology(), subtopology()), "Two subtopologies have the same id."),
    *(
        (
            joining(subtopology(copartition_groups=[{"source_topics": [place]}])),
            "A copartition group of subtopology 0 names topics that it has not.",
        )
        for place in (1, -1)
    ),
]


def status(code: GroupStatus, said: str) -> Where:
    """Return whether a status is in an answer, with a text in its detail."""
    return Where(lambda statuses: any(s.status_code == code and said in s.status_detail for s in statuses))


STREAMS_ROWS: Rows = {
    apis.StreamsGroupHeartbeat: (
        Row(
            joining(),
            {"error_message": None, "member_id": "m", "member_epoch": 1, "heartbeat_interval_ms": 5000},
            rights=[(READ, GROUP), (DESCRIBE, TOPIC)],
            settings=UNASSIGNED,
        ),
        Row(storing(process_id=None), {"status": Where(missing)}, settings=UNASSIGNED),
        *(
            Row(
                storing(),
                rights=[(CREATE, *on), (READ, GROUP), (DESCRIBE, TOPIC, "store"), (DESCRIBE, TOPIC)],
                refused=[ErrorCode.GROUP_AUTHORIZATION_FAILED],
            )
            for on in ((TOPIC, "store"), (CLUSTER,))
        ),
        Row(beating(generation), {"member_epoch": generation, "active_tasks": None}, before=joined),
        Row(beating(-1), {"member_epoch": -1}, before=joined),
        *(refused(INVALID, request, message=message) for request, message in WRONG),
        *(refused(NO_TOPOLOGY, request, message=message) for request, message in WRONG_TOPOLOGIES),
        # Topics that must have as many partitions are named by their places.
        Row(
            joining(subtopology(**SOURCES, copartition_groups=[{"source_topics": [0, 1]}])),
            {
                "status": status(
                    GroupStatus.INCORRECTLY_PARTITIONED_TOPICS, "do not have the same number of partitions"
                )
            },
            before=lambda scene: scene.create("other"),
        ),
        Row(
            joining(
                subtopology(
                    state_changelog_topics=[
                        {"name": "store", "topic_configs": [{"key": "cleanup.policy", "value": "burn"}]}
                    ]
                )
            ),
            {"status": status(MISSING, "; Creation failed: store (")},
        ),
        refused(NO_GROUP, beating(5), message="Streams group billing not found."),
        refused(NO_GROUP, joining(), stable),
        refused(ErrorCode.UNKNOWN_MEMBER_ID, beating(1, member_id="other"), joined),
        refused(ErrorCode.FENCED_MEMBER_EPOCH, beating(9), joined),
        refused(ErrorCode.UNSUPPORTED_VERSION, joining(), lowered("streams.version")),
        Row(
            joining(member_id="other"),
            {"error_message": Where(bool)},
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            before=joined,
            settings={"group_streams_max_size": 1},
        ),
    ),
    apis.StreamsGroupDescribe: (
        Row(
            {"group_ids": ["billing", "billing"]},
            {
                "groups": {
                    "group_id": "billing",
                    "error_message": None,
                    "group_state": "Stable",
                    "topology": {
                        "epoch": 0,
                        "subtopologies": {"subtopology_id": "0", "source_topics": ["orders"]},
                    },
                    "members": {
                        "member_id": "m",
                        "client_id": "wire",
                        "client_host": "/10.0.0.1",
                        "topology_epoch": 0,
                        "process_id": "p",
                        "user_endpoint": {"host": "here", "port": 65_535},
                        "client_tags": {"key": "zone", "value": "a"},
                        "assignment": TASKS,
                        "target_assignment": TASKS,
                        "is_classic": False,
                    },
                    "authorized_operations": -(2**31),
                }
            },
            before=lambda scene: joined(
                scene,
                user_endpoint={"host": "here", "port": 65_535},
                client_tags=[{"key": "zone", "value": "a"}],
            ),
        ),
        *describing(joined),
        Row(
            {"group_ids": ["billing"]},
            {"groups": {"error_message": Where(bool), "members": []}},
            ErrorCode.UNSUPPORTED_VERSION,
            "groups.error_code",
            before=lowered("streams.version"),
        ),
    ),
}
