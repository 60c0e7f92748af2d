"""Retention beside clients: by the keeper while they read, by the workers where a log grows faster."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from tests.support import ops, processes, reading
from tests.support.broker import korvet_broker


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
