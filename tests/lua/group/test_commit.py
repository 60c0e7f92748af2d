"""lua/group/commit.lua and lua/group/commit_transaction.lua: what both keep and refuse, and what only one of them does.

Both get the same rows. A transaction's wait for its end (test_end_transaction.py), the others count at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.lua.group.support import (
    DEADLINES,
    EVERY_KEY,
    GROUP,
    MEMBERS,
    NOBODY,
    OFFSETS,
    PENDING,
    PRODUCER,
    SESSION_MS,
    By,
    Group,
)
from tests.lua.support import STREAM, TOPIC_ID, of_partition, refused, run

OTHER = of_partition(STREAM, 1)


class Commits:
    """Commits of a group, at once or by its transaction 7."""

    def __init__(self, group: Group, *, in_transaction: bool) -> None:
        self.group, self.in_transaction = group, in_transaction
        self.commit: Callable[..., list[Any]] = (
            partial(group.commit_transaction, 7) if in_transaction else group.commit
        )

    def kept(self) -> dict[str, int]:
        if self.in_transaction:
            pending = self.group.pending()
            return pending[2] if pending else {}
        rows = self.group.client.hgetall(OFFSETS).items()
        return {stream.decode(): json.loads(row).get("offset") for stream, row in rows}


@pytest.fixture(params=[False, True], ids=["at once", "in a transaction"])
def commits(request: pytest.FixtureRequest, group: Group) -> Commits:
    return Commits(group, in_transaction=request.param)


def with_member(group: Group, state: str = "Stable", deadline: float = 1) -> None:
    group.client.hset(GROUP, mapping={"state": state, "generation": 3})
    group.client.hset(MEMBERS, mapping={"m:a": json.dumps({"session_ms": SESSION_MS}), "i:one": "a"})
    group.client.zadd(DEADLINES, {"a": deadline})


# ---- both


def test_a_commit_makes_a_group_of_what_was_none(commits: Commits) -> None:
    before = commits.group.now_ms()
    assert commits.commit(7, 8) == [1, 1]
    assert commits.kept() == {STREAM: 7, OTHER: 8}
    state, generation, since = commits.group.client.hmget(GROUP, "state", "generation", "since")
    assert (state, generation) == (b"Empty", b"0")
    assert before <= int(since) <= commits.group.now_ms()
    assert commits.commit(9) == [1]
    assert commits.kept() == {STREAM: 9, OTHER: 8}


@pytest.mark.parametrize("listed_ms", [0, -10_001])
def test_a_group_that_was_not_listed_just_now_is_not_created(commits: Commits, listed_ms: int) -> None:
    now = commits.group.now_ms()
    answer = commits.commit(7, listed_ms=listed_ms and now + listed_ms)
    assert answer == [b"UNLISTED", answer[1]]
    assert now <= answer[1] <= commits.group.now_ms()
    assert not commits.group.client.exists(*EVERY_KEY)
    assert commits.commit(7, listed_ms=answer[1]) == [1]
    assert commits.commit(8, listed_ms=0) == [1]


def test_a_row_of_another_topic_id_stays_unless_the_caller_knows_better(commits: Commits) -> None:
    commits.group.client.hset(OFFSETS, STREAM, f'{{"offset":5,"topic_id":"{TOPIC_ID}","ms":1}}')
    assert commits.commit(6, 7, topic_id="another") == [0, 1]
    assert commits.kept()[OTHER] == 7
    assert commits.group.offset(0) == 5
    assert commits.commit(8, topic_id="another", replaces=1) == [1]
    assert commits.kept() == {STREAM: 8, OTHER: 7}


def test_where_nothing_is_committed_no_group_is_made(commits: Commits) -> None:
    commits.group.client.hset(OFFSETS, STREAM, '{"topic_id":"another"}')
    assert commits.commit(5, listed_ms=0) == [0]
    assert commits.group.client.exists(*EVERY_KEY) == 1


def test_very_many_partitions_are_committed_at_once(commits: Commits) -> None:
    assert commits.commit(*range(5000)) == [1] * 5000
    assert len(commits.kept()) == 5000


def test_a_late_commit_replaces_none_that_was_made_since(commits: Commits) -> None:
    assert commits.commit(5) == [1]
    at = commits.group.now_ms()
    assert commits.commit(20, not_after_ms=at) == [1]
    while commits.group.now_ms() == at:
        pass
    assert commits.commit(60) == [1]
    assert commits.commit(30, 31, not_after_ms=at) == [-1, 1]
    assert commits.kept() == {STREAM: 60, OTHER: 31}


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
def test_who_may_not_commit(commits: Commits, asked: By, error: str, state: str) -> None:
    with_member(commits.group, state)
    with refused(commits.group.client, f"^{error} "):
        commits.commit(5, by=asked)


# ---- commits that count at once


MEMBER: By = (3, "a", "")


@pytest.mark.parametrize(
    ("state", "asked", "knows_epochs", "error"),
    [
        ("", (0, "a", ""), 0, "ILLEGAL_GENERATION"),
        ("", (0, "a", ""), 1, "GROUP_ID_NOT_FOUND"),
        ("Empty", MEMBER, 1, "UNKNOWN_MEMBER_ID"),
        ("Stable", NOBODY, 1, "UNKNOWN_MEMBER_ID"),
        ("PreparingRebalance", NOBODY, 1, "UNKNOWN_MEMBER_ID"),
        ("CompletingRebalance", NOBODY, 1, "UNKNOWN_MEMBER_ID"),
        ("CompletingRebalance", MEMBER, 1, "REBALANCE_IN_PROGRESS"),
    ],
)
def test_a_commit_that_counts_at_once_is_one_of_a_member_or_without_members(
    group: Group, state: str, asked: By, knows_epochs: int, error: str
) -> None:
    if state == "Empty":
        group.client.hset(GROUP, mapping={"state": state, "generation": 3})
    elif state:
        with_member(group, state)
    with refused(group.client, f"^{error} "):
        group.commit(5, by=asked, knows_epochs=knows_epochs)


def test_in_an_empty_group_a_client_without_a_generation_commits(group: Group) -> None:
    as_before = {"state": "Empty", "generation": "9", "since": "1"}
    group.client.hset(GROUP, mapping=as_before)
    assert group.commit(5, by=(-1, "a", "")) == group.commit(5) == [1]
    assert group.client.hmget(GROUP, *as_before) == [item.encode() for item in as_before.values()]


def test_the_time_of_a_commit_is_that_of_redis(group: Group) -> None:
    before = group.now_ms()
    assert group.commit(7) == [1]
    assert before <= json.loads(group.client.hget(OFFSETS, STREAM))["ms"] <= group.now_ms()


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance"])
def test_a_member_commits_and_its_session_is_renewed(group: Group, state: str) -> None:
    with_member(group, state)
    before = group.now_ms()
    assert group.commit(5, by=(3, "a", "one")) == [1]
    assert before + SESSION_MS <= (group.deadline("a") or 0) <= group.now_ms() + SESSION_MS


def test_a_member_that_waits_gets_no_end_of_its_session(group: Group) -> None:
    with_member(group, "PreparingRebalance", float("inf"))
    assert group.commit(5, by=(3, "a", "")) == [1]
    assert group.deadline("a") == float("inf")


def test_a_row_that_cannot_be_read_is_later_than_none(group: Group) -> None:
    group.client.hset(OFFSETS, STREAM, "not JSON")
    assert group.commit(7, not_after_ms=group.now_ms()) == [1]


# ---- commits of transactions


def test_numbers_and_ids_are_stored_as_they_are(group: Group) -> None:
    assert group.commit_transaction(1_764_158_176_123, 5, producer=2**63 - 1, epoch=32_767) == [1]
    assert not group.client.exists(OFFSETS)
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


def test_the_rows_of_very_many_partitions_are_committed_at_the_end(group: Group) -> None:
    group.commit_transaction(7, *range(5000))
    assert len(group.end_transaction(7)) == group.client.hlen(OFFSETS) == 5000


COMMIT, END = Group.commit_transaction, Group.end_transaction


@pytest.mark.parametrize(
    ("before", "number", "epoch", "error"),
    [
        *(([COMMIT, END], number, 4, "INVALID_TXN_STATE") for number in (6, 7)),
        *(([END], number, 4, "INVALID_TXN_STATE") for number in (6, 7)),
        ([COMMIT], 6, 4, "INVALID_TXN_STATE"),
        *((before, 8, 3, "INVALID_PRODUCER_EPOCH") for before in ([COMMIT, END], [END], [COMMIT])),
    ],
)
def test_what_is_of_an_earlier_transaction_or_epoch_or_after_its_end_is_refused(
    group: Group, before: list[Callable[..., object]], number: int, epoch: int, error: str
) -> None:
    for act in before:
        act(group, 7, epoch=4)
    with refused(group.client, f"^{error} "):
        group.commit_transaction(number, epoch=epoch)
    assert group.commit_transaction(8, 9, epoch=4) == [1]
    assert group.pending() == (8, True, {STREAM: 9})


def test_producers_do_not_mind_each_other(group: Group) -> None:
    group.commit_transaction(7, 5, producer=1)
    group.commit_transaction(3, 6, producer=2)
    group.end_transaction(7, producer=1)
    assert group.pending(2) == (3, True, {STREAM: 6})


@pytest.mark.parametrize("by", [(3, "a", "one"), (3, "a", ""), NOBODY])
@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance"])
def test_a_member_commits_and_one_that_says_nothing_of_itself(group: Group, by: By, state: str) -> None:
    """A producer that knows only the group's name is no member (KIP-447), and no session is renewed."""
    with_member(group, state)
    assert group.commit_transaction(7, by=by) == [1]
    assert group.deadline("a") == 1


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
