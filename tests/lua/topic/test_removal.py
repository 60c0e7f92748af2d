"""The scripts of a deletion in steps against a real server: mark, clear, forget, remove."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.support import (
    CHANGES,
    CLEAN,
    REGISTRY,
    SIDE_KEYS,
    STATE,
    STREAM,
    announced,
    of_partition,
    run,
    unchanged,
)

OFFSETS = "korvet:group:g:offsets"
PER_PARTITION = (STATE, STREAM, *SIDE_KEYS)
ROW, MARKED = "as it was read", "marked"


def fill(client: Any, owner: str = "id-1") -> None:
    client.hset(REGISTRY, "orders", ROW)
    for partition in range(2):
        for key in PER_PARTITION[1:]:
            client.set(of_partition(key, partition), "x")
        client.hset(of_partition(STATE, partition), mapping={"topic": owner, "next": "5"})


def mark(client: Any, expected: str = ROW, partitions: int = 2) -> Any:
    states = [of_partition(STATE, partition) for partition in range(partitions)]
    args = ["orders", "id-1", expected, MARKED, REGISTRY, 100]
    return run(client, "topic/mark", [REGISTRY, CHANGES, *states], args)


def clear(client: Any, topic_id: str = "id-1", entries: int = 1000, size: int = 1 << 20) -> Any:
    keys = [of_partition(key, partition) for partition in range(2) for key in PER_PARTITION]
    return run(client, "topic/clear", keys, [topic_id, entries, size, "korvet:orders:0", "korvet:orders:1"])


def remove(client: Any, marked: str = MARKED) -> Any:
    return run(client, "topic/remove", [REGISTRY, CHANGES], ["orders", marked, REGISTRY, 100])


def test_mark_announces_and_fences_together(raw_redis: Any) -> None:
    fill(raw_redis)
    with announced(raw_redis, REGISTRY, b"1"):
        assert mark(raw_redis) == 1
    assert raw_redis.hgetall(REGISTRY) == {b"orders": MARKED.encode()}
    assert raw_redis.zscore(CHANGES, "orders") == 1
    for partition in range(2):
        state = of_partition(STATE, partition)
        assert raw_redis.hgetall(state) == {b"topic": b"deleted id-1", b"next": b"5"}


def test_a_second_mark_only_fences(raw_redis: Any) -> None:
    fill(raw_redis)
    assert mark(raw_redis, partitions=1) == 1
    assert raw_redis.hget(of_partition(STATE, 1), "topic") == b"id-1"
    assert mark(raw_redis, expected=MARKED) == 1
    assert raw_redis.hget(of_partition(STATE, 1), "topic") == b"deleted id-1"
    assert raw_redis.zscore(CHANGES, "orders") == 1


@pytest.mark.parametrize("row", [None, "another"])
def test_a_row_that_is_another_by_now_is_not_marked(raw_redis: Any, row: str | None) -> None:
    fill(raw_redis)
    raw_redis.delete(REGISTRY)
    if row is not None:
        raw_redis.hset(REGISTRY, "orders", row)
    with unchanged(raw_redis):
        assert mark(raw_redis) == 0


def test_states_that_are_gone_or_damaged_are_fenced_as_far_as_there_is_need(raw_redis: Any) -> None:
    fill(raw_redis)
    raw_redis.delete(STATE, of_partition(STATE, 1))
    raw_redis.set(of_partition(STATE, 1), "no state")
    assert mark(raw_redis) == 1
    assert not raw_redis.exists(STATE)
    assert raw_redis.hgetall(of_partition(STATE, 1)) == {b"topic": b"deleted id-1"}


@pytest.mark.parametrize("owner", ["id-1", "deleted id-1"])
def test_clear_deletes_partitions_and_wakes_waiting_fetches(raw_redis: Any, owner: str) -> None:
    fill(raw_redis, owner)
    channels = ["korvet:orders:0", "korvet:orders:1"]
    with raw_redis.pubsub() as listener:
        listener.subscribe(*channels)
        for _ in channels:
            assert listener.get_message(timeout=10)["type"] == "subscribe"
        assert clear(raw_redis) == 2
        published = [listener.get_message(timeout=10) for _ in channels]
    assert [(each["channel"].decode(), each["data"]) for each in published] == [
        (each, b"-1") for each in channels
    ]
    assert raw_redis.keys() == [REGISTRY.encode()]


@pytest.mark.parametrize("owner", ["id-2", "deleted id-2", ""])
def test_clear_leaves_partitions_of_another_topic_alone(raw_redis: Any, owner: str) -> None:
    fill(raw_redis, owner)
    with unchanged(raw_redis):
        assert clear(raw_redis) == 2


def test_clear_leaves_alone_what_has_no_state(raw_redis: Any) -> None:
    fill(raw_redis)
    raw_redis.delete(STATE)
    assert clear(raw_redis) == 2
    assert raw_redis.exists(STREAM)
    assert not raw_redis.exists(of_partition(STREAM, 1))


def fill_streams(client: Any, entries: int, size: int) -> None:
    """Make two partitions with entries of this number and size, half of them in a compacted stream."""
    fill(client)
    for partition in range(2):
        for key in PER_PARTITION[1:]:
            client.delete(of_partition(key, partition))
        for number in range(entries):
            stream = of_partition((STREAM, CLEAN[1])[number % 2], partition)
            client.xadd(stream, {"v": "x" * (size - 1)})
        client.hset(of_partition(STATE, partition), mapping={"bytes": 7 + entries * size, "start_bytes": 7})


def lengths(client: Any) -> list[int]:
    return [client.xlen(of_partition(key, partition)) for partition in range(2) for key in (STREAM, CLEAN[1])]


@pytest.mark.parametrize(("entries", "size"), [(30, 1 << 20), (1000, 3000)])
def test_clear_gives_back_so_many_entries_or_bytes_and_goes_on(
    raw_redis: Any, entries: int, size: int
) -> None:
    fill_streams(raw_redis, entries=100, size=100)
    left = []
    for finished in (0, 0, 0, 1):
        assert clear(raw_redis, entries=entries, size=size) == finished
        left.append(lengths(raw_redis))
    assert left == [[20, 50, 50, 50], [0, 40, 50, 50], [0, 10, 50, 50], [0, 0, 30, 50]]
    steps = 4
    while clear(raw_redis, entries=entries, size=size) < 2:
        steps += 1
    assert steps == 6
    assert raw_redis.keys() == [REGISTRY.encode()]


def test_clear_gives_back_something_however_large_it_is(raw_redis: Any) -> None:
    fill_streams(raw_redis, entries=4, size=5000)
    steps = 1
    while clear(raw_redis, size=10) < 2:
        steps += 1
    assert steps == 8


@pytest.mark.parametrize("counted", [{}, {"bytes": "garbage"}, {"bytes": "5", "start_bytes": "9999"}])
def test_clear_does_without_what_the_state_has_counted(raw_redis: Any, counted: dict[str, str]) -> None:
    fill_streams(raw_redis, entries=100, size=100)
    raw_redis.hdel(STATE, "bytes", "start_bytes")
    if counted:
        raw_redis.hset(STATE, mapping=counted)
    assert clear(raw_redis, entries=50) == 0
    assert lengths(raw_redis) == [0, 50, 50, 50]
    assert clear(raw_redis) == 2


def row_of(topic_id: str, metadata: str = "") -> str:
    return f'{{"offset":1,"epoch":0,"metadata":"{metadata}","topic_id":"{topic_id}","ms":1}}'


def test_forget_removes_rows_of_the_topic_id_alone(raw_redis: Any) -> None:
    quoted = r"\"topic_id\":\"id-1\""
    rows = {
        STREAM: row_of("id-1"),
        of_partition(STREAM, 1): row_of("id-1", quoted),
        of_partition(STREAM, 2): row_of("id-2", quoted),
        "korvet:other:0": row_of("id-11"),
        "korvet:damaged:0": "{",
    }
    raw_redis.hset(OFFSETS, mapping=rows)
    assert run(raw_redis, "topic/forget", [OFFSETS], ["id-1", "0", 100]) == [b"0", 2]
    left = {of_partition(STREAM, 2).encode(), b"korvet:other:0", b"korvet:damaged:0"}
    assert set(raw_redis.hkeys(OFFSETS)) == left


def test_forget_looks_at_so_many_rows_and_goes_on(raw_redis: Any) -> None:
    raw_redis.hset(OFFSETS, mapping={f"korvet:orders:{number}": row_of("id-1") for number in range(2000)})
    cursor, steps, removed = b"0", 0, 0
    while steps == 0 or cursor != b"0":
        cursor, count = run(raw_redis, "topic/forget", [OFFSETS], ["id-1", cursor, 100])
        steps, removed = steps + 1, removed + count
    assert removed == 2000
    assert steps > 5
    assert not raw_redis.exists(OFFSETS)


def test_forget_passes_over_what_holds_no_commits(raw_redis: Any) -> None:
    assert run(raw_redis, "topic/forget", [OFFSETS], ["id-1", "0", 100]) == [b"0", 0]
    raw_redis.set(OFFSETS, "x")
    assert run(raw_redis, "topic/forget", [OFFSETS], ["id-1", "0", 100]) == [b"0", 0]
    assert raw_redis.get(OFFSETS) == b"x"


def test_remove_takes_the_marked_row_and_announces_it(raw_redis: Any) -> None:
    raw_redis.hset(REGISTRY, mapping={"orders": MARKED, "others": "row"})
    with announced(raw_redis, REGISTRY, b"1"):
        assert remove(raw_redis) == 1
    assert raw_redis.hkeys(REGISTRY) == [b"others"]
    assert raw_redis.zscore(CHANGES, "orders") == 1


@pytest.mark.parametrize("row", [None, ROW])
def test_a_row_that_is_another_by_now_is_not_removed(raw_redis: Any, row: str | None) -> None:
    if row is not None:
        raw_redis.hset(REGISTRY, "orders", row)
    assert remove(raw_redis) == 0
    assert raw_redis.hget(REGISTRY, "orders") == (row and row.encode())
    assert not raw_redis.exists(CHANGES)
