"""What appending does in every layout: the fence, idempotence, announcements, and nothing half-written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis

from korvet.topics.entry_ids import OFFSETS_END
from tests.lua.support import EPOCH, STREAM, Log, announced, refused, unchanged

HOUR_MS = 3_600_000
SEQUENCE_MAX = 2**31 - 1


def test_a_large_batch_is_written_by_one_call(log: Log) -> None:
    values = [str(n) for n in range(20_000)]
    base = log.appended(*values)
    assert log.values() == values
    assert log.offsets() == list(range(base, base + 20_000))


def test_the_log_start_of_the_answer_follows_retention(log: Log) -> None:
    base = log.appended("a", "b", "c")
    log.change(start=base + 2)
    assert log.append("d").log_start == base + 2


def test_large_offsets_are_exact_in_ids_announcements_and_answers(log: Log) -> None:
    base = OFFSETS_END - 6
    log.change(next_offset=base)
    with announced(log.client, STREAM, str(base + 5).encode()):
        appended = log.append(*"abcde", producer=7)
    assert (appended.base, appended.log_start, log.log.first, log.next()) == (base, base, base, base + 5)
    assert log.offsets() == list(range(base, base + 5))
    assert log.append(*"abcde", producer=7)[:2] == (b"DUPLICATE", base)
    assert log.state()["epochs"] == f"{EPOCH}@{base}"


@contextmanager
def replica(client: Any) -> Iterator[None]:
    client.replicaof("127.0.0.1", 1)
    yield
    client.replicaof("NO", "ONE")


@contextmanager
def without_replicas(client: Any) -> Iterator[None]:
    client.config_set("min-replicas-to-write", 1)
    yield
    client.config_set("min-replicas-to-write", 0)


@contextmanager
def busy(client: Any) -> Iterator[None]:
    client.config_set("busy-reply-threshold", 1)
    connection = client.connection_pool.get_connection()
    connection.send_command("EVAL", "while true do end", 0)
    with suppress(redis.ResponseError):
        while client.ping():
            pass
    yield
    client.script_kill()
    with pytest.raises(redis.ResponseError):
        connection.read_response()
    connection.disconnect()
    client.config_set("busy-reply-threshold", 5000)


@pytest.mark.parametrize(
    ("refusing", "error"), [(replica, "read only"), (without_replicas, "NOREPLICAS"), (busy, "BUSY")]
)
def test_what_redis_refuses_to_run_writes_nothing(log: Log, refusing: Any, error: str) -> None:
    log.appended("a")
    log.external("*", "external")
    with unchanged(log.client), refusing(log.client), pytest.raises(redis.ResponseError, match=error):
        log.append("b", producer=7)
    log.appended("b", producer=7)


def test_used_up_offsets_are_refused_before_anything_is_written(log: Log) -> None:
    log.change(next_offset=OFFSETS_END - 2)
    with refused(log.client, "^USED_UP"):
        log.append("a", "b", "c")
    assert log.appended("a", "b") == OFFSETS_END - 2


def test_a_repeated_batch_of_the_last_five_is_answered_with_its_first_offset(log: Log) -> None:
    bases = [log.appended("a", "b", producer=7, sequence=2 * n) for n in range(5)]
    with unchanged(log.client):
        for n, base in enumerate(bases):
            assert log.append("a", "b", producer=7, sequence=2 * n)[:2] == (b"DUPLICATE", base)


@pytest.mark.parametrize(
    ("sequence", "count"), [(13, 1), (14, 2), (11, 2), (11, 1), (10, 3), (2**30, 1), (0, 2)]
)
def test_a_gap_an_overlap_and_what_came_before_the_last_five_batches_are_out_of_order(
    log: Log, sequence: int, count: int
) -> None:
    for n in range(6):
        log.appended("a", "b", producer=7, sequence=2 * n)
    with refused(log.client, r"^OUT_OF_ORDER "):
        log.append(*["x"] * count, producer=7, sequence=sequence)


def test_sequences_wrap_to_zero(log: Log) -> None:
    log.appended("a", "b", producer=7, sequence=SEQUENCE_MAX - 2)
    across = log.appended("c", "d", producer=7, sequence=SEQUENCE_MAX)
    log.appended("e", producer=7, sequence=1)
    assert log.append("c", "d", producer=7, sequence=SEQUENCE_MAX)[:2] == (b"DUPLICATE", across)
    with pytest.raises(redis.ResponseError, match=r"^OUT_OF_ORDER "):
        log.append("x", producer=7, sequence=3)
    assert log.values() == ["a", "b", "c", "d", "e"]


def test_a_higher_epoch_begins_at_sequence_zero(log: Log) -> None:
    log.appended("a", producer=7, epoch=9)
    with pytest.raises(redis.ResponseError, match=r"^OUT_OF_ORDER "):
        log.append("b", producer=7, epoch=10, sequence=1)
    log.appended("b", producer=7, epoch=10, sequence=0)
    with pytest.raises(redis.ResponseError, match=r"^INVALID_PRODUCER_EPOCH "):
        log.append("c", producer=7, epoch=9, sequence=1)
    assert log.values() == ["a", "b"]


def test_an_unknown_producer_is_accepted_at_any_sequence(log: Log) -> None:
    log.appended("a", producer=2**62, epoch=5, sequence=1234)
    assert log.append("a", producer=2**62, epoch=5, sequence=1234)[0] == b"DUPLICATE"


def test_a_producers_row_holds_epoch_time_and_five_batches(log: Log) -> None:
    bases = [log.appended("a", producer=7, epoch=2, sequence=n) for n in range(7)]
    row = log.producers[7]
    assert (row.epoch, row.next_sequence) == (2, 7)
    assert abs(row.last_ms - int(time.time() * 1000)) < HOUR_MS
    assert row.batches == tuple((1, base) for base in reversed(bases[2:]))


def test_a_log_that_holds_no_record_makes_a_missing_stream_again(log: Log) -> None:
    log.client.delete(STREAM)
    log.appended("a", "b")
    log.change(start=log.next())
    log.client.delete(STREAM)
    log.appended("c")
    assert log.values() == ["c"]
    assert log.offsets()[0] >= log.log.start
