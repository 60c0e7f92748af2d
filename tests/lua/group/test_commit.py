"""lua/group/commit.lua against a real server: what is written, what is refused, and what always stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from tests.lua.support import STREAM, TOPIC_ID, run

GROUP = "{korvet:group:g:offsets}:group"
MEMBERS = "{korvet:group:g:offsets}:members"
DEADLINES = "{korvet:group:g:offsets}:deadlines"
OFFSETS = "korvet:group:g:offsets"
KEYS = [GROUP, MEMBERS, DEADLINES, OFFSETS]
SESSION_MS = 10_000
NOBODY = (-1, "", "")


def commit(
    client: Any,
    offset: int = 5,
    by: tuple[int, str, str] = NOBODY,
    *,
    topic_id: str = TOPIC_ID,
    partitions: int = 1,
    not_after_ms: int = 0,
    **given: int,
) -> list[int]:
    """Commit; unless `listed_ms` says otherwise, the group was listed just now."""
    listed_ms = given.get("listed_ms", now_ms(client))
    args: list[Any] = [
        "g",
        listed_ms,
        *by,
        not_after_ms,
        given.get("replaces", 0),
        given.get("knows_epochs", 1),
    ]
    for index in range(partitions):
        row = f'{{"offset":{offset},"topic_id":"{topic_id}","ms":'
        args += (STREAM.replace(":0", f":{index}"), topic_id, row)
    reply: list[int] = run(client, "group/commit", KEYS, args)
    return reply


@pytest.fixture
def client(raw_redis: Any) -> Any:
    return raw_redis


def with_member(client: Any, state: str = "Stable", deadline: float = 1) -> None:
    client.hset(GROUP, mapping={"state": state, "generation": 3})
    client.hset(MEMBERS, mapping={"m:a": json.dumps({"session_ms": SESSION_MS}), "i:one": "a"})
    client.zadd(DEADLINES, {"a": deadline})


def now_ms(client: Any) -> int:
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def test_a_commit_makes_a_group_of_what_was_none(client: Any) -> None:
    before = now_ms(client)
    assert commit(client, 7) == [1]
    row = json.loads(client.hget(OFFSETS, STREAM))
    assert row["offset"] == 7
    assert before <= row["ms"] <= now_ms(client)
    assert client.hmget(GROUP, "state", "generation", "since") == [b"Empty", b"0", str(row["ms"]).encode()]


@pytest.mark.parametrize("listed_ms", [0, -10_001])
def test_a_group_that_was_not_listed_just_now_is_not_created(client: Any, listed_ms: int) -> None:
    now = now_ms(client)
    answer: list[Any] = commit(client, 7, listed_ms=listed_ms and now + listed_ms)
    assert answer == [b"UNLISTED", answer[1]]
    assert now <= answer[1] <= now_ms(client)
    assert client.dbsize() == 0
    assert commit(client, 7, listed_ms=answer[1]) == [1]
    assert commit(client, 8, listed_ms=0) == [1]


def test_a_second_commit_leaves_the_group_as_it_is(client: Any) -> None:
    client.hset(GROUP, mapping={"state": "Empty", "generation": 9, "since": 1})
    assert commit(client) == [1]
    assert client.hmget(GROUP, "state", "generation", "since") == [b"Empty", b"9", b"1"]


def test_a_row_of_another_topic_id_stays_unless_the_caller_knows_better(client: Any) -> None:
    assert commit(client, 5, partitions=2) == [1, 1]
    assert commit(client, 6, partitions=1, topic_id="another") == [0]
    assert commit(client, 6, partitions=3, topic_id="another") == [0, 0, 1]
    assert [json.loads(client.hget(OFFSETS, STREAM.replace(":0", f":{n}")))["offset"] for n in range(3)] == [
        5,
        5,
        6,
    ]
    assert commit(client, 7, partitions=1, topic_id="another", replaces=1) == [1]
    assert json.loads(client.hget(OFFSETS, STREAM))["topic_id"] == "another"


def test_where_nothing_is_committed_no_group_is_made(client: Any) -> None:
    client.hset(OFFSETS, STREAM, '{"topic_id":"another"}')
    assert commit(client, listed_ms=0) == [0]
    assert commit(client, partitions=0, listed_ms=0) == []
    assert client.exists(*KEYS) == 1


def test_very_many_partitions_are_committed_at_once(client: Any) -> None:
    assert commit(client, partitions=5000) == [1] * 5000
    assert client.hlen(OFFSETS) == 5000


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ((3, "b", ""), "UNKNOWN_MEMBER_ID"),
        ((3, "", ""), "UNKNOWN_MEMBER_ID"),
        ((-1, "", ""), "UNKNOWN_MEMBER_ID"),
        ((3, "a", "two"), "UNKNOWN_MEMBER_ID"),
        ((3, "b", "one"), "FENCED_INSTANCE_ID"),
        ((2, "a", ""), "ILLEGAL_GENERATION"),
        ((4, "a", "one"), "ILLEGAL_GENERATION"),
        ((-1, "a", ""), "ILLEGAL_GENERATION"),
    ],
)
@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance"])
def test_who_may_not_commit(client: Any, asked: tuple[int, str, str], error: str, state: str) -> None:
    with_member(client, state)
    before = [client.dump(key) for key in KEYS]
    with pytest.raises(redis.ResponseError, match=f"^{error} "):
        commit(client, by=asked)
    assert [client.dump(key) for key in KEYS] == before


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance"])
def test_a_member_commits_and_its_session_is_renewed(client: Any, state: str) -> None:
    with_member(client, state)
    assert commit(client, by=(3, "a", "one")) == [1]
    assert client.zscore(DEADLINES, "a") == pytest.approx(now_ms(client) + SESSION_MS, abs=5000)


def test_a_member_that_waits_gets_no_end_of_its_session(client: Any) -> None:
    with_member(client, "PreparingRebalance", float("inf"))
    assert commit(client, by=(3, "a", "")) == [1]
    assert client.zscore(DEADLINES, "a") == float("inf")


def test_while_assignments_are_awaited_nobody_commits(client: Any) -> None:
    with_member(client, "CompletingRebalance")
    with pytest.raises(redis.ResponseError, match=r"^REBALANCE_IN_PROGRESS "):
        commit(client, by=(3, "a", ""))
    assert client.zscore(DEADLINES, "a") == 1


@pytest.mark.parametrize(("knows_epochs", "error"), [(0, "ILLEGAL_GENERATION"), (1, "GROUP_ID_NOT_FOUND")])
def test_a_generation_of_no_group(client: Any, knows_epochs: int, error: str) -> None:
    with pytest.raises(redis.ResponseError, match=rf"^{error} "):
        commit(client, by=(0, "a", ""), knows_epochs=knows_epochs)
    assert client.exists(*KEYS) == 0


def test_in_an_empty_group_a_generation_is_one_of_its_members(client: Any) -> None:
    client.hset(GROUP, mapping={"state": "Empty", "generation": 3})
    with pytest.raises(redis.ResponseError, match=r"^UNKNOWN_MEMBER_ID "):
        commit(client, by=(3, "a", ""))
    assert commit(client, by=(-1, "a", "")) == [1]


@pytest.mark.parametrize("key", [GROUP, OFFSETS])
def test_a_key_of_another_type_is_an_error_and_nothing_is_written(client: Any, key: str) -> None:
    client.set(key, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        commit(client)
    assert [each for each in KEYS if client.exists(each)] == [key]


def test_a_late_commit_replaces_none_that_was_made_since(client: Any) -> None:
    assert commit(client, 5, partitions=2) == [1, 1]
    at = now_ms(client)
    assert commit(client, 20, not_after_ms=at) == [1]
    while now_ms(client) == at:
        pass
    assert commit(client, 60) == [1]
    kept = client.hget(OFFSETS, STREAM)
    assert commit(client, 30, partitions=3, not_after_ms=at) == [-1, 1, 1]
    assert client.hget(OFFSETS, STREAM) == kept


def test_a_row_that_cannot_be_read_is_later_than_none(client: Any) -> None:
    client.hset(OFFSETS, STREAM, "not JSON")
    assert commit(client, 7, not_after_ms=now_ms(client)) == [1]
