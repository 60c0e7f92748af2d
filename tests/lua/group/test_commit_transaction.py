"""lua/group/commit_transaction.lua: what waits for the end of a transaction, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lua.group.support import DEADLINES, EVERY_KEY, GROUP, MEMBERS, OFFSETS, PENDING, PRODUCER, Group
from tests.lua.support import STREAM, TOPIC_ID, of_partition, refused, run

OTHER = of_partition(STREAM, 1)


def test_offsets_wait_and_the_group_is_created(group: Group) -> None:
    before = group.now_ms()
    assert group.commit_transaction(7, 5, 6) == [1, 1]
    assert group.pending() == (7, True, {STREAM: 5, OTHER: 6})
    assert not group.client.exists(OFFSETS)
    state, generation, since = group.client.hmget(GROUP, "state", "generation", "since")
    assert (state, generation) == (b"Empty", b"0")
    assert before <= int(since) <= group.now_ms()


@pytest.mark.parametrize("listed_ms", [0, -10_001])
def test_a_group_that_was_not_listed_just_now_is_not_created(group: Group, listed_ms: int) -> None:
    answer: list[Any] = group.commit_transaction(7, listed_ms=listed_ms and group.now_ms() + listed_ms)
    assert answer[0] == b"UNLISTED"
    assert not group.client.exists(*EVERY_KEY)
    assert group.commit_transaction(7, listed_ms=answer[1]) == [1]
    assert group.commit_transaction(7, 6, listed_ms=0) == [1]


def test_a_transaction_commits_more_than_once_and_the_last_offset_counts(group: Group) -> None:
    group.commit_transaction(7, 5, 6)
    group.commit_transaction(7, 8)
    assert group.pending() == (7, True, {STREAM: 8, OTHER: 6})


def test_numbers_and_ids_are_stored_as_they_are(group: Group) -> None:
    assert group.commit_transaction(1_764_158_176_123, 5, producer=2**63 - 1, epoch=32_767) == [1]
    row = json.loads(group.client.hget(PENDING, 2**63 - 1))
    assert (row["number"], row["epoch"]) == (1_764_158_176_123, 32_767)
    assert group.end_transaction(1_764_158_176_123, producer=2**63 - 1) == {STREAM: 5}


def test_metadata_of_any_characters_is_committed_as_it_was(group: Group) -> None:
    metadata = 'a "note" / ☃ \\ \0 "open":false,"ms":1,"rows":{}}'
    row = (
        json.dumps({"offset": 5, "metadata": metadata, "topic_id": TOPIC_ID}, ensure_ascii=False)[:-1]
        + ',"ms":'
    )
    args = ["g", group.now_ms(), -1, "", "", 0, 0, PRODUCER, 0, 7, STREAM, TOPIC_ID, row]
    assert run(group.client, "group/commit_transaction", EVERY_KEY, args) == [1]
    group.end_transaction(7)
    committed = group.client.hget(OFFSETS, STREAM).decode()
    assert committed.startswith(row)
    assert json.loads(committed)["metadata"] == metadata


def test_very_many_partitions_are_kept_and_committed(group: Group) -> None:
    assert group.commit_transaction(7, *range(5000)) == [1] * 5000
    assert len(group.end_transaction(7)) == 5000
    assert group.client.hlen(OFFSETS) == 5000


@pytest.mark.parametrize("number", [6, 7])
def test_a_transaction_that_has_ended_is_refused(group: Group, number: int) -> None:
    group.commit_transaction(7)
    group.end_transaction(7)
    with refused(group.client, "^INVALID_TXN_STATE "):
        group.commit_transaction(number)
    assert group.commit_transaction(8, 9) == [1]
    assert group.pending() == (8, True, {STREAM: 9})


def test_an_earlier_transaction_than_the_open_one_is_refused(group: Group) -> None:
    group.commit_transaction(7)
    with refused(group.client, "^INVALID_TXN_STATE "):
        group.commit_transaction(6)


def test_what_was_not_committed_before_the_end_is_refused_after_it(group: Group) -> None:
    group.end_transaction(7, commit=False)
    with refused(group.client, "^INVALID_TXN_STATE "):
        group.commit_transaction(7)


def test_a_producer_of_an_earlier_epoch_is_refused(group: Group) -> None:
    group.commit_transaction(7, epoch=3)
    with refused(group.client, "^INVALID_PRODUCER_EPOCH "):
        group.commit_transaction(8, epoch=2)
    group.end_transaction(7, epoch=4)
    with refused(group.client, "^INVALID_PRODUCER_EPOCH "):
        group.commit_transaction(8, epoch=3)
    assert group.commit_transaction(8, epoch=4) == [1]


def test_rows_of_a_transaction_whose_end_was_lost_are_dropped(group: Group) -> None:
    group.commit_transaction(7, 5, 6)
    group.commit_transaction(8, 9)
    assert group.pending() == (8, True, {STREAM: 9})


def test_producers_do_not_mind_each_other(group: Group) -> None:
    group.commit_transaction(7, 5, producer=1)
    group.commit_transaction(3, 6, producer=2)
    group.end_transaction(7, producer=1)
    assert group.pending(2) == (3, True, {STREAM: 6})


def test_a_row_of_another_topic_id_stays_unless_the_caller_knows_better(group: Group) -> None:
    group.client.hset(OFFSETS, STREAM, f'{{"topic_id":"{TOPIC_ID}","ms":1}}')
    assert group.commit_transaction(7, 5, 6, topic_id="another") == [0, 1]
    assert group.pending() == (7, True, {OTHER: 6})
    assert group.commit_transaction(7, 5, topic_id="another", replaces=1) == [1]
    assert group.end_transaction(7) == {STREAM: 5, OTHER: 6}


def test_where_nothing_is_kept_no_group_is_made(group: Group) -> None:
    group.client.hset(OFFSETS, STREAM, '{"topic_id":"another"}')
    assert group.commit_transaction(7, listed_ms=0) == [0]
    assert group.client.exists(*EVERY_KEY) == 1


def test_a_late_commit_replaces_none_that_was_made_since(group: Group) -> None:
    group.commit_transaction(7, 5)
    at = group.now_ms()
    while group.now_ms() == at:
        pass
    group.commit_transaction(7, 60)
    assert group.commit_transaction(7, 30, 31, not_after_ms=at) == [-1, 1]
    assert group.pending() == (7, True, {STREAM: 60, OTHER: 31})


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ((3, "b", ""), "UNKNOWN_MEMBER_ID"),
        ((3, "", ""), "UNKNOWN_MEMBER_ID"),
        ((3, "a", "two"), "UNKNOWN_MEMBER_ID"),
        ((3, "b", "one"), "FENCED_INSTANCE_ID"),
        ((2, "a", ""), "ILLEGAL_GENERATION"),
        ((4, "a", "one"), "ILLEGAL_GENERATION"),
        ((-1, "a", ""), "ILLEGAL_GENERATION"),
    ],
)
@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance"])
def test_who_may_not_commit(group: Group, asked: tuple[int, str, str], error: str, state: str) -> None:
    with_member(group, state)
    with refused(group.client, f"^{error} "):
        group.commit_transaction(7, by=asked)


@pytest.mark.parametrize("by", [(3, "a", "one"), (3, "a", ""), (-1, "", "")])
@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance"])
def test_a_member_commits_and_one_that_says_nothing_of_itself(
    group: Group, by: tuple[int, str, str], state: str
) -> None:
    """A producer that knows only the group's name is no member (KIP-447), and no session is renewed."""
    with_member(group, state)
    assert group.commit_transaction(7, by=by) == [1]
    assert group.client.zscore(DEADLINES, "a") == 1


