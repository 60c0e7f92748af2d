"""lua/group/end_transaction.lua: what is committed at the end, and what deletions do before it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.lua.group.support import EVERY_KEY, GROUP, OFFSETS, PENDING, PRODUCER, Group
from tests.lua.support import STREAM, TOPIC_ID, of_partition, refused, run, unchanged

OTHER = of_partition(STREAM, 1)


def later(group: Group) -> None:
    """Let Redis' clock go on."""
    at = group.now_ms()
    while group.now_ms() == at:
        pass


def test_what_is_committed_counts_from_when_it_was_said(group: Group) -> None:
    group.commit_transaction(7, 5, 6)
    at = group.now_ms()
    later(group)
    assert group.end_transaction(7) == {STREAM: 5, OTHER: 6}
    assert (group.offset(0), group.offset(1)) == (5, 6)
    assert group.pending() == (7, False, {})
    committed_ms = int(group.client.hget(OFFSETS, STREAM).rpartition(b":")[2][:-1])
    assert committed_ms <= at


def test_offsets_are_committed_also_while_the_clock_is_behind_those_that_are_there(group: Group) -> None:
    group.commit_transaction(7, 5)
    group.end_transaction(7)
    ahead = group.now_ms() + 30 * 24 * 3600 * 1000
    group.client.hset(OFFSETS, STREAM, re.sub(rb"\d+}$", b"%d}" % ahead, group.client.hget(OFFSETS, STREAM)))
    group.commit_transaction(8, 9)
    assert group.end_transaction(8) == {STREAM: 9}
    group.commit()
    assert group.client.hget(OFFSETS, STREAM).endswith(b"%d}" % ahead)
    group.commit_transaction(9, 11)
    assert group.end_transaction(9) == {STREAM: 11}


def test_what_is_aborted_is_dropped(group: Group) -> None:
    group.commit()
    group.commit_transaction(7, 50)
    assert group.end_transaction(7, commit=False) == {}
    assert group.offset() == 5
    assert group.pending() == (7, False, {})


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("number", [6, 7])
def test_an_end_that_comes_again_or_late_changes_nothing(group: Group, number: int, *, again: bool) -> None:
    group.commit_transaction(7, 5)
    group.end_transaction(7)
    with unchanged(group.client):
        assert group.end_transaction(number, commit=again) == {}
    group.commit_transaction(8, 9)
    with unchanged(group.client):
        assert group.end_transaction(number, commit=again) == {}


def test_the_end_of_a_later_transaction_drops_what_an_earlier_one_left(group: Group) -> None:
    group.commit_transaction(7, 5)
    assert group.end_transaction(8) == {}
    assert group.offset() is None
    assert group.pending() == (8, False, {})


def test_an_offset_that_was_committed_after_that_of_the_transaction_stays(group: Group) -> None:
    group.commit_transaction(7, 50, 60)
    later(group)
    assert group.commit() == [1]
    assert group.end_transaction(7) == {OTHER: 60}
    assert (group.offset(0), group.offset(1)) == (5, 60)


def test_an_offset_that_was_committed_before_is_replaced(group: Group) -> None:
    group.commit()
    later(group)
    group.commit_transaction(7, 3)
    assert group.end_transaction(7) == {STREAM: 3}
    assert group.offset() == 3


def test_of_two_transactions_the_offset_that_was_said_last_counts(group: Group) -> None:
    group.commit_transaction(7, 50, producer=1)
    later(group)
    group.commit_transaction(7, 60, producer=2)
    assert group.end_transaction(7, producer=2) == {STREAM: 60}
    assert group.end_transaction(7, producer=1) == {}
    assert group.offset() == 60


def test_a_row_that_nobody_can_read_is_replaced(group: Group) -> None:
    group.commit_transaction(7, 5)
    group.client.hset(OFFSETS, STREAM, "not JSON")
    assert group.end_transaction(7) == {STREAM: 5}


@pytest.mark.parametrize("listed_ms", [0, -10_001])
def test_where_no_group_is_the_number_is_kept_once_the_name_is_listed_and_none_is_made(
    group: Group, listed_ms: int
) -> None:
    keys, args = (GROUP, OFFSETS, PENDING), (PRODUCER, 0, 7, "abort")
    listed = listed_ms and group.now_ms() + listed_ms
    answer = run(group.client, "group/end_transaction", keys, (listed, *args))
    assert answer[0] == b"UNLISTED"
    assert not group.client.exists(*keys)
    assert run(group.client, "group/end_transaction", keys, (answer[1], *args)) == []
    assert group.pending() == (7, False, {})
    assert group.client.hkeys(GROUP) == [b"since"]
    assert group.state() == "Dead"
    assert run(group.client, "group/end_transaction", keys, (0, *args)) == []


