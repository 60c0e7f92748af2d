"""Fetch and ListOffsets by bytes on a compacted topic: gaps, batches that lost records, and ranges that lost all."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import redis

from korvet.config.settings import Settings
from korvet.errors import ErrorCode
from korvet.log.compaction import Compactor
from korvet.log.compaction_store import CompactionStore, CompactionSupersededError
from korvet.log.store import LogStore
from korvet.protocol.messages.fetch import FetchResponse
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics import config as topic_config
from korvet.topics.types import Partition
from tests.handlers.formats import BOTH_FORMATS, ONLY_BATCH
from tests.support import processes, redis_servers
from tests.support.batches import TIMESTAMP, Record, batch, headers_of, read
from tests.support.broker import Broker
from tests.support.topic_client import Client, fetch_request

pytestmark = BOTH_FORMATS

FOREVER_MS = 60_000
EARLIEST, LATEST, LARGEST = -2, -1, -3


class Table:
    """A compacted topic, whose records are long past so that a pass takes all of them."""

    def __init__(self, client: Client, topic: str, redis_url: str, storage_format: str) -> None:
        self.client, self.topic, self.format = client, topic, storage_format
        self._url = redis_url
        overrides = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        self.topic_id = client.create(topic, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        self.config = topic_config.effective(overrides | {"storage.format": storage_format}, Settings())

    def append(self, *pairs: tuple[bytes, bytes | None], at: int = 0) -> list[int]:
        """Produce a batch; returns the offsets."""
        records = [Record(value, key, TIMESTAMP + at + n) for n, (key, value) in enumerate(pairs)]
        base = self.client.append(self.topic, *records)
        return list(range(base, base + len(pairs)))

    def compact(self, stored: redis.Redis) -> None:
        """Compact all of it; the broker's own keeper may be faster."""
        connection = Redis(self._url, timeout_ms=5000, connect_timeout_ms=5000)
        logs = LogStore(connection, connection, Keys("korvet"))
        compactor = Compactor(
            CompactionStore(connection), logs, buffer_bytes=1 << 20, decompressed_bytes_max=1 << 20
        )
        partition: Partition = logs.partition(
            *(self.topic, 0, base64.urlsafe_b64encode(self.topic_id).rstrip(b"=").decode()),
            self.config.sequence_bits,
            self.config.format,
        )
        try:
            while len(set(stored.hmget(partition.state, "next", "clean_end"))) > 1:
                for plan in compactor.plans([(partition, self.config)], lambda: None)[0]:
                    try:
                        compactor.compact(plan, lambda: None)
                    except CompactionSupersededError:
                        continue
        finally:
            connection.close()

    def records(self, offset: int, **limits: int) -> list[Record]:
        """Return what a consumer takes from one answer to a fetch at `offset`."""
        answer = self.client.fetch(self.topic, offset, **limits)
        assert answer.error_code == ErrorCode.NONE
        return [record for record in read(answer.records) if record.offset >= offset]

    def ask(self, timestamp: int) -> tuple[int, int]:
        """Return the offset and timestamp that ListOffsets answers."""
        return self.client.offset_at(self.topic, timestamp)


@pytest.fixture
def table(client: Client, topic: str, broker_redis: str, request: pytest.FixtureRequest) -> Table:
    return Table(client, topic, broker_redis, request.node.callspec.params["broker"])


@ONLY_BATCH
@pytest.mark.parametrize("version", [4, 11, 18])
def test_a_batch_keeps_its_bounds_and_a_right_checksum_when_it_loses_records(
    table: Table, stored: redis.Redis, version: int
) -> None:
    client = table.client
    data = batch(
        *(Record(b"%d" % n, b"k%d" % n, TIMESTAMP) for n in range(5)), producer_id=77, epoch=0, sequence=0
    )
    assert client.produce(table.topic, data).base_offset == 0
    table.append((b"k0", b"new"), (b"k2", b"new"), (b"k4", b"new"))
    table.compact(stored)
    answer = client.fetch(table.topic, 0, version=version, topic_id=table.topic_id)
    first, second = headers_of(answer.records)
    assert (first.base_offset, first.last_offset_delta, first.record_count) == (0, 4, 2)
    assert (first.producer_id, first.producer_epoch, first.base_sequence) == (77, 0, 0)
    assert (second.base_offset, second.last_offset_delta, second.record_count) == (5, 2, 3)
    assert [record.offset for record in read(answer.records)] == [1, 3, 5, 6, 7]
    # What a producer sends again is still known to be a repetition.
    assert client.produce(table.topic, data).base_offset == 0


