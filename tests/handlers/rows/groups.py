"""Rows of the requests of members of classic groups, and of what is asked about groups."""

from __future__ import annotations

from typing import Any

from korvet.errors import ErrorCode
from korvet.protocol.types import AclOperation
from tests.handlers import apis
from tests.handlers.scene import CLUSTER, GROUP, Scene
from tests.handlers.table import Fields, Row, Rows, Where, steps

READ, DELETE, DESCRIBE = AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE
NO_GROUP, UNKNOWN, FENCED, REBALANCE, OTHER_GENERATION, NO_NAME = (
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.INVALID_GROUP_ID,
)
NOT_ASKED_FOR = -(2**31)
LARGE = bytes((1 << 20) + 1)
"""More metadata than a member may have."""


def member(scene: Scene) -> str:
    return scene.member


def joining(**fields: Any) -> Fields:
    protocols = [{"name": name, "metadata": b"topics"} for name in fields.pop("protocols", ["range"])]
    return {
        "group_id": "billing",
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": protocols,
    } | fields


def syncing(**fields: Any) -> Fields:
    names = {"protocol_type": "consumer", "protocol_name": "range"}
    return {"group_id": "billing", "member_id": member, "generation_id": 1} | names | fields


def joined(scene: Scene, **fields: Any) -> None:
    """Join as the only member, which has no assignment yet."""
    asked = joining(**fields)
    answer = scene.ask(apis.JoinGroup, 5, **asked)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = scene.do(apis.JoinGroup, 5, **asked | {"member_id": answer.member_id})
    scene.member, scene.generation = answer.member_id, answer.generation_id


def stable(scene: Scene, **fields: Any) -> None:
    """Join, and assign something."""
    joined(scene, **fields)
    kind = fields.get("protocol_type", "consumer")
    assignments = [{"member_id": member, "assignment": b"part"}]
    scene.do(apis.SyncGroup, **syncing(assignments=assignments, protocol_type=kind))


def static(scene: Scene) -> None:
    stable(scene, group_instance_id="i")


def rebalancing(scene: Scene) -> None:
    """Let another member ask for its id, and the first begin to join again, which waits for the other one."""
    stable(scene)
    scene.others.append(scene.ask(apis.JoinGroup, 5, **joining()).member_id)
    scene.begin(apis.JoinGroup, 5, **joining(member_id=scene.others[-1]))
    asked: Fields = {"groups": ["billing"]}
    scene.until(lambda: scene.do(apis.DescribeGroups, **asked).groups[0].group_state == "PreparingRebalance")


def promised(scene: Scene) -> None:
    """Ask for the id of a member that has not joined yet."""
    scene.others.append(scene.ask(apis.JoinGroup, 4, **joining()).member_id)


def sharing(scene: Scene) -> None:
    fields: Fields = {"member_id": "m", "subscribed_topic_names": ["orders"]}
    scene.do(apis.ShareGroupHeartbeat, group_id="billing", **fields)


def consuming(scene: Scene, **fields: Any) -> None:
    fields |= {"member_id": "m", "subscribed_topic_names": ["orders"], "topic_partitions": []}
    scene.do(apis.ConsumerGroupHeartbeat, group_id="billing", rebalance_timeout_ms=60_000, **fields)


def consuming_as_static(scene: Scene) -> None:
    consuming(scene, instance_id="i")


def joins(**fields: Any) -> Fields:
    return {
        "generation_id": 1,
        "protocol_name": "range",
        "protocol_type": "consumer",
        "leader": Where(bool),
        "skip_assignment": False,
        "members": [{"metadata": b"topics", "group_instance_id": None}],
    } | fields


def cannot_join(code: ErrorCode, **fields: Any) -> Row:
    more = {name: fields.pop(name) for name in ("before", "versions", "settings") if name in fields}
    return Row(joining(**fields), {"generation_id": -1, "members": []}, code, **more)


def leaving(member_id: Any = member, instance: str | None = None, group: str = "billing") -> Fields:
    members = [{"member_id": member_id, "group_instance_id": instance}]
    return {"group_id": group, "member_id": member_id, "members": members}


