"""CPU per record of appending to and reading from a log, in Redis and in Python, in both formats.

Run as `python loadtest/micro/append.py` from the repository. Starts a private embedded server without persistence and
takes CPU times, not wall time, from both sides, so that a busy machine disturbs little. Records of format `record` are
decoded from a batch by the same compiled reader as in the broker, before the clock runs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from collections.abc import Callable
from functools import partial
from typing import cast

from korvet.log.types import AppendBatch, Appended, AppendRecords, Fetched, Read
from korvet.redis.client import Redis
from loadtest.micro import logs

RECORDS = 200_000
READ_RECORDS = 1000


def server_cpu_s(redis: Redis) -> float:
    """Return the CPU time the server has used, its kernel part included."""
    info = cast("bytes", redis.call("INFO", "cpu")).decode()
    used = dict(line.split(":") for line in info.splitlines() if ":" in line)
    return float(used["used_cpu_user_main_thread"]) + float(used["used_cpu_sys_main_thread"])


def measured(redis: Redis, name: str, size: int, work: Callable[[], int]) -> None:
    """Run `work` and print its cost per record; it must have been RECORDS."""
    server, own, wall = server_cpu_s(redis), time.process_time(), time.monotonic()
    count = work()
    server, own = server_cpu_s(redis) - server, time.process_time() - own
    wall = time.monotonic() - wall
    assert count == RECORDS
    redis_us, python_us = server / count * 1e6, own / count * 1e6
    print(f"{name:22} {size:8,} {redis_us:8.3f} {python_us:8.3f} {count / wall:14,.0f}", flush=True)


def append(log: logs.Log, one: AppendRecords | AppendBatch, size: int) -> int:
    """Append the batch until RECORDS are written."""
    for _ in range(RECORDS // size):
        [outcome] = log.store.append([one])
        assert isinstance(outcome, Appended), outcome
    return RECORDS


def read(log: logs.Log, size: int) -> int:
    """Read the log from its start to its end; whole batches are made ready for a consumer."""
    entries = READ_RECORDS if log.format == "record" else max(1, READ_RECORDS // size)
    count = offset = 0
    while True:
        [outcome] = log.store.read([Read(log.partition, offset, entries)])
        assert isinstance(outcome, Fetched), outcome
        if outcome.records:
            count += len(outcome.records)
            offset = outcome.records[-1][0] + 1
        elif outcome.batches:
            assert all(batch.chunks(0) for batch in outcome.batches)
            offset = count = outcome.batches[-1].next_offset
        else:
            return count


def main() -> None:
    """Print a table."""
    logs.collect_as_a_worker()
    with logs.server() as redis:
        print(f"{logs.VALUE_BYTES} bytes a value, {RECORDS:,} records; CPU us per record")
        print(f"{'':22} {'batch':>8} {'Redis':>8} {'Python':>8} {'records/s':>14}")
        for size in (100, 1000, 10_000):
            for form in logs.FORMS:
                log = logs.Log(redis, form)
                one = log.append_of(size)
                measured(redis, f"append {form}", size, partial(append, log, one, size))
                measured(redis, f"read   {form}", size, partial(read, log, size))


if __name__ == "__main__":
    main()