@ONLY_BATCH
def test_a_fetch_within_a_batch_that_lost_the_asked_record_gets_the_whole_batch(
    table: Table, stored: redis.Redis
) -> None:
    table.append(*((b"k%d" % n, b"%d" % n) for n in range(5)))
    table.append((b"k4", b"new"))
    table.compact(stored)
    answer = table.client.fetch(table.topic, 4)
    assert headers_of(answer.records)[0].base_offset == 0
    assert [record.offset for record in read(answer.records) if record.offset >= 4] == [5]


def test_no_offset_of_an_emptied_range_stalls_a_consumer(table: Table, stored: redis.Redis) -> None:
    kept = table.append((b"kept", b"1"))
    gone = [offset for _ in range(20) for offset in table.append((b"a", b"x"), (b"b", b"y"))]
    kept += table.append((b"a", b"2"), (b"b", b"3"))
    table.compact(stored)
    for offset in gone:
        for limits in ({}, {"partition_max_bytes": 1}, {"max_bytes": 1}):
            assert [record.offset for record in table.records(offset, **limits)][:1] == kept[1:2]
    seen, offset = [], kept[0]
    while records := table.records(offset, partition_max_bytes=1):
        seen += [record.offset for record in records]
        offset = seen[-1] + 1
    assert seen == kept
    assert offset == table.client.fetch(table.topic, offset).high_watermark


def test_a_fetch_at_the_end_of_a_compacted_log_waits_for_the_next_record(
    table: Table, stored: redis.Redis, broker: Broker
) -> None:
    table.append((b"a", b"1"), (b"a", b"2"))
    [last] = table.append((b"a", b"3"))
    table.compact(stored)
    with Client(broker.address) as consumer:
        consumer.send(fetch_request(table.topic, last + 1, max_wait_ms=FOREVER_MS), 11)
        channel = f"korvet:{table.topic}:0"
        processes.wait_until(lambda: redis_servers.listeners(stored, channel) > 0, "a parked fetch")
        [later] = table.append((b"b", b"4"))
        [answer] = consumer.receive(FetchResponse, 11).responses
    [partition] = answer.partitions
    assert [(record.offset, record.value) for record in read(partition.records)] == [(later, b"4")]


def test_the_bounds_of_a_log_stay_and_times_are_those_of_what_is_left(
    table: Table, stored: redis.Redis
) -> None:
    first = table.append((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    second = table.append((b"c", b"4"), (b"b", b"5"), at=100)
    before = table.ask(EARLIEST), table.ask(LATEST)
    table.compact(stored)
    assert (table.ask(EARLIEST), table.ask(LATEST)) == before
    assert table.ask(TIMESTAMP) == (first[2], TIMESTAMP + 2)
    assert table.ask(TIMESTAMP + 3) == (second[0], TIMESTAMP + 100)
    assert table.ask(TIMESTAMP + 102) == (-1, -1)
    assert table.ask(LARGEST) == (second[1], TIMESTAMP + 101)


def test_an_offset_after_the_end_is_out_of_range_with_the_bounds_from_before(
    table: Table, stored: redis.Redis
) -> None:
    offsets = table.append((b"a", b"1"), (b"a", b"2"))
    table.compact(stored)
    answer: Any = table.client.fetch(table.topic, offsets[-1] + 2)
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (answer.log_start_offset, answer.high_watermark) == (offsets[0], offsets[-1] + 1)
