"""lua/consumer for share groups (KIP-932): the same rows without owners of partitions, two states, and one type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.lua.consumer.support import CONSUMER_KEYS, ConsumerGroup
from tests.lua.group.support import ASSIGNMENTS, CHANNEL, DEADLINES, GROUP, MEMBERS, OFFSETS, PENDING, Group
from tests.lua.support import announced, refused, run, unchanged


class ShareGroup(ConsumerGroup):
    """The group `g` as a share group: partitions are in the rows of members alone."""

    def __init__(self, client: Any) -> None:
        super().__init__(client, "share")

    def update(self, member: str, *partitions: int, epoch: int = 0, **given: Any) -> list[Any]:
        """Write a member; what it has is in its row."""
        return super().update(member, *partitions, epoch=epoch, has_owners=False, **given)


@pytest.fixture
def group(raw_redis: Any) -> ShareGroup:
    """Give a group that is not there yet."""
    return ShareGroup(raw_redis)


def test_members_have_the_same_partition_and_the_group_is_stable_as_long_as_it_has_any(
    group: ShareGroup,
) -> None:
    with announced(group.client, CHANNEL, b"1 Stable"):
        assert group.update("a", 0)[0] == 1
    assert (group.field("type"), group.field("protocol_type")) == ("share", "share")
    assert group.update("b", 0)[0] == 1
    assert group.field("state") == "Stable"
    assert group.claim() == [1, 2, 0, 0]
    assert group.assign(2, {"a": [0], "b": [0]}) == 1
    group.update("a", 0, epoch=2, bumps=False)
    assert (group.field("state"), group.field("stable"), group.field("size")) == ("Stable", "1", "2")
    assert (group.heartbeat("a", 2), group.heartbeat("b", 0)) == (1, 0)
    assert {hkey[:2] for hkey in group.client.hkeys(ASSIGNMENTS)} == {b"c:", b"t:"}
    assert group.leave(("a", "", -1)) == [1, 0, b"NONE"]
    assert group.field("state") == "Stable"
    assert group.leave(("b", "", -1)) == [0, 0, b"NONE"]
    assert (group.field("state"), group.field("generation")) == ("Empty", "4")
    assert group.client.exists(MEMBERS, DEADLINES, ASSIGNMENTS) == 0


def test_a_silent_member_is_removed_and_one_of_before_an_outage_is_not(group: ShareGroup) -> None:
    group.update("a", 0)
    group.update("b", 0)
    group.client.zadd(DEADLINES, {"a": 1, "b": 1})
    run(group.client, "group/resume", CONSUMER_KEYS, (CHANNEL,))
    assert group.client.zscore(DEADLINES, "a") > group.now_ms()
    group.client.zadd(DEADLINES, {"a": 1})
    assert group.advance() == group.client.zscore(DEADLINES, "b")
    assert (group.field("size"), group.field("generation"), group.field("state")) == ("1", "3", "Stable")


@pytest.mark.parametrize("kinds", [("share", "consumer"), ("consumer", "share")])
def test_nothing_is_done_to_a_group_of_another_type(raw_redis: Any, kinds: tuple[str, str]) -> None:
    of_kind, other = (ConsumerGroup(raw_redis, kind) for kind in kinds)
    of_kind.update("a")
    of_kind.claim()
    for _ in range(2):
        with unchanged(raw_redis):
            assert other.update("b")[:2] == [0, -1]
            assert other.assign(1, {"a": [0]}) == 0
            bump = (CHANNEL, kinds[1], int(of_kind.field("generation") or 0), "", "{}")
            assert run(raw_redis, "consumer/bump", CONSUMER_KEYS, bump) == 0
            asks: list[Callable[[], object]] = [
                other.claim,
                lambda: other.leave(("a", "", -1)),
                lambda: other.heartbeat("a", 0),
            ]
            for ask in asks:
                with refused(raw_redis, f"^GROUP_ID_NOT_FOUND there is no such {kinds[1]} group"):
                    ask()
        of_kind.leave(("a", "", -1))


def test_no_group_that_exists_becomes_a_share_group(group: ShareGroup) -> None:
    group.client.hset(GROUP, mapping={"state": "Empty", "generation": 3, "since": 1})
    with unchanged(group.client):
        assert group.update("a") == [0, -1, 3]


def test_the_requests_of_classic_members_are_refused_with_members_and_without(group: ShareGroup) -> None:
    classic = Group(group.client)
    group.update("a", 0)
    for _ in range(2):
        with unchanged(group.client):
            for ask in (
                classic.join,
                lambda: classic.join("a"),
                lambda: classic.sync("a", 1),
                lambda: classic.leave(("a", "")),
            ):
                with refused(group.client, "^GROUP_ID_NOT_FOUND the group is no classic group"):
                    ask()
            with refused(group.client, "^REBALANCE_IN_PROGRESS "):
                classic.look("join", "a", 1)
        if group.read("m:a"):
            with refused(group.client, "^GROUP_ID_NOT_FOUND "):
                classic.heartbeat("a", 1)
            group.leave(("a", "", -1))
    with refused(group.client, "^UNKNOWN_MEMBER_ID "):
        classic.heartbeat("a", 1)


@pytest.mark.parametrize("by", [(-1, "", ""), (1, "a", ""), (-1, "a", "")])
@pytest.mark.parametrize("knows_epochs", [0, 1])
def test_nobody_commits(group: ShareGroup, by: tuple[int, str, str], knows_epochs: int) -> None:
    group.update("a", 0)
    args = ["g", group.now_ms(), *by, 0, 0, knows_epochs, "s", "id", '{"ms":']
    in_transaction = [*args[:7], "7", 0, 1, *args[8:]]
    for _ in range(2):
        for script, keys, given in (
            ("group/commit", (GROUP, MEMBERS, DEADLINES, OFFSETS), args),
            ("group/commit_transaction", (GROUP, MEMBERS, DEADLINES, OFFSETS, PENDING), in_transaction),
        ):
            with refused(group.client, "^GROUP_ID_NOT_FOUND group g is not a consumer group"):
                run(group.client, script, keys, given)
        group.leave(("a", "", -1))
