"""DescribeGroups, ListGroups, DeleteGroups and OffsetDelete by bytes, and commits of members, over two workers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.list_groups import ListGroupsRequest
from korvet.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from korvet.redis.client import Redis
from tests.groups.support import RANGE, Group
from tests.handlers.test_offset_commit import ANY_NAMES, NOTHING, commit, fetch
from tests.support.proxy import until
from tests.support.topic_client import Client

NOT_ASKED_FOR = -(2**31)


@pytest.fixture
def group_of(broker_redis: str, stored: Any) -> Iterator[Callable[[str], Group]]:
    """Give what makes a group beside the broker, whose members are in Redis like any."""
    redis = Redis(broker_redis, timeout_ms=60_000, connect_timeout_ms=10_000)
    yield lambda name: Group(redis, stored, name)
    redis.close()


def subscribed(*topics: str) -> tuple[tuple[str, bytes], ...]:
    """Return what a consumer says that is subscribed to topics."""
    names = b"".join(struct.pack(">h", len(name.encode())) + name.encode() for name in topics)
    return (("range", struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)),)


def describe(client: Client, *groups: str, version: int = 5, **fields: Any) -> list[Any]:
    answer = client.call(DescribeGroupsRequest(groups=list(groups), **fields), version)
    assert [each.group_id for each in answer.groups] == list(groups)
    return list(answer.groups)


def listed(client: Client, *names: str, version: int = 5, **fields: Any) -> dict[str, tuple[str, str, str]]:
    """List groups; returns protocol type, state and type of those that are named here."""
    answer = client.call(ListGroupsRequest(**fields), version)
    assert answer.error_code == ErrorCode.NONE
    every = {each.group_id: (each.protocol_type, each.group_state, each.group_type) for each in answer.groups}
    assert len(every) == len(answer.groups)
    return {name: every[name] for name in names if name in every}


def delete(client: Client, *groups: str, version: int = 2) -> list[tuple[str, int]]:
    answer = client.call(DeleteGroupsRequest(groups_names=list(groups)), version)
    return [(each.group_id, each.error_code) for each in answer.results]


def forget(client: Client, group: str, topic: str, *partitions: int) -> tuple[int, list[int]]:
    """Have offsets forgotten; returns the error of the group, and those of the partitions."""
    indexes = [OffsetDeleteRequestPartition(partition_index=each) for each in partitions]
    topics = [OffsetDeleteRequestTopic(name=topic, partitions=indexes)]
    answer = client.call(OffsetDeleteRequest(group_id=group, topics=topics), 0)
    return answer.error_code, [each.error_code for named in answer.topics for each in named.partitions]


@pytest.mark.parametrize("version", range(7))
def test_a_stable_group_is_described(
    client: Client, topic: str, group_of: Callable[[str], Group], version: int
) -> None:
    group_of(topic).stable("m1", "m2")
    [found] = describe(client, topic, version=version)
    assert (found.error_code, found.group_state) == (ErrorCode.NONE, "Stable")
    assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
    assert found.authorized_operations == NOT_ASKED_FOR
    assert [
        (each.member_id, each.client_id, each.client_host, each.member_metadata, each.member_assignment)
        for each in found.members
    ] == [(name, "client", "/127.0.0.1", RANGE[0][1], name.encode()) for name in ("m1", "m2")]
    assert [each.group_instance_id for each in found.members] == [None, None]


def test_a_static_member_has_its_instance_id(
    client: Client, topic: str, group_of: Callable[[str], Group]
) -> None:
    group_of(topic).stable("m1", instance="i1")
    [found] = describe(client, topic, version=4)
    assert [(each.member_id, each.group_instance_id) for each in found.members] == [("m1", "i1")]


def test_in_a_rebalance_metadata_and_assignments_are_not_shown(
    client: Client, topic: str, group_of: Callable[[str], Group]
) -> None:
    group = group_of(topic)
    group.stable("m1")
    group.waits(new="m2")
    [found] = describe(client, topic)
    assert (found.group_state, found.protocol_type, found.protocol_data) == (
        "PreparingRebalance",
        "consumer",
        "",
    )
    assert {(each.member_id, each.member_metadata, each.member_assignment) for each in found.members} == {
        ("m1", b"", b""),
        ("m2", b"", b""),
    }


def test_operations_are_returned_if_requested(client: Client, topic: str) -> None:
    client.create(topic)
    commit(client, topic, topic, 1)
    [found] = describe(client, topic, include_authorized_operations=True)
    assert found.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


@pytest.mark.parametrize("version", range(7))
def test_a_group_that_is_not_there_is_dead(client: Client, version: int) -> None:
    [found] = describe(client, "no-such-group", version=version)
    assert (found.group_state, found.members) == ("Dead", [])
    assert found.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)
    assert (found.error_message is not None) == (version >= 6)


def test_a_group_that_is_named_twice_is_described_once(client: Client, topic: str) -> None:
    request = DescribeGroupsRequest(groups=[topic, "other", topic])
    assert [each.group_id for each in client.call(request, 5).groups] == [topic, "other"]


@pytest.mark.parametrize("version", range(6))
def test_every_worker_lists_every_group(
    two_clients: tuple[Client, Client], topic: str, group_of: Callable[[str], Group], version: int
) -> None:
    here, there = two_clients
    here.create(topic)
    names = [f"{topic}{name}" for name in ANY_NAMES]
    for name in names:
        commit(here, name, topic, 1)
    group_of(f"{topic}-m").stable("m1")
    found = listed(there, *names, f"{topic}-m", version=version)
    state = ("Empty", "Stable") if version >= 4 else ("", "")
    kind = "classic" if version >= 5 else ""
    assert found == dict.fromkeys(names, ("", state[0], kind)) | {f"{topic}-m": ("consumer", state[1], kind)}


def test_groups_are_listed_by_state_and_type(
    client: Client, topic: str, group_of: Callable[[str], Group]
) -> None:
    client.create(topic)
    empty, stable = f"{topic}-e", f"{topic}-s"
    commit(client, empty, topic, 1)
    group_of(stable).stable("m1")
    both = (empty, stable)
    assert set(listed(client, *both, states_filter=["stable"])) == {stable}
    assert set(listed(client, *both, states_filter=["Stable", "EMPTY"])) == {empty, stable}
    assert listed(client, *both, states_filter=["Dead", "no state"]) == {}
    assert set(listed(client, *both, types_filter=["Classic"])) == {empty, stable}
    assert listed(client, *both, types_filter=["consumer"]) == {}
    assert set(listed(client, *both, types_filter=["consumer", "classic"], states_filter=["Empty"])) == {
        empty
    }


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("group", ["", *ANY_NAMES])
def test_a_deleted_group_leaves_nothing(
    two_clients: tuple[Client, Client], topic: str, stored: Any, version: int, group: str
) -> None:
    here, there = two_clients
    here.create(topic, 2)
    here.append(topic, b"v")
    group = f"{topic}{group}"
    commit(here, group, topic, 1, 0)
    until(lambda: len(stored.xinfo_groups(f"korvet:{topic}:0")) == 1)
    assert delete(there, group, group, version=version) == [(group, ErrorCode.NONE)]
    assert fetch(here, group, topic) == [NOTHING]
    assert listed(here, group) == {}
    assert stored.xinfo_groups(f"korvet:{topic}:0") == []
    assert [key for key in stored.keys("*:group:*") if topic.encode() + b":" in key] == []
    assert delete(here, group, version=version) == [(group, ErrorCode.GROUP_ID_NOT_FOUND)]


def test_a_group_with_members_is_not_deleted(
    client: Client, topic: str, group_of: Callable[[str], Group]
) -> None:
    client.create(topic)
    group = group_of(topic)
    generation = group.stable("m1")
    commit(client, topic, topic, 3, generation_id_or_member_epoch=generation, member_id="m1")
    assert delete(client, topic, f"{topic}-none") == [
        (topic, ErrorCode.NON_EMPTY_GROUP),
        (f"{topic}-none", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert fetch(client, topic, topic) == [(3, -1, "", 0)]
    group.leave(("m1", ""))
    assert delete(client, topic) == [(topic, ErrorCode.NONE)]


def test_members_whose_sessions_have_ended_keep_no_group(
    client: Client, topic: str, stored: Any, group_of: Callable[[str], Group]
) -> None:
    group_of(topic).stable("m1")
    deadlines = f"{{korvet:group:{topic}:offsets}}:deadlines"
    assert stored.zcard(deadlines) == 1
    stored.zadd(deadlines, {b"m1": 1}, xx=True)
    assert delete(client, topic) == [(topic, ErrorCode.NONE)]


def test_a_group_forgets_offsets(client: Client, topic: str, stored: Any) -> None:
    client.create(topic, 3)
    client.append(topic, b"v")
    commit(client, topic, topic, 1, 2, 3)
    none, unknown = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert forget(client, topic, topic, 0, 7, 2) == (none, [none, unknown, none])
    assert fetch(client, topic, topic, partitions=3) == [NOTHING, (2, -1, "", 0), NOTHING]
    until(lambda: stored.xinfo_groups(f"korvet:{topic}:0") == [])
    # What is not there is forgotten already, and the group stays though it has nothing left.
    assert forget(client, topic, topic, 0, 1) == (none, [none, none])
    assert set(listed(client, topic)) == {topic}
    assert forget(client, topic, f"{topic}-none", 0) == (none, [unknown])


def test_a_group_keeps_the_offsets_of_what_it_is_subscribed_to(
    client: Client, topic: str, group_of: Callable[[str], Group]
) -> None:
    other = f"{topic}-other"
    client.create(topic)
    client.create(other)
    group = group_of(topic)
    generation = group.stable("m1", protocols=subscribed(topic))
    member: Any = {"generation_id_or_member_epoch": generation, "member_id": "m1"}
    commit(client, topic, topic, 1, **member)
    commit(client, topic, other, 1, **member)
    assert forget(client, topic, topic, 0) == (ErrorCode.NONE, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
    assert forget(client, topic, other, 0) == (ErrorCode.NONE, [ErrorCode.NONE])
    assert fetch(client, topic, topic) == [(1, -1, "", 0)]
    assert fetch(client, topic, other) == [NOTHING]
    group.leave(("m1", ""))
    assert forget(client, topic, topic, 0) == (ErrorCode.NONE, [ErrorCode.NONE])


def test_metadata_that_nobody_can_read_may_be_a_subscription_to_anything(
    client: Client, topic: str, group_of: Callable[[str], Group]
) -> None:
    client.create(topic)
    group_of(topic).stable("m1", protocols=(("range", b"\0\1\0\0\0\5\0\1a"),))
    assert forget(client, topic, topic, 0) == (ErrorCode.NONE, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])


def test_offsets_of_no_group_cannot_be_forgotten(
    client: Client, topic: str, group_of: Callable[[str], Group]
) -> None:
    client.create(topic)
    assert forget(client, f"{topic}-none", topic, 0) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    assert forget(client, "", topic, 0) == (ErrorCode.INVALID_GROUP_ID, [])
    group_of(topic).stable("m1", protocol_type="connect")
    assert forget(client, topic, topic, 0) == (ErrorCode.NON_EMPTY_GROUP, [])