JOIN = (
    Row(joining(), joins(), versions=(0, 3)),
    Row(joining(), versions=(3, 3), rights=[(READ, GROUP)]),
    Row(joining(member_id=lambda scene: scene.others[0]), joins(), versions=(4, 9), before=promised),
    *(
        Row(joining(group_instance_id=name), joins(members=[{"group_instance_id": name}]), versions=(5, 9))
        for name in ("i", "", "\\")
    ),
    # A static leader that comes back is not to assign again, which only version 9 can say (KIP-814).
    Row(
        joining(group_instance_id="i"),
        joins(skip_assignment=True, members=[{"group_instance_id": "i"}]),
        versions=(9, 9),
        before=static,
    ),
    Row(joining(group_instance_id="i"), joins(leader=member, members=[]), versions=(5, 8), before=static),
    cannot_join(ErrorCode.MEMBER_ID_REQUIRED, versions=(4, 9)),
    cannot_join(ErrorCode.INVALID_SESSION_TIMEOUT, session_timeout_ms=5_999),
    cannot_join(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, protocols=[]),
    cannot_join(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, protocol_type="connect", before=stable),
    Row(joining(member_id="x"), {"member_id": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, before=sharing),
    Row(joining(member_id="nobody"), {"generation_id": -1, "member_id": "nobody"}, UNKNOWN),
    cannot_join(FENCED, member_id="nobody", group_instance_id="i", before=static, versions=(5, 9)),
    cannot_join(NO_NAME, group_id=""),
    Row(joining() | {"protocols": [{"name": "range", "metadata": LARGE}]}, error=ErrorCode.INVALID_REQUEST),
    cannot_join(
        ErrorCode.GROUP_MAX_SIZE_REACHED, before=stable, settings={"group_max_size": 1}, versions=(0, 3)
    ),
    cannot_join(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        member_id=lambda scene: scene.others[0],
        before=steps(promised, stable),
        settings={"group_max_size": 1},
        versions=(4, 9),
    ),
)

NO_MEMBERS: tuple[tuple[Any, ...], ...] = (
    (UNKNOWN, {"member_id": "nobody"}, None, stable),
    (UNKNOWN, {"group_id": "missing"}, None, stable),
    (UNKNOWN, {"member_id": "m"}, None, sharing),
    (OTHER_GENERATION, {"generation_id": 7}, None, stable),
    (NO_NAME, {"group_id": ""}, None, stable),
    (REBALANCE, {}, None, rebalancing),
)
"""What SyncGroup and Heartbeat refuse: code, fields of the request, versions, and what is set up before."""
SYNC = (
    Row(
        syncing(assignments=[{"member_id": member, "assignment": b"part"}]),
        {"assignment": b"part", "protocol_type": "consumer", "protocol_name": "range"},
        before=joined,
        rights=[(READ, GROUP)],
    ),
    *(
        Row(syncing(**fields), {"assignment": b""}, code, versions=versions, before=before)
        for code, fields, versions, before in (
            *NO_MEMBERS,
            (FENCED, {"member_id": "nobody", "group_instance_id": "i"}, (3, 5), static),
            (UNKNOWN, {"group_instance_id": ""}, (3, 5), stable),
            (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, {"protocol_name": "sticky"}, (5, 5), stable),
            (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, {"protocol_type": ""}, (5, 5), stable),
            (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, {"protocol_name": None}, (5, 5), stable),
            (NO_NAME, {"group_id": "", "protocol_name": ""}, (5, 5), stable),
        )
    ),
)

BEAT: Fields = {"group_id": "billing", "member_id": member, "generation_id": 1}
HEARTBEAT = (
    Row(BEAT, before=stable, rights=[(READ, GROUP)]),
    *(
        Row(BEAT | fields, error=code, versions=versions, before=before)
        for code, fields, versions, before in (
            *NO_MEMBERS,
            (FENCED, {"member_id": "nobody", "group_instance_id": "i"}, (3, 4), static),
            (UNKNOWN, {"group_instance_id": ""}, (3, 4), stable),
        )
    ),
)


def joining_again(scene: Scene) -> None:
    """Let the only member join the next generation, which has no assignment yet."""
    static(scene)
    scene.do(
        apis.JoinGroup,
        5,
        **joining(member_id=scene.member, group_instance_id="i", protocols=["range", "sticky"]),
    )


LEAVE = (
    Row(
        leaving(),
        {"members": {"member_id": member, "group_instance_id": None}},
        before=stable,
        rights=[(READ, GROUP)],
    ),
    Row(leaving("nobody"), error=UNKNOWN, versions=(0, 2)),
    Row(leaving("nobody"), {"members.member_id": "nobody"}, UNKNOWN, "members.error_code", (3, 5)),
    Row(
        leaving("nobody", "i") | {"members": [*leaving("nobody", "i")["members"], *leaving("x")["members"]]},
        {
            "members": [
                {"member_id": "nobody", "error_code": FENCED},
                {"member_id": "x", "error_code": UNKNOWN},
            ]
        },
        FENCED,
        "members.error_code",
        (3, 5),
        static,
        also=[UNKNOWN],
    ),
    Row(leaving(member, ""), error=UNKNOWN, at="members.error_code", versions=(3, 5), before=stable),
    Row(leaving("", group=""), {"members": []}, NO_NAME),
    Row(leaving("m"), error=UNKNOWN, versions=(0, 2), before=sharing),
    Row(leaving("m"), {"members.member_id": "m"}, UNKNOWN, "members.error_code", (3, 5), sharing),
    # A member of the consumer protocol, as admin clients remove it.
    Row(leaving("m"), {"members": [{"member_id": "m"}]}, before=consuming),
    Row(leaving("m", "i"), {"members": [{"member_id": "m"}]}, versions=(3, 5), before=consuming_as_static),
    Row(
        leaving("", "i"),
        {"members": [{"group_instance_id": "i"}]},
        versions=(3, 5),
        before=consuming_as_static,
    ),
    Row(
        leaving("n", "i"), error=FENCED, at="members.error_code", versions=(3, 5), before=consuming_as_static
    ),
)


def group(**fields: Any) -> Fields:
    return {"groups": [{"group_id": "billing"} | fields]}


DESCRIBE_GROUPS = (
    Row(
        {"groups": ["billing", "billing"]},
        group(
            group_state="Stable",
            protocol_type="consumer",
            protocol_data="range",
            members=[
                {
                    "member_id": member,
                    "group_instance_id": "i",
                    "client_id": "wire",
                    "client_host": "/10.0.0.1",
                    "member_metadata": b"topics",
                    "member_assignment": b"part",
                }
            ],
            authorized_operations=NOT_ASKED_FOR,
        ),
        before=static,
        rights=[(DESCRIBE, GROUP)],
    ),
    Row(
        {"groups": ["billing"]},
        group(
            group_state="CompletingRebalance",
            protocol_data="",
            members=[{"member_metadata": b"", "member_assignment": b""}],
        ),
        before=joined,
    ),
    Row(
        {"groups": ["billing"]},
        group(
            group_state="CompletingRebalance",
            members=[{"member_metadata": b"", "member_assignment": b"part"}],
        ),
        before=joining_again,
    ),
    Row(
        {"groups": ["billing"], "include_authorized_operations": True},
        group(authorized_operations=Where(lambda given: given > 0)),
        versions=(3, 6),
        before=stable,
    ),
    Row({"groups": ["billing"]}, group(group_state="Dead", members=[]), versions=(0, 5)),
    Row({"groups": ["billing"]}, group(group_state="Dead", members=[]), versions=(0, 5), before=consuming),
    *(
        Row(
            {"groups": ["billing"]},
            group(group_state="Dead", error_message=Where(bool)),
            NO_GROUP,
            "groups.error_code",
            (6, 6),
            before,
        )
        for before in (lambda _scene: None, consuming, sharing)
    ),
)

LIST_GROUPS = (
    Row({}, group(protocol_type="consumer", group_state="Stable", group_type="classic"), before=stable),
    *(Row({}, group(), before=stable, rights=[(DESCRIBE, on)], refused=[]) for on in (GROUP, CLUSTER)),
    Row({"states_filter": ["Empty"]}, {"groups": []}, versions=(4, 5), before=stable),
    Row({"types_filter": ["consumer"]}, {"groups": []}, versions=(5, 5), before=stable),
)


def emptied(scene: Scene) -> None:
    stable(scene)
    scene.do(apis.LeaveGroup, **leaving())


GROUP_ROWS: Rows = {
    apis.JoinGroup: JOIN,
    apis.SyncGroup: SYNC,
    apis.Heartbeat: HEARTBEAT,
    apis.LeaveGroup: LEAVE,
    apis.DescribeGroups: DESCRIBE_GROUPS,
    apis.ListGroups: LIST_GROUPS,
    apis.DeleteGroups: (
        Row(
            {"groups_names": ["billing", "billing"]},
            {"results.group_id": "billing"},
            before=emptied,
            rights=[(DELETE, GROUP)],
        ),
        Row({"groups_names": ["missing"]}, error=NO_GROUP, at="results.error_code"),
        Row(
            {"groups_names": ["billing"]},
            error=ErrorCode.NON_EMPTY_GROUP,
            at="results.error_code",
            before=stable,
        ),
    ),
}
