"""CPU per record of appending to and reading from a log in format `record`, in Redis and in Python.

Run as `python loadtest/micro/append.py` from the repository. Starts a private embedded server without persistence and
takes CPU times, not wall time, from both sides, so that a busy machine disturbs little. Records are decoded from
a batch by the same compiled reader as in the broker, before the clock runs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from collections.abc import Callable
from functools import partial
from typing import cast

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from korvet.storage.entry import Record
from korvet.storage.keys import Keys
from korvet.storage.log_store import LogStore
from korvet.storage.log_types import Append, Appended, Fetched, Partition, Read
from korvet.storage.resp import Redis
from korvet.storage.topic_store import TopicRow, TopicStore
from tests.support import redis_servers

VALUE_BYTES = 100
RECORDS = 200_000
BITS = 10


def records(count: int) -> list[Record]:
    """Decode a batch of records with a key of 8 and a value of 100 bytes."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for n in range(count):
        builder.append(n, timestamp=1_700_000_000_000, key=b"%08d" % n, value=b"x" * VALUE_BYTES, headers=[])
    return list(DefaultRecordBatch(bytes(builder.build())))


def server_cpu_s(redis: Redis) -> float:
    """Return the CPU time the server has used, its kernel part included."""
    info = cast("bytes", redis.call("INFO", "cpu")).decode()
    used = dict(line.split(":") for line in info.splitlines() if ":" in line)
    return float(used["used_cpu_user_main_thread"]) + float(used["used_cpu_sys_main_thread"])


def measured(redis: Redis, name: str, size: int, work: Callable[[], int]) -> int:
    """Run `work`, print its cost per record, and return how many records it was."""
    server, own, wall = server_cpu_s(redis), time.process_time(), time.monotonic()
    count = work()
    server, own = server_cpu_s(redis) - server, time.process_time() - own
    wall = time.monotonic() - wall
    redis_us, python_us = server / count * 1e6, own / count * 1e6
    print(f"{name:8} {size:10,} {redis_us:10.2f} {python_us:10.2f} {count / wall:14,.0f}")
    return count


def append(logs: LogStore, partition: Partition, batch: list[Record]) -> int:
    """Append the batch until RECORDS are written."""
    for _ in range(RECORDS // len(batch)):
        size = len(batch) * (VALUE_BYTES + 20)
        [outcome] = logs.append(
            [Append(partition=partition, records=batch, batch_bytes=size, max_timestamp=1_700_000_000_000)]
        )
        assert isinstance(outcome, Appended), outcome
    return RECORDS


def read(logs: LogStore, partition: Partition, size: int) -> int:
    """Read the log from its start to its end."""
    count = offset = 0
    while True:
        [outcome] = logs.read([Read(partition, offset, size)])
        assert isinstance(outcome, Fetched), outcome
        if not outcome.records:
            return count
        count += len(outcome.records)
        offset = outcome.records[-1][0] + 1


def main() -> None:
    """Print a table."""
    with redis_servers.embedded_server() as url:
        redis = Redis(url, timeout_ms=60_000, connect_timeout_ms=5000)
        reads = Redis(url, timeout_ms=60_000, connect_timeout_ms=5000)
        keys = Keys("korvet")
        logs = LogStore(redis, reads, keys)
        print(f"{VALUE_BYTES} bytes a value, {RECORDS:,} records; CPU us per record")
        print(f"{'':8} {'batch':>10} {'Redis':>10} {'Python':>10} {'records/s':>14}")
        for size in (1000, 10_000):
            redis.call("FLUSHALL")
            TopicStore(redis, keys).create(TopicRow(name="t", id="id", partitions=1))
            partition = logs.partition("t", 0, "id", BITS)
            batch = records(size)
            measured(redis, "append", size, partial(append, logs, partition, batch))
            assert measured(redis, "read", size, partial(read, logs, partition, size)) == RECORDS
        redis.close()
        reads.close()


if __name__ == "__main__":
    main()
