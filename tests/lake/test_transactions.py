"""Transactions in archived topics: the lake and scans have what was committed, and nothing else, in both formats."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from korvet.lake import tasks
from korvet.lake.scan import first_offset_from, offset_after, snapshots
from korvet.lake.schema import HEADERS, OFFSET, VALUE
from korvet.lake.tasks import RangeReader
from korvet.lake.verify import status, verify
from korvet.log.stats import LakeLagReader
from tests.lake.both import TOPIC, Both, both
from tests.support.batches import Record
from tests.support.log_bench import LAYOUTS
from tests.support.transactions import TransactionalProducer


class Log:
    """A topic, and what was committed in it so far: offset and value of each record."""

    def __init__(self, made: Both) -> None:
        self.both = made
        self.committed: list[tuple[int, bytes]] = []

    def producer(self, producer_id: int) -> TransactionalProducer:
        return TransactionalProducer(self.both.worker, TOPIC, producer_id)

    def plain(self, value: bytes) -> int:
        return self.both.worker.append(TOPIC, value)

    def archived(self) -> list[tuple[int, bytes]]:
        """Return what the table holds."""
        data = self.both.lake.data_files(self.both.topic.of)
        return [
            item
            for file in self.both.files()
            for group in data.groups(file.path)
            for item in zip(
                data.group_rows(group).column(OFFSET).to_pylist(),
                data.group_rows(group).column(VALUE).to_pylist(),
                strict=True,
            )
        ]

    def in_redis(self) -> list[tuple[int, bytes, Any]]:
        """Return offset, value and headers of what is to be archived, read entry by entry."""
        end = self.both.bounds.stable_offset
        reader = RangeReader(self.both.stores.logs, self.both.partition, (0, end))
        result = [
            item
            for rows in reader.rows()
            for item in zip(
                *(rows.column(name).to_pylist() for name in (OFFSET, VALUE, HEADERS)), strict=True
            )
        ]
        assert (reader.error, reader.next_offset, reader.holes) == (None, end, [])
        return result

    def is_sound(self) -> bool:
        return not next(iter(verify(self.both.stores, self.both.topic))).findings


@pytest.fixture(params=LAYOUTS)
def log(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Iterator[Log]:
    with both(redis_url, tmp_path / "lake", request.param) as made:
        yield Log(made)


def test_what_was_aborted_is_not_archived_and_no_marker(log: Log) -> None:
    one, other = log.producer(7), log.producer(8)
    first = one.write(b"a", b"b")
    other.write(b"aborted")
    plain = log.plain(b"plain")
    other.abort()
    one.commit()
    second = other.write(b"c")
    other.commit()
    expected = [(first, b"a"), (first + 1, b"b"), (plain, b"plain"), (second, b"c")]
    assert log.both.scanned() == expected
    log.both.archive()
    assert log.archived() == expected
    assert log.both.scanned() == expected
    assert log.both.bounds.archived == log.both.bounds.high_watermark
    assert log.is_sound()


def test_archiving_ends_where_the_oldest_open_transaction_begins(log: Log) -> None:
    before = log.plain(b"before")
    producer, other = log.producer(7), log.producer(8)
    begun = producer.write(b"open")
    after = log.plain(b"after")
    other.write(b"aborted")
    other.abort()
    log.both.archive()
    assert log.archived() == [(before, b"before")]
    assert before < log.both.bounds.archived <= begun  # no offset between them has a record
    assert log.both.scanned() == [(before, b"before")]
    log.both.archive()
    producer.commit()
    log.both.archive()
    expected = [(before, b"before"), (begun, b"open"), (after, b"after")]
    assert log.archived() == expected
    assert log.both.bounds.archived == log.both.bounds.high_watermark
    assert log.is_sound()


def test_a_log_of_nothing_that_counts_is_archived_to_its_end(log: Log) -> None:
    producer = log.producer(7)
    producer.write(b"aborted")
    producer.abort()
    log.both.archive()
    assert log.both.bounds.archived == log.both.bounds.high_watermark
    assert log.both.files() == []
    kept = log.plain(b"kept")
    log.both.archive()
    assert log.archived() == [(kept, b"kept")]
    assert log.is_sound()


def test_rows_have_the_headers_of_their_records_alone(log: Log) -> None:
    producer = log.producer(7)
    at = producer.write(Record(b"v", b"k", 5, (("name", b"text"),)), Record(b"w", b"k", 5))
    producer.commit()
    assert log.in_redis() == [(at, b"v", [{"key": "name", "value": b"text"}]), (at + 1, b"w", None)]


@pytest.mark.parametrize("entries", [1, 2, 3, 2000])
def test_a_transaction_is_aborted_as_a_whole_in_however_many_steps_it_is_read(
    log: Log, monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    monkeypatch.setattr(tasks, "_ENTRIES_FIRST", min(entries, 16))
    monkeypatch.setattr(tasks, "_ENTRIES_MAX", entries)
    generator = random.Random(entries)
    producers = {producer_id: log.producer(producer_id) for producer_id in (5, 6, 7)}
    open_: dict[int, list[tuple[int, bytes]]] = {}
    kept: list[tuple[int, bytes]] = []
    for step in range(120):
        value = b"%d" % step
        producer_id = generator.choice([-1, *producers])
        if producer_id < 0:
            kept.append((log.plain(value), value))
        elif producer_id in open_ and generator.random() < 0.3:
            written = open_.pop(producer_id)
            if generator.random() < 0.5:
                producers[producer_id].commit()
                kept += written
            else:
                producers[producer_id].abort()
        else:
            written = open_.setdefault(producer_id, [])
            written.append((producers[producer_id].write(value), value))
    stable = log.both.bounds.stable_offset
    expected = sorted(kept_file for kept_file in kept if kept_file[0] < stable)
    assert [item[:2] for item in log.in_redis()] == expected
    log.both.archive()
    for producer_id in open_:
        producers[producer_id].abort()
    assert log.archived() == expected
    assert log.both.scanned() == sorted(kept)
    log.both.archive()
    assert log.archived() == sorted(kept)
    assert log.is_sound()


def test_what_is_only_in_the_lake_has_no_gaps_but_those_of_transactions(
    redis_url: str, tmp_path: Path
) -> None:
    with both(redis_url, tmp_path / "lake", "batch") as made:
        log = Log(made)
        producer = log.producer(7)
        for value in (b"a", b"b"):
            producer.write(value)
            producer.commit()
            producer.write(b"aborted")
            producer.abort()
        made.archive()
        left_out = made.table.left_out(0)
        assert left_out == made.bounds.high_watermark
        for value in (b"c", b"d", b"e"):
            log.plain(value)
            made.archive()
        assert made.table.left_out(0) == left_out
        made.trim(made.bounds.high_watermark)
        assert log.is_sound()
        *_, missing, _ = made.files()
        made.table.replace([missing], [], 5)
        assert not log.is_sound()


def test_offsets_are_found_by_time_and_count_past_what_is_left_out(log: Log) -> None:
    producer = log.producer(7)
    producer.write(Record(b"aborted", b"k", 5000))
    producer.abort()
    at = producer.write(Record(b"kept", b"k", 5000))
    producer.commit()
    [snapshot, _] = snapshots(log.both.stores, log.both.topic)
    assert first_offset_from(log.both.stores, snapshot, 4000) == at
    position, steps = 0, 0
    while position < snapshot.end:
        after = offset_after(log.both.stores, snapshot, position, 1)
        assert after > position
        position, steps = after, steps + 1
    assert position == snapshot.end
    assert steps <= 4


def test_an_archived_record_that_redis_has_no_more_is_missed_though_a_marker_follows_it(
    redis_url: str, tmp_path: Path, raw_redis: Any
) -> None:
    with both(redis_url, tmp_path / "lake", "batch") as made:
        producer = Log(made).producer(7)
        producer.write(b"a")
        producer.commit()
        made.archive()
        raw_redis.hdel(made.partition.state, "archived")
        [first, marker] = raw_redis.xrange(made.partition.stream)
        entry = {name: value.replace(b"\x02a\x00", b"\x02z\x00") for name, value in first[1].items()}
        assert entry != first[1]
        raw_redis.delete(made.partition.stream)
        for entry_id, fields in ((first[0], entry), marker):
            raw_redis.xadd(made.partition.stream, fields, entry_id)
        [failure] = made.round().failures
        assert "Redis holds another record at offset 0" in failure.error


def test_what_may_not_be_archived_yet_is_no_lag(log: Log) -> None:
    log.plain(b"before")
    producer = log.producer(7)
    producer.write(b"open")
    log.both.archive()
    stores, partition = log.both.stores, log.both.partition

    def lag() -> int:
        [of_metrics], errors = LakeLagReader(stores.logs, stores.indexes).read([partition], 2**40)
        [of_status, _] = status(log.both.source, [TOPIC])
        assert errors == []
        assert of_status.lag_records == of_metrics.records
        return of_metrics.records

    assert lag() == 0
    producer.commit()
    assert lag() == 2
    log.both.archive()
    assert lag() == 0