def test_a_number_that_is_kept_keeps_the_name_until_it_is_forgotten(group: Group) -> None:
    group.end_transaction(7)
    assert group.advance() == -1
    assert group.forget(*group.seen()) == [1, 0, 0]
    assert group.advance() == -1
    group.client.delete(PENDING)
    assert group.forget(*group.seen()) == [1, 0, 0]
    assert not group.client.exists(*EVERY_KEY)
    assert group.advance() == -2


def test_a_group_is_created_where_a_number_is_kept(group: Group) -> None:
    group.end_transaction(7)
    assert group.commit_transaction(8, 5) == [1]
    assert group.state() == "Empty"
    assert group.end_transaction(8) == {STREAM: 5}


def test_what_waits_is_committed_though_the_key_of_its_group_was_lost(group: Group) -> None:
    group.commit_transaction(7, 5)
    group.client.delete(GROUP)
    assert group.end_transaction(7) == {STREAM: 5}
    assert group.client.hmget(GROUP, "state", "generation") == [b"Empty", b"0"]


def expire(group: Group, silence_ms: int, count: int = 100) -> int:
    removed, cursor = 0, b"0"
    while True:
        cursor, some = run(group.client, "group/expire_transactions", (PENDING,), (cursor, count, silence_ms))
        removed += int(some)
        if cursor == b"0":
            return removed


def test_an_ended_transaction_is_forgotten_when_its_producer_was_silent_for_long(group: Group) -> None:
    group.commit_transaction(7, producer=1)
    group.commit_transaction(7, producer=2)
    group.end_transaction(7, producer=1)
    later(group)
    assert expire(group, 60_000) == 0
    assert expire(group, 0) == 1
    assert group.pending(1) is None
    assert group.pending(2) == (7, True, {STREAM: 5})


def test_very_many_are_forgotten_in_steps(group: Group) -> None:
    for producer in range(1000):
        group.end_transaction(7, producer=producer)
    group.client.hset(PENDING, "damaged", "x")
    later(group)
    [_, first] = run(group.client, "group/expire_transactions", (PENDING,), ("0", 10, 0))
    assert first < 100
    assert first + expire(group, 0, 10) == 1000
    assert group.client.hkeys(PENDING) == [b"damaged"]


def test_a_deleted_group_leaves_nothing_to_commit(group: Group) -> None:
    group.commit_transaction(7, 5, producer=1)
    group.commit_transaction(9, 5, producer=2)
    group.end_transaction(9, producer=2)
    assert group.delete(STREAM) == 1
    assert not group.client.exists(*EVERY_KEY)
    assert group.end_transaction(7, producer=1) == {}
    assert not group.client.exists(OFFSETS)
    assert group.state() == "Dead"
    with refused(group.client, "^INVALID_TXN_STATE "):
        group.commit_transaction(7, producer=1)
    group.commit_transaction(9, 8, producer=3)
    assert group.end_transaction(9, producer=3) == {STREAM: 8}


def test_a_group_is_not_dropped_while_a_transaction_is_to_commit(group: Group) -> None:
    group.commit()
    row = group.client.hget(OFFSETS, STREAM).decode()
    group.commit_transaction(7, 6)
    assert group.forget(*group.seen(), rows={STREAM: row}) == [1, 1, 0]
    assert group.pending() == (7, True, {STREAM: 6})
    assert group.state() == "Empty"
    group.end_transaction(7, commit=False)
    assert group.forget(*group.seen()) == [1, 0, 1]
    assert not group.client.exists(*EVERY_KEY)


def test_a_deleted_topic_takes_with_it_what_is_to_be_committed_for_it(group: Group) -> None:
    group.commit_transaction(7, 5)
    group.commit_transaction(7, 6, producer=2, topic_id="another")
    group.client.hset(PENDING, "damaged", "x")
    forget(group)
    assert group.pending() == (7, True, {})
    assert group.pending(2) == (7, True, {STREAM: 6})
    group.client.delete(PENDING)
    group.client.set(PENDING, "x")
    forget(group)


def forget(group: Group) -> Any:
    return run(group.client, "topic/forget", (OFFSETS, PENDING), ("0", 100, TOPIC_ID))
