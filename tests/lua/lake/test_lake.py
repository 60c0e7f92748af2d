"""lua/lake against a real server: how far a log is archived, and where it starts in the lake."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.lua.support import STATE, TOPIC_ID, BatchLog, Log, run, unchanged


def mirror(client: Any, archived: int, first: int) -> list[int]:
    return [int(item) for item in run(client, "lake/mirror", [STATE], [TOPIC_ID, archived, first])]


def expire(client: Any, start: int) -> int:
    return int(run(client, "lake/expire", [STATE], [TOPIC_ID, start]))


def log(client: Any, records: int) -> BatchLog:
    made = BatchLog(client)
    for number in range(records):
        made.appended(f"v{number}")
    return made


def test_the_mirror_goes_forward_only_and_its_start_is_recorded_once(raw_redis: Any) -> None:
    made = log(raw_redis, 10)
    assert mirror(raw_redis, 4, 1) == [4, 1]
    assert mirror(raw_redis, 7, 3) == [7, 1]
    assert mirror(raw_redis, 5, 0) == [7, 1]
    counters = made.log
    assert (made.state()["archived"], counters.lake_start, counters.next_offset, counters.start) == (
        "7",
        1,
        10,
        0,
    )


def test_the_start_in_the_lake_goes_forward_only_and_not_where_there_is_none(raw_redis: Any) -> None:
    made = log(raw_redis, 10)
    assert expire(raw_redis, 5) == -1
    assert made.log.lake_start == -1
    mirror(raw_redis, 8, 2)
    assert expire(raw_redis, 5) == 5
    assert expire(raw_redis, 3) == 5
    assert expire(raw_redis, 10) == 10
    assert (made.state()["archived"], made.log.lake_start) == ("8", 10)


def test_what_was_deleted_before_it_was_recorded_stays_deleted(raw_redis: Any) -> None:
    made = log(raw_redis, 10)
    made.change(start=4)
    assert mirror(raw_redis, 7, 1) == [7, 4]
    made.change(start=6)
    assert mirror(raw_redis, 8, 1) == [8, 4]


def test_large_offsets_stay_exact(raw_redis: Any) -> None:
    made = Log(raw_redis)
    base = made.appended("a", "b")
    assert mirror(raw_redis, base + 2, base + 1) == [base + 2, base + 1]
    assert expire(raw_redis, base + 2) == base + 2


def test_nothing_lies_past_the_end(raw_redis: Any) -> None:
    log(raw_redis, 3)
    mirror(raw_redis, 3, 0)
    with unchanged(raw_redis):
        for call in (lambda: mirror(raw_redis, 4, 0), lambda: expire(raw_redis, 4)):
            with pytest.raises(redis.ResponseError, match="OFFSET_OUT_OF_RANGE"):
                call()


def test_an_append_returns_the_start_of_the_whole_log(raw_redis: Any) -> None:
    made = log(raw_redis, 10)
    mirror(raw_redis, 6, 2)
    made.change(start=5)
    assert made.append("v").log_start == 2
    expire(raw_redis, 7)
    assert made.append("v").log_start == 7
