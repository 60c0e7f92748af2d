"""Entries of other clients between the batches of a log in format `batch`: no reader takes them for records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from korvet_core import Fetched

from korvet.config.settings import Settings
from korvet.log.compaction import Compactor
from korvet.log.compaction_store import CompactionStore
from korvet.log.index import IndexStore, Lag
from korvet.log.index_repair import IndexRepair, Repaired
from korvet.log.offsets import OffsetFound, OffsetLookup, OffsetQuery
from korvet.log.types import LogPosition, Read
from korvet.topics import config as topic_config
from tests.lake.both import TOPIC, Both, both
from tests.support.batches import Record
from tests.support.domain import NO_LAKE
from tests.support.log_bench import records_of

START, END = 2, 6
RECORDS = [(offset, b"%d" % offset) for offset in range(START, END)]
"""Each record's key, value and timestamp is its offset."""

BYTES_MAX = 1 << 20
AGE_MS_MIN = 10**12
"""A record of 1970 is older."""


def append(log: Both, *offsets: int) -> None:
    """Append a batch whose records get these offsets; each has a key of its own."""
    texts = [b"%d" % offset for offset in offsets]
    records = [Record(text, text, offset) for text, offset in zip(texts, offsets, strict=True)]
    assert log.worker.append(TOPIC, *records) == offsets[0]


@pytest.fixture
def log(redis_url: str, raw_redis: Any, tmp_path: Path) -> Iterator[Both]:
    """Give a log that begins with an entry of another client, and has another one between its batches.

    For each of them the client has removed an entry, so no append saw that the stream had grown.
    """
    with both(redis_url, tmp_path / "lake") as made:
        stream = made.partition.stream
        append(made, 0)
        append(made, 1)
        for removed, external, offset in (("0-1", "0-3", 2), ("0-2", "0-5", 4)):
            assert raw_redis.xdel(stream, removed) == 1
            raw_redis.xadd(stream, {"value": "external"}, id=external)
            append(made, offset, offset + 1)
        made.trim(START)
        assert [entry_id for entry_id, _ in raw_redis.xrange(stream)] == [b"0-3", b"0-4", b"0-5", b"0-6"]
        yield made


def fetched(log: Both) -> list[tuple[int, bytes | None]]:
    """Read on from the start as a consumer does, entry by entry."""
    records: list[tuple[int, bytes | None]] = []
    offset = START
    while offset < END:
        [result] = log.worker.log.read([Read(log.partition, offset, 1)])
        assert isinstance(result, Fetched)
        records += [(record.offset, record.value) for record in records_of(result, offset)]
        assert result.next_offset is not None
        offset = result.next_offset
    return records


def by_timestamp(log: Both) -> list[tuple[int, bytes | None]]:
    """Look each record up by its timestamp."""
    lookup = OffsetLookup(log.worker.log, IndexStore(log.worker.redis), NO_LAKE)
    answers = lookup.find([OffsetQuery(log.partition, timestamp) for timestamp in range(START, END)])
    assert all(isinstance(answer, OffsetFound) for answer in answers)
    return [(item.offset, b"%d" % item.timestamp) for item in answers if isinstance(item, OffsetFound)]


def by_age(log: Both) -> list[tuple[int, bytes | None]]:
    """Read the age of the first record of each batch, and what follows from it."""
    positions = [LogPosition(log.partition, offset) for offset in (START, 4)]
    lags = IndexStore(log.worker.redis).lags(positions)
    known = [lag for lag in lags if isinstance(lag, Lag)]
    assert [lag.records for lag in known] == [4, 2]
    assert all(lag.age_ms > AGE_MS_MIN for lag in known)
    return fetched(log)


def compacted(log: Both) -> list[tuple[int, bytes | None]]:
    """Compact all: every record stays."""
    config = topic_config.effective(
        {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}, Settings()
    )
    store = CompactionStore(log.worker.redis)
    compactor = Compactor(store, log.worker.log, buffer_bytes=1 << 20, decompressed_bytes_max=BYTES_MAX)
    [plan], errors = compactor.plans([(log.partition, config)], lambda: None)
    assert errors == []
    done = compactor.compact(plan, lambda: None)
    assert done is not None
    assert done.unkeyed == 0
    return fetched(log)


def repaired(log: Both) -> list[tuple[int, bytes | None]]:
    """Rebuild the index, and look records up by it."""
    redis, partition = log.worker.redis, log.partition
    redis.call("DEL", partition.index_key)
    redis.call("HSET", partition.state, "reindex", "1")
    [(_, outcome)] = IndexRepair(redis).repair([partition], lambda: None)
    assert outcome == Repaired(rebuilt=1)
    totals, [row] = IndexStore(redis).page(partition, START)
    assert (row.offset, row.records, row.bytes) == (END, totals.records, totals.bytes)
    assert (row.largest, row.interval) == (END - 1, END - 1)
    assert (totals.start_records, totals.records) == (START, END)
    return by_timestamp(log)


def archived(log: Both) -> list[tuple[int, bytes | None]]:
    """Archive all, and read it from the lake."""
    log.archive()
    log.trim(END)
    return list(log.scanned())


@pytest.mark.parametrize("read", [fetched, by_timestamp, by_age, compacted, repaired, archived])
def test_no_reader_takes_an_entry_of_another_client_for_a_record(
    log: Both, read: Callable[[Both], list[tuple[int, bytes | None]]]
) -> None:
    assert read(log) == RECORDS
