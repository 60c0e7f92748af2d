"""lua/group/delete.lua and lua/group/forget.lua: what goes, and that nothing does where the group has changed."""

from __future__ import annotations

import pytest
import redis

from tests.lua.group.support import EVERY_KEY, GROUP, OFFSETS, Group
from tests.lua.support import STREAM, refused, unchanged

OTHER = STREAM.replace(":0", ":1")


@pytest.fixture
def empty(group: Group) -> Group:
    """Give a group without members that has committed."""
    generation = group.stable("a")
    assert group.commit(by=(generation, "a", "")) == [1]
    group.leave(("a", ""))
    return group


def row_of(group: Group) -> str:
    text: bytes = group.client.hget(OFFSETS, STREAM)
    return text.decode()


def test_a_deleted_group_leaves_nothing(empty: Group) -> None:
    assert empty.delete(STREAM) == 1
    assert empty.client.exists(*EVERY_KEY) == 0
    with pytest.raises(redis.ResponseError, match=r"^GROUP_ID_NOT_FOUND "):
        empty.delete()


def test_offsets_without_a_group_are_deleted_too(empty: Group) -> None:
    empty.client.delete(GROUP)
    assert empty.delete(STREAM) == 1
    assert empty.client.exists(*EVERY_KEY) == 0


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance"])
def test_a_group_with_members_stays(empty: Group, state: str) -> None:
    empty.client.hset(GROUP, "state", state)
    with refused(empty.client, f"^NON_EMPTY_GROUP .* {state}$"):
        empty.delete(STREAM)


def test_other_offsets_than_the_caller_saw_stay(empty: Group) -> None:
    with unchanged(empty.client):
        assert empty.delete() == empty.delete(OTHER) == empty.delete(STREAM, OTHER) == 0


def test_offsets_are_forgotten_and_the_group_goes_with_the_last(empty: Group) -> None:
    empty.client.hset(OFFSETS, OTHER, "{}")
    assert empty.forget(*empty.seen(), rows={STREAM: row_of(empty)}) == [1, 1, 0]
    assert empty.client.hkeys(OFFSETS) == [OTHER.encode()]
    assert empty.forget(*empty.seen(), rows={OTHER: ""}, drop=False) == [1, 1, 0]
    assert empty.client.exists(GROUP) == 1
    assert empty.forget(*empty.seen()) == [1, 0, 1]
    assert empty.client.exists(*EVERY_KEY) == 0
    assert empty.forget() == [1, 0, 0]


def test_a_row_that_has_changed_stays(empty: Group) -> None:
    before = row_of(empty)
    empty.client.hset(OFFSETS, STREAM, "changed")
    assert empty.forget(*empty.seen(), rows={STREAM: before, OTHER: ""}) == [1, 0, 0]
    assert empty.client.hget(OFFSETS, STREAM) == b"changed"


@pytest.mark.parametrize("place", range(3))
def test_a_group_that_has_changed_stays_as_it_is(empty: Group, place: int) -> None:
    had = empty.seen()
    had[place] += "0"
    with unchanged(empty.client):
        assert empty.forget(*had, rows={STREAM: row_of(empty)}) == [0, 0, 0]


def test_a_pending_id_keeps_the_group(group: Group) -> None:
    group.give_id("a")
    assert group.forget(*group.seen()) == [1, 0, 0]
    assert group.join("a")[0] == b"JOINED"
