"""A lake that hangs: what is in Redis is produced to and fetched as ever, by the same worker; the rest ends in time.

The process that reads the lake is stopped by a signal: it takes questions in, and answers none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from korvet.config.settings import Settings
from korvet.errors import ErrorCode
from korvet.lake.archiver import Archiver
from korvet.lake.source import LakeSource
from korvet.lake.tasks import archive_ranges
from korvet.log.trim import Trim, TrimStore
from korvet.protocol.messages.fetch import FetchResponse
from korvet.redis.client import Redis
from tests.handlers import apis
from tests.support import processes
from tests.support.batches import Record, values
from tests.support.broker import Broker, korvet_broker
from tests.support.ops import page, total
from tests.support.topic_client import Client, fetch_request

RECORDS = 20
WAIT_MS = 300


@pytest.fixture
def broker(redis_url: str, tmp_path: Path) -> Iterator[Broker]:
    """Run one worker; topic `cold` has all records but the last in its lake only."""
    settings = {
        "lake.path": tmp_path / "lake",
        "lake.interval.ms": 0,
        "lake.upkeep.interval.ms": 0,
        "remote.fetch.max.wait.ms": WAIT_MS,
        "remote.list.offsets.request.timeout.ms": WAIT_MS,
    }
    with korvet_broker(tmp_path, "--redis-url", redis_url, workers=1, settings=settings) as running:
        with Client(running.address) as client:
            client.create("hot", storage_format="batch")
            client.create("cold", remote_storage_enable="true", storage_format="batch")
            for number in range(RECORDS):
                client.append("cold", Record(b"%d" % number, None, 1000 + number))
            source = LakeSource.of(Settings(lake_path=str(tmp_path / "lake")), redis_url)
            done = Archiver(source).round(lambda tasks: archive_ranges(source, tasks))
            assert (done.records, done.failures) == (RECORDS, [])
            trim(source, RECORDS - 1)
            assert local_start(client) == RECORDS - 1
            assert first_value(client) == b"0"
        yield running


def first_value(client: Client) -> bytes | None:
    """Return the first value of topic `cold`, once the lake answers: no fetch waits for it longer than WAIT_MS."""
    result: list[bytes | None] = []

    def came() -> bool:
        result.extend(values(client.fetch("cold").records))
        return bool(result)

    processes.wait_until(came, "the lake is read")
    return result[0]


def trim(source: LakeSource, start: int) -> None:
    """Let Redis hold nothing of topic `cold` below an offset, as local retention does."""
    redis = Redis(source.redis_url, timeout_ms=10_000, connect_timeout_ms=10_000)
    with source.opened() as stores:
        [partition] = stores.topic("cold").partitions
        TrimStore(redis).trim([Trim(partition, start, start)])
    redis.close()


def by_time(client: Client, timestamp: int) -> tuple[int, int]:
    """Return the error and the offset that ListOffsets answers for topic `cold`."""
    topics = [{"name": "cold", "partitions": [{"timestamp": timestamp}]}]
    [topic] = client.ask(apis.ListOffsets, 9, replica_id=-1, topics=topics).topics
    [answer] = topic.partitions
    return answer.error_code, answer.offset


def local_start(client: Client) -> int:
    """Return where what Redis holds of topic `cold` begins."""
    error, offset = by_time(client, -4)
    assert error == 0
    return offset


def test_a_lake_that_hangs_holds_up_nobody_else_of_the_same_worker(broker: Broker) -> None:
    with (
        Client(broker.address) as hot,
        Client(broker.address) as cold,
        processes.stopped(*broker.child_pids("lake")),
        contextlib.ExitStack() as waiting,
    ):
        # More than there are threads that read: all of them wait for the lake, as long as they may.
        readers = [waiting.enter_context(Client(broker.address)) for _ in range(8)]
        for offset, reader in enumerate(readers):
            reader.send(fetch_request("cold", offset, max_wait_ms=1_000), 11)
        for number in range(100):
            value = b"%d" % number
            at = hot.append("hot", Record(value))
            assert values(hot.fetch("hot", at).records) == [value]
        for reader in readers:
            assert reader.receive(FetchResponse, 11).error_code == ErrorCode.NONE
        assert by_time(cold, 1001) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        # What is asked of Redis alone is answered for the same partition.
        assert local_start(cold) == RECORDS - 1
        assert values(cold.fetch("cold", RECORDS - 1).records) == [b"%d" % (RECORDS - 1)]
        processes.wait_until(lambda: total(broker, "korvet_lake_read_errors_total"), "an alarm")
    with Client(broker.address) as cold:
        assert first_value(cold) == b"0"
        # One question may be late on a busy machine: none waits longer than WAIT_MS.
        processes.wait_until(lambda: by_time(cold, 1001) == (ErrorCode.NONE, 1), "an offset by time")
        processes.wait_until(
            lambda: 'korvet_lake_read_duration_seconds_count{kind="read"}' in page(broker, "/metrics"),
            "durations",
        )