def test_a_generation_of_no_group(group: Group) -> None:
    with refused(group.client, "^ILLEGAL_GENERATION "):
        group.commit_transaction(7, by=(0, "a", ""))


@pytest.mark.parametrize(
    "row", ["", "x", "[]", "{}", '{"number":"7","epoch":0,"rows":{}}', '{"number":7,"epoch":0}']
)
def test_a_row_that_cannot_be_read_is_an_error(group: Group, row: str) -> None:
    group.commit_transaction(7)
    group.client.hset(PENDING, PRODUCER, row)
    with refused(group.client, f"^KAFKA_STORAGE_ERROR {PENDING}: "):
        group.commit_transaction(8)
    with refused(group.client, f"^KAFKA_STORAGE_ERROR {PENDING}: "):
        group.end_transaction(8)


@pytest.mark.parametrize("key", [GROUP, OFFSETS, PENDING])
def test_a_key_of_another_type_is_an_error_and_nothing_is_written(group: Group, key: str) -> None:
    group.client.set(key, "x")
    with refused(group.client, "WRONGTYPE|wrong kind"):
        group.commit_transaction(7)


def with_member(group: Group, state: str) -> None:
    group.client.hset(GROUP, mapping={"state": state, "generation": 3})
    group.client.hset(MEMBERS, mapping={"m:a": json.dumps({"session_ms": 10_000}), "i:one": "a"})
    group.client.zadd(DEADLINES, {"a": 1})
