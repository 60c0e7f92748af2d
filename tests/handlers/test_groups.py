"""Groups of any name, from the first join to the deletion, and what keeps offsets of a group."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from korvet.errors import ErrorCode
from tests.handlers import apis
from tests.handlers.rows import streams
from tests.handlers.rows.groups import consuming, joining, leaving, sharing, syncing
from tests.handlers.rows.offsets import by_member, committed, fetched, forgotten
from tests.handlers.rows.share import fetching
from tests.handlers.scene import Scene
from tests.support.redis_requests import requests_of

NAMES = [
    "größe ☃ \U0001f600",
    "{}",
    "}{a:offsets}:group",
    "%",
    "%25%7B%00",
    "\n",
    "\x00",
    "\x01\x7f\x80\u2028\ufeff",
    " ",
    '"\\',
    "korvet:groups",
    "x" * 32_767,
    "☃" * 10_922,
]


@pytest.fixture
def scene(scene: Scene) -> Scene:
    """Create the topic `orders`."""
    scene.orders()
    return scene


def join(scene: Scene, name: str = "billing", metadata: bytes = b"topics") -> None:
    """Become the only member of a stable group."""
    request = joining(group_id=name) | {"protocols": [{"name": "range", "metadata": metadata}]}
    answer = scene.do(apis.JoinGroup, 3, **request)
    scene.member, scene.generation = answer.member_id, answer.generation_id
    assignments = [{"member_id": scene.member, "assignment": b"all"}]
    assert scene.do(apis.SyncGroup, **syncing(group_id=name, assignments=assignments)).assignment == b"all"


def offset(scene: Scene, name: str) -> int:
    group = fetched()["groups"][0] | {"group_id": name}
    [result] = scene.do(apis.OffsetFetch, groups=[group]).groups
    number: int = result.topics[0].partitions[0].committed_offset
    return number


def listed(scene: Scene) -> list[tuple[str, str]]:
    return [(group.group_id, group.group_state) for group in scene.do(apis.ListGroups).groups]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:20]))
def test_a_group_of_any_name_lives_and_leaves_nothing(redis_url: str, scene: Scene, name: str) -> None:
    with closing(Scene(redis_url)) as other:
        other.ids = scene.ids
        join(scene, name)
        scene.do(apis.Heartbeat, group_id=name, generation_id=1, member_id=scene.member)
        scene.do(apis.OffsetCommit, **by_member(group_id=name))
        assert offset(other, name) == 2
        assert listed(other) == [(name, "Stable")]
        [result] = other.do(apis.DescribeGroups, groups=[name]).groups
        assert [member.member_id for member in result.members] == [scene.member]
        [refused] = other.ask(apis.DeleteGroups, groups_names=[name]).results
        assert (refused.group_id, refused.error_code) == (name, ErrorCode.NON_EMPTY_GROUP)
        scene.do(apis.LeaveGroup, **leaving(group=name))
        other.do(apis.DeleteGroups, groups_names=[name, name])
        assert (offset(scene, name), listed(scene)) == (-1, [])
        assert scene.raw.xinfo_groups("korvet:orders:0") == []
        assert scene.raw.keys("*:group:*") == []


def test_groups_are_listed_by_state_and_type_in_any_case(scene: Scene) -> None:
    join(scene)
    scene.do(apis.OffsetCommit, **committed(group_id="empty"))

    def result(**filters: Any) -> set[str]:
        return {group.group_id for group in scene.do(apis.ListGroups, **filters).groups}

    assert result(states_filter=["stable"]) == {"billing"}
    assert result(states_filter=["Stable", "EMPTY"]) == {"billing", "empty"}
    assert result(states_filter=["Dead", "no state"]) == set()
    assert result(types_filter=["Classic"]) == {"billing", "empty"}
    assert result(types_filter=["consumer", "classic"], states_filter=["Empty"]) == {"empty"}


def test_members_whose_sessions_have_ended_keep_no_group(scene: Scene) -> None:
    join(scene)
    deadlines = "{korvet:group:billing:offsets}:deadlines"
    assert scene.raw.zadd(deadlines, {scene.member: 1}, xx=True, ch=True) == 1
    scene.do(apis.DeleteGroups, groups_names=["billing"])


def subscription(*topics: str) -> bytes:
    """Return the metadata of a consumer that is subscribed to topics."""
    names = b"".join(struct.pack(">h", len(name.encode())) + name.encode() for name in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1)


@pytest.mark.parametrize(
    ("metadata", "subscribed"),
    [
        (subscription("orders"), True),
        (subscription("other"), False),
        (b"\0\1\0\0\0\5\0\1a", True),  # nobody can read it: it may be a subscription to anything
    ],
)
def test_a_group_keeps_the_offsets_of_what_it_is_subscribed_to(
    scene: Scene, metadata: bytes, *, subscribed: bool
) -> None:
    join(scene, metadata=metadata)
    scene.do(apis.OffsetCommit, **by_member())
    [topic] = scene.ask(apis.OffsetDelete, **forgotten()).topics
    expected = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
    assert topic.partitions[0].error_code == expected
    assert offset(scene, "billing") == (2 if subscribed else -1)


def test_redis_is_asked_about_a_hundred_groups_or_topics_at_once(scene: Scene) -> None:
    names = [f"n{number}" for number in range(250)]
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    scene.do(apis.CreateTopics, topics=topics, timeout_ms=60_000)
    requests = requests_of(scene.storage.redis)
    whole = [{"group_id": name, "topics": None, "member_epoch": -1} for name in names]
    cases: list[tuple[Any, dict[str, Any]]] = [
        (apis.OffsetFetch, {"groups": whole, "require_stable": True}),
        (apis.OffsetFetch, {"groups": [fetched()["groups"][0] | {"group_id": name} for name in names]}),
        (apis.DescribeGroups, {"groups": names}),
        (apis.DeleteTopics, {"topics": [{"name": name} for name in names], "timeout_ms": 60_000}),
    ]
    for kind, fields in cases:
        requests.clear()
        scene.ask(kind, **fields)
        assert 3 <= len(requests) < 60, (kind, requests)


@pytest.mark.parametrize(
    ("join", "describe"),
    [
        (consuming, apis.ConsumerGroupDescribe),
        (sharing, apis.ShareGroupDescribe),
        (streams.joined, apis.StreamsGroupDescribe),
    ],
)
def test_a_hundred_groups_with_members_are_described_in_a_few_round_trips(
    scene: Scene, join: Callable[[Scene], None], describe: Any
) -> None:
    join(scene)
    names = [f"n{number}" for number in range(150)]
    for key in scene.raw.keys("*:group:billing:*"):
        dump = scene.raw.dump(key)
        for name in names:
            scene.raw.restore(key.replace(b"billing", name.encode()), 0, dump)
    requests = requests_of(scene.storage.redis)
    groups = scene.do(describe, group_ids=names).groups
    assert [(group.group_id, len(group.members)) for group in groups] == [(name, 1) for name in names]
    assert len(requests) <= 12, requests


@pytest.mark.parametrize("limit", ["max_records", "max_bytes", "min_bytes"])
def test_a_share_fetch_that_wants_nothing_or_waits_for_nothing_is_answered_at_once(
    scene: Scene, limit: str
) -> None:
    sharing(scene)
    scene.begin(apis.ShareFetch, **fetching(max_wait_ms=600_000, min_bytes=1) | {limit: 0})
    scene.until(lambda: bool(listed(scene)) and scene.waiting[0].ready())
    partitions = [row for topic in scene.waiting[0].get().responses for row in topic.partitions]
    assert [row.acquired_records for row in partitions] == ([] if limit == "max_records" else [[]])
