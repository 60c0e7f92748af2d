"""lua/topic/clear.lua and lua/topic/forget.lua against a real server: the steps of a deletion."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.log.packed import PackedLog
from tests.lua.support import CLEAN, SIDE_KEYS, STATE, STREAM, announced, of_partition, run, unchanged
from tests.support.partition_state import change_log

OFFSETS = "korvet:group:g:offsets"
PENDING = "{korvet:group:g:offsets}:pending"
PER_PARTITION = (STATE, STREAM, *SIDE_KEYS)
FENCED = b"deleted id-1"


def fill(client: Any, owner: str = "id-1") -> None:
    for key in PER_PARTITION[1:]:
        client.set(key, "x")
    client.hset(STATE, mapping={"topic": owner, "7": "a producer"})
    change_log(client, STATE, next_offset=5)


def clear(client: Any, topic_id: str = "id-1", entries: int = 1000, size: int = 1 << 20) -> Any:
    return run(client, "topic/clear", PER_PARTITION, [topic_id, entries, size, STREAM])


def test_clear_deletes_a_partition_and_wakes_waiting_fetches(raw_redis: Any) -> None:
    fill(raw_redis)
    with announced(raw_redis, STREAM, b"-1"):
        assert clear(raw_redis) == 1
    assert raw_redis.keys() == []


@pytest.mark.parametrize("fenced_with", [(0, 0), (10, 0), (0, 10)])
def test_clear_fences_first_and_once(raw_redis: Any, fenced_with: tuple[int, int]) -> None:
    fill_streams(raw_redis, entries=20, size=100)
    before = lengths(raw_redis)
    with announced(raw_redis, STREAM, b"-1"):
        assert clear(raw_redis, entries=fenced_with[0], size=fenced_with[1]) == 0
    assert raw_redis.hget(STATE, "topic") == FENCED
    assert lengths(raw_redis) == before
    with announced(raw_redis, STREAM, b"the next message"):
        assert clear(raw_redis, entries=1) == 0
        raw_redis.spublish(STREAM, "the next message")
    assert clear(raw_redis) == 1
    assert raw_redis.keys() == []


def test_an_empty_partition_needs_no_other_step(raw_redis: Any) -> None:
    raw_redis.hset(STATE, "topic", "id-1")
    assert clear(raw_redis, entries=0, size=0) == 1
    assert raw_redis.keys() == []


@pytest.mark.parametrize("owner", ["id-2", "deleted id-2", "", None])
def test_clear_leaves_a_partition_of_another_topic_or_of_none_alone(
    raw_redis: Any, owner: str | None
) -> None:
    fill(raw_redis, owner or "")
    if owner is None:
        raw_redis.delete(STATE)
    with unchanged(raw_redis):
        assert clear(raw_redis) == 1


def test_a_state_of_another_type_keeps_nothing_from_going(raw_redis: Any) -> None:
    fill_streams(raw_redis, entries=20, size=100)
    raw_redis.delete(STATE)
    raw_redis.set(STATE, "no state")
    assert clear(raw_redis, entries=0) == 0
    assert raw_redis.get(STATE) == b"no state"  # no script takes it for a log
    assert clear(raw_redis) == 1
    assert raw_redis.keys() == []


def fill_streams(client: Any, entries: int, size: int) -> None:
    """Make a partition with entries of this number and size, half of them in a compacted stream."""
    for number in range(entries):
        client.xadd((STREAM, CLEAN[1])[number % 2], {"v": "x" * (size - 1)})
    client.hset(STATE, mapping={"topic": "id-1", "start_bytes": 7})
    change_log(client, STATE, size_bytes=7 + entries * size)


def lengths(client: Any) -> list[int]:
    return [client.xlen(key) for key in (STREAM, CLEAN[1])]


@pytest.mark.parametrize(("entries", "size"), [(30, 1 << 20), (1000, 3000)])
def test_clear_gives_back_so_many_entries_or_bytes_and_goes_on(
    raw_redis: Any, entries: int, size: int
) -> None:
    fill_streams(raw_redis, entries=100, size=100)
    left = []
    for _ in range(3):
        assert clear(raw_redis, entries=entries, size=size) == 0
        left.append(lengths(raw_redis))
    assert left == [[20, 50], [0, 40], [0, 10]]
    assert clear(raw_redis, entries=entries, size=size) == 1
    assert raw_redis.keys() == []


def test_clear_gives_back_something_however_large_it_is(raw_redis: Any) -> None:
    fill_streams(raw_redis, entries=4, size=5000)
    steps = 1
    while clear(raw_redis, size=10) == 0:
        steps += 1
    assert steps == 4


@pytest.mark.parametrize(
    "counted", [{}, {"log": "garbage"}, {"log": PackedLog(size_bytes=5).pack(), "start_bytes": "9999"}]
)
def test_clear_does_without_what_the_state_has_counted(raw_redis: Any, counted: dict[str, Any]) -> None:
    fill_streams(raw_redis, entries=100, size=100)
    raw_redis.hdel(STATE, "log", "start_bytes")
    if counted:
        raw_redis.hset(STATE, mapping=counted)
    assert clear(raw_redis, entries=50) == 0
    assert lengths(raw_redis) == [0, 50]
    assert clear(raw_redis) == 1


def row_of(topic_id: str, metadata: str = "") -> str:
    return f'{{"offset":1,"epoch":0,"metadata":"{metadata}","topic_id":"{topic_id}","ms":1}}'


def test_forget_removes_rows_of_the_topic_id_alone(raw_redis: Any) -> None:
    quoted = r"\"topic_id\":\"id-1\""
    rows = {
        STREAM: row_of("id-1"),
        of_partition(STREAM, 1): row_of("id-1", quoted),
        of_partition(STREAM, 2): row_of("id-2", quoted),
        "korvet:other:0": row_of("id-11"),
        "korvet:third:0": row_of("id-3"),
        "korvet:damaged:0": "{",
    }
    raw_redis.hset(OFFSETS, mapping=rows)
    assert run(raw_redis, "topic/forget", [OFFSETS, PENDING], ["0", 100, "id-1", "id-3"]) == [b"0", 3]
    left = {of_partition(STREAM, 2).encode(), b"korvet:other:0", b"korvet:damaged:0"}
    assert set(raw_redis.hkeys(OFFSETS)) == left


def test_forget_looks_at_so_many_rows_and_goes_on(raw_redis: Any) -> None:
    raw_redis.hset(OFFSETS, mapping={f"korvet:orders:{number}": row_of("id-1") for number in range(2000)})
    cursor, steps, removed = b"0", 0, 0
    while steps == 0 or cursor != b"0":
        cursor, count = run(raw_redis, "topic/forget", [OFFSETS, PENDING], [cursor, 100, "id-1"])
        steps, removed = steps + 1, removed + count
    assert removed == 2000
    assert steps > 5
    assert not raw_redis.exists(OFFSETS)


def test_forget_passes_over_what_holds_no_commits(raw_redis: Any) -> None:
    assert run(raw_redis, "topic/forget", [OFFSETS, PENDING], ["0", 100, "id-1"]) == [b"0", 0]
    raw_redis.set(OFFSETS, "x")
    assert run(raw_redis, "topic/forget", [OFFSETS, PENDING], ["0", 100, "id-1"]) == [b"0", 0]
    assert raw_redis.get(OFFSETS) == b"x"
