"""What appending does in both formats: the fence, idempotence, announcements, and nothing half-written."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from korvet.topics.entry_ids import OFFSETS_END
from tests.lua.support import PRODUCERS, STATE, STREAM, BatchLog, Log, announced, refused, unchanged

HOUR_MS = 3_600_000
SEQUENCE_MAX = 2**31 - 1


@pytest.fixture(params=["own fields", "two shared fields", "three shared fields", "batch"])
def log(raw_redis: Any, request: pytest.FixtureRequest) -> Log:
    if request.param == "batch":
        return BatchLog(raw_redis)
    shared = {"own fields": 0, "two shared fields": 2, "three shared fields": 3}
    return Log(raw_redis, shared=shared[request.param])


def test_the_state_keeps_bytes_largest_timestamp_and_first_offset(log: Log) -> None:
    base = log.appended("a", max_timestamp=2**63 - 1)
    log.appended("b", max_timestamp=7)
    state = log.state()
    assert (state["bytes"], state["max_timestamp"], state["first"]) == ("200", str(2**63 - 1), str(base))
    assert state["start"] == "0"


def test_the_log_start_of_the_answer_follows_retention(log: Log) -> None:
    base = log.appended("a", "b", "c")
    log.client.hset(STATE, "start", base + 2)
    assert int(log.append("d")[2]) == base + 2


def test_an_append_is_announced_with_the_new_high_watermark(log: Log) -> None:
    with announced(log.client, STREAM) as listener:
        log.appended("a", "b")
        assert listener.get_message(timeout=10)["data"] == str(log.next()).encode()


def test_used_up_offsets_are_refused_before_anything_is_written(log: Log) -> None:
    log.client.hset(STATE, "next", str(OFFSETS_END - 2))
    with refused(log.client, r"^KAFKA_STORAGE_ERROR the offsets of korvet:orders:0 are used up"):
        log.append("a", "b", "c")
    assert log.appended("a", "b") == OFFSETS_END - 2


def test_a_repeated_batch_of_the_last_five_is_answered_with_its_first_offset(log: Log) -> None:
    bases = [log.appended("a", "b", producer=7, sequence=2 * n) for n in range(5)]
    with unchanged(log.client):
        for n, base in enumerate(bases):
            outcome, again, *_ = log.append("a", "b", producer=7, sequence=2 * n)
            assert (outcome, int(again)) == (b"DUPLICATE", base)


@pytest.mark.parametrize(("sequence", "count"), [(0, 2), (11, 1)])
def test_what_was_written_before_is_out_of_order_unless_it_is_one_of_the_last_five_batches(
    log: Log, sequence: int, count: int
) -> None:
    for n in range(6):
        log.appended("a", "b", producer=7, sequence=2 * n)
    with refused(log.client, r"^OUT_OF_ORDER_SEQUENCE_NUMBER "):
        log.append(*["a"] * count, producer=7, sequence=sequence)


@pytest.mark.parametrize(("sequence", "count"), [(3, 1), (4, 2), (1, 2), (0, 3), (2**30, 1)])
def test_a_gap_or_an_overlap_is_out_of_order(log: Log, sequence: int, count: int) -> None:
    log.appended("a", "b", producer=7, sequence=0)
    with refused(log.client, r"^OUT_OF_ORDER_SEQUENCE_NUMBER "):
        log.append(*["x"] * count, producer=7, sequence=sequence)


def test_sequences_wrap_to_zero(log: Log) -> None:
    log.appended("a", "b", producer=7, sequence=SEQUENCE_MAX - 2)
    across = log.appended("c", "d", producer=7, sequence=SEQUENCE_MAX)
    log.appended("e", producer=7, sequence=1)
    assert log.append("c", "d", producer=7, sequence=SEQUENCE_MAX)[:2] == [b"DUPLICATE", str(across).encode()]
    with pytest.raises(redis.ResponseError, match=r"^OUT_OF_ORDER_SEQUENCE_NUMBER "):
        log.append("x", producer=7, sequence=3)
    assert log.values() == ["a", "b", "c", "d", "e"]


def test_a_higher_epoch_begins_at_sequence_zero(log: Log) -> None:
    log.appended("a", producer=7, epoch=3)
    with pytest.raises(redis.ResponseError, match=r"^OUT_OF_ORDER_SEQUENCE_NUMBER "):
        log.append("b", producer=7, epoch=4, sequence=1)
    log.appended("b", producer=7, epoch=4, sequence=0)
    with pytest.raises(redis.ResponseError, match=r"^INVALID_PRODUCER_EPOCH "):
        log.append("c", producer=7, epoch=3, sequence=1)
    assert log.values() == ["a", "b"]


def test_an_unknown_producer_is_accepted_at_any_sequence(log: Log) -> None:
    log.appended("a", producer=2**62, epoch=5, sequence=1234)
    assert log.append("a", producer=2**62, epoch=5, sequence=1234)[0] == b"DUPLICATE"


def test_a_producers_row_holds_epoch_time_and_five_batches(log: Log) -> None:
    bases = [log.appended("a", producer=7, epoch=2, sequence=n) for n in range(7)]
    epoch, at_ms, *batches = log.client.hget(PRODUCERS, "7").decode().split(" ")
    assert epoch == "2"
    assert abs(int(at_ms) - int(time.time() * 1000)) < HOUR_MS
    assert batches == [f"{n}-{n}@{bases[n]}" for n in range(2, 7)]
