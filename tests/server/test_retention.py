"""Retention where it is done: by the keeper in its rounds, and by the workers where a log grows faster than these."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from korvet.server.keeper.keeper import Keeper, LeaseLostError
from korvet.server.keeper.log_tasks import EnforceRetention
from tests.support import ops, processes, reading
from tests.support.batches import Record
from tests.support.broker import korvet_broker
from tests.support.log_bench import Bench

WEEK_MS = 604_800_000


@pytest.fixture(params=["record", "batch"])
def bench(keeper: Keeper, raw_redis: Any, request: pytest.FixtureRequest) -> Bench:
    return Bench(keeper.context.redis, raw_redis, request.param)


def append_old_and_new(bench: Bench) -> int:
    """Append a record that is older than a week and one that is not; returns the offset of the latter."""
    now_ms = int(time.time() * 1000)
    bench.append(Record(b"old", b"k", now_ms - WEEK_MS - 60_000))
    return bench.append(Record(b"new", b"k", now_ms - WEEK_MS + 60_000))


def test_a_round_lets_go_what_is_too_old(keeper: Keeper, bench: Bench) -> None:
    offset = append_old_and_new(bench)
    assert keeper.lease.renew()
    keeper.round()
    assert bench.bounds().first_offset == offset
    assert bench.bounds().log_start > 0


def test_a_topic_that_only_compacts_keeps_what_is_old(keeper: Keeper, bench: Bench, raw_redis: Any) -> None:
    row = json.loads(raw_redis.hget("korvet:topics", bench.topic))
    row["configs"]["cleanup.policy"] = "compact"
    raw_redis.hset("korvet:topics", bench.topic, json.dumps(row))
    append_old_and_new(bench)
    assert keeper.lease.renew()
    keeper.round()
    assert bench.bounds().log_start == 0


def test_a_keeper_that_lost_its_lease_lets_nothing_go(keeper: Keeper, bench: Bench) -> None:
    append_old_and_new(bench)
    assert keeper.lease.renew()
    token = keeper.lease.token
    assert token is not None
    with pytest.raises(LeaseLostError):
        EnforceRetention()(keeper.context, partial(keeper.lease.check, token - 1))
    assert bench.bounds().log_start == 0


def test_a_damaged_index_is_logged_and_the_others_are_checked(
    keeper: Keeper, bench: Bench, raw_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    append_old_and_new(bench)
    raw_redis.set(bench.partitions[1].index_key, "no index")
    assert keeper.lease.renew()
    token = keeper.lease.token
    assert token is not None
    EnforceRetention()(keeper.context, partial(keeper.lease.check, token))
    assert bench.bounds().log_start > 0
    [line] = caplog.records
    assert line.__dict__["korvet_fields"]["key"] == bench.partitions[1].stream


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_a_consumer_reads_on_while_retention_runs(tmp_path: Path, storage_format: str) -> None:
    """It skips nothing, repeats nothing and is never out of range, whatever is deleted meanwhile."""
    flags = ("--set", "log.retention.check.interval.ms=20")
    value, per_part = bytes(range(256)) * 40, 100
    with korvet_broker(tmp_path, *flags) as broker:
        # More than a part, so that what was not read yet stays.
        configs = {"storage.format": storage_format, "retention.bytes": str(2 * per_part * len(value))}
        configs["storage.compression"] = "none"
        reading.create_topic(broker.bootstrap, "orders", 1, configs)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1})
        received: list[bytes | None] = []
        with reading.consumer(broker.bootstrap, "orders", (0,), **{"auto.offset.reset": "error"}) as running:
            for part in range(12):
                for n in range(per_part):
                    producer.produce("orders", value, key=f"{part}-{n}".encode(), partition=0)
                assert producer.flush(processes.WAIT_SECONDS_MAX) == 0
                received += [record.key for record in reading.read(running, per_part)]
            trimmed = "korvet_log_trimmed_records_total"
            processes.wait_until(lambda: ops.total(broker, trimmed) > 0, "retention ran")
            low, high = running.get_watermark_offsets(TopicPartition("orders", 0), cached=False)
            assert 0 < low < high
        assert received == [f"{part}-{n}".encode() for part in range(12) for n in range(per_part)]


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_a_log_that_grows_fast_is_kept_small_by_its_workers(tmp_path: Path, storage_format: str) -> None:
    """The keeper looks every five minutes; Redis holds little more than retention.bytes all the same."""
    kept_bytes, value = 4 << 20, bytes(range(256)) * 200
    with korvet_broker(tmp_path) as broker:
        configs = {
            "storage.format": storage_format,
            "retention.bytes": str(kept_bytes),
            "storage.compression": "none",
        }
        reading.create_topic(broker.bootstrap, "orders", 1, configs)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
        count = 24 * (1 << 20) // len(value)
        for n in range(count):
            producer.produce("orders", value, key=str(n).encode(), partition=0)
            producer.poll(0)
        assert producer.flush(processes.WAIT_SECONDS_MAX) == 0
        trimmed = "korvet_log_trimmed_records_total"
        # What is over the limit by less than an interval of the index stays.
        enough = count - (kept_bytes + (4 << 20)) // len(value)
        processes.wait_until(
            lambda: ops.total(broker, trimmed) >= enough, "the workers delete what is too much"
        )
        with reading.consumer(broker.bootstrap, "orders") as running:
            low, high = running.get_watermark_offsets(TopicPartition("orders", 0), cached=False)
            assert 0 < low < high
            first, *_ = reading.read(running, 1)
        kept = count - int(first.key or b"0")
        assert kept * len(value) >= kept_bytes
        assert kept <= count - enough + 1
