"""Stored batches whose records cannot be read: every reader of a log passes each kind, and goes on after it.

Produce refuses them; builds that did not walk over the records have stored them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from korvet_core import Fetched

from korvet.log.offsets import OffsetFound, OffsetQuery
from korvet.log.trim import Trim, Trimmed, TrimStore
from korvet.log.types import Read
from korvet.protocol.types import SpecialTimestamp
from korvet.share.reading import piece
from korvet.telemetry import metrics
from korvet.topics.registry import TopicSpec
from tests.log.compacting import TOPIC, CompactedLog
from tests.support.batches import LINKED, MALFORMED, TIMESTAMP, Record, headers_of
from tests.support.domain import Domain

UNREADABLE = {kind: data for kind, data in MALFORMED.items() if kind != LINKED}


class Mixed(NamedTuple):
    """A log with a sound record before and after each unreadable batch."""

    sound: list[int]
    holes: list[tuple[int, int]]
    stored: dict[int, bytes]


def mixed(here: Domain, topic: str) -> Mixed:
    log = Mixed([], [], {})
    for number, data in enumerate(UNREADABLE.values()):
        log.sound.append(here.append(topic, Record(b"sound", b"key %d" % number, TIMESTAMP + number)))
        base = here.put(topic, data)
        log.holes.append((base, base + headers_of(data)[0].last_offset_delta + 1))
        log.stored[base] = data
    log.sound.append(here.append(topic, Record(b"last", b"last", TIMESTAMP + 1000)))
    return log


@pytest.fixture
def log(here: Domain) -> Mixed:
    here.topics.create(TopicSpec(name="orders", partitions=1, configs={"storage.format": "batch"}))
    return mixed(here, "orders")


def test_a_fetch_passes_on_every_batch_as_it_was_stored(here: Domain, log: Mixed) -> None:
    offset = 0
    seen = {}
    while True:
        [answer] = here.fetch(here.wanted("orders", offset=offset, bytes_max=1))
        assert not answer.error
        if not answer.chunks:
            break
        data = b"".join(answer.chunks)
        [header] = headers_of(data)
        seen[header.base_offset] = data[16:]
        offset = header.base_offset + header.last_offset_delta + 1
    assert offset == answer.high_watermark == log.sound[-1] + 1
    assert {base: seen[base] for base in log.stored} == {base: data[16:] for base, data in log.stored.items()}
    assert set(seen) == {*log.sound, *log.stored}


def test_a_search_by_timestamp_finds_the_records_after_them(here: Domain, log: Mixed) -> None:
    partition = here.topics.get("orders").partition(0)
    for number, offset in enumerate(log.sound[:-1]):
        [answer] = here.offsets.find([OffsetQuery(partition, TIMESTAMP + number)])
        assert isinstance(answer, OffsetFound)
        assert (answer.offset, answer.timestamp) == (offset, TIMESTAMP + number)
    for timestamp in (TIMESTAMP + 1000, SpecialTimestamp.MAX_TIMESTAMP):
        [answer] = here.offsets.find([OffsetQuery(partition, timestamp)])
        assert isinstance(answer, OffsetFound)
        assert (answer.offset, answer.timestamp) == (log.sound[-1], TIMESTAMP + 1000)


def test_a_search_finds_an_unreadable_batch_at_its_own_offset(here: Domain) -> None:
    here.topics.create(TopicSpec(name="orders", partitions=1, configs={"storage.format": "batch"}))
    partition = here.topics.get("orders").partition(0)
    for data in UNREADABLE.values():
        here.append("orders", Record(b"old", timestamp=5))
        base = here.put("orders", data)
        for timestamp in (6, SpecialTimestamp.MAX_TIMESTAMP):
            [answer] = here.offsets.find([OffsetQuery(partition, timestamp)])
            assert isinstance(answer, OffsetFound)
            assert answer.offset == base
        [trimmed] = TrimStore(here.redis).trim([Trim(partition, base + 1)])
        assert isinstance(trimmed, Trimmed)


def test_compaction_keeps_every_batch_that_it_cannot_read_and_says_so_once(
    here: Domain, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    table = CompactedLog(here, raw_redis, "batch")
    log = mixed(here, TOPIC)
    before = raw_redis.xrange(table.partition.stream)
    counted = metrics.COMPACTION_UNREADABLE._value.get()
    for _ in range(2):
        done = table.compacted()
        kept = raw_redis.xrange(table.partition.compacted[table.field("clean")])
        assert kept[: len(before)] == before
        assert done.compacted_end == here.append(TOPIC, Record(b"again", b"again"))
    assert metrics.COMPACTION_UNREADABLE._value.get() - counted == len(log.holes)
    assert [line.message.partition(" cannot")[0] for line in caplog.records] == [
        f"{table.partition.stream}: the batch before offset {end}" for _, end in log.holes
    ]


def test_a_share_group_acquires_all_offsets_of_a_log(here: Domain, log: Mixed) -> None:
    [fetched] = here.log.read([Read(here.topics.get("orders").partition(0), 0, 100)])
    assert isinstance(fetched, Fetched)
    made = piece(0, fetched, 1 << 20)
    assert made is not None
    assert made.readable.end == log.sound[-1] + 1
    assert made.acquirable == log.sound[-1] + 1
