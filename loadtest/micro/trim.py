"""How long one step of lua/log/trim.lua holds Redis, by the size of what it frees.

Run as `python -m loadtest.micro.trim [--share 1.0]` from the repository. Redis serves nobody else while a script runs,
so the longest step is what trimming costs others in latency. Starts a private embedded server without persistence; the
time is the server's own (INFO commandstats, EVALSHA). Of each log the older half goes, and then the rest of it. An
allocator may give what is free at the end of its heap back to the system in one piece, which shows in the longest step:
glibc's does, unless GLIBC_TUNABLES is set in the environment to what korvet/server/embedded.py sets.
"""

from __future__ import annotations

import argparse
import os
from contextlib import closing

import redis as redis_py

from korvet.log.packed import LOG_FIELD, PackedLog
from korvet.log.store import LogStore
from korvet.log.trim import Trim, Trimmed, TrimStore
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics.store import TopicStore
from korvet.topics.types import TopicRow
from loadtest.harness import table
from tests.support.redis_servers import connected, embedded_server

# Bytes of an entry, entries of the log.
CASES = ((100, 1_000_000), (5_000, 100_000), (100_000, 5_000), (1_000_000, 1_000), (16_000_000, 60))
ROW_BYTES, ROW_ENTRIES = 1 << 20, 4096
WRITES_PER_ROUND_TRIP_BYTES = 8 << 20


def fill(redis: Redis, log: LogStore, size: int, count: int) -> int:
    """Write a log of format `batch` with its index, as many appends would have left it; returns its middle."""
    TopicStore(redis, Keys("korvet")).create(TopicRow(name="orders", id="id-1", partitions=1))
    partition = log.partition("orders", 0, "id-1", 10, "batch")
    value = os.urandom(size)
    commands: list[tuple[str | int | bytes, ...]] = []
    weight = rows = 0
    for offset in range(1, count + 1):
        commands.append(("XADD", partition.stream, f"0-{offset}", "batch", value))
        weight += size
        if offset % ROW_ENTRIES == 0 or offset * size // ROW_BYTES > rows:
            rows = offset * size // ROW_BYTES
            commands.append(("ZADD", partition.index_key, offset, f"{offset}:{offset * size}:5:5"))
        if weight >= WRITES_PER_ROUND_TRIP_BYTES or len(commands) > ROW_ENTRIES:
            redis.pipeline(commands)
            commands, weight = [], 0
    counters = PackedLog(
        next_offset=count,
        first=0,
        size_bytes=count * size,
        records=count,
        entries=count,
        largest=5,
        interval=5,
    )
    redis.pipeline([*commands, ("HSET", partition.state, LOG_FIELD, counters.pack())])
    return count // 2


def held_us(client: redis_py.Redis, store: TrimStore, trim: Trim) -> list[int]:
    """Do all steps; return the scripts' times in microseconds."""
    times = []
    while True:
        client.config_resetstat()
        [outcome] = store.trim([trim])
        assert isinstance(outcome, Trimmed), outcome
        times.append(client.info("commandstats")["cmdstat_evalsha"]["usec"])
        if not outcome.more:
            return times
        trim = Trim(trim.partition)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the entries of each log")
    given = parser.parse_args()
    rows: list[list[str | float]] = []
    for size, entries in CASES:
        count = int(entries * given.share)
        with (
            embedded_server() as url,
            connected(url) as client,
            closing(Redis(url, timeout_ms=60_000, connect_timeout_ms=5000)) as redis,
        ):
            log, store = LogStore(redis, redis, Keys("korvet")), TrimStore(redis)
            middle = fill(redis, log, size, count)
            partition = log.partition("orders", 0, "id-1", 10, "batch")
            store.trim([Trim(partition)])  # loads the script
            for what, start in (("half", middle), ("rest", count)):
                times = sorted(held_us(client, store, Trim(partition, start)))
                shown = (times[len(times) // 2] / 1000, times[-1] / 1000, sum(times) / 1000)
                rows.append([f"{size:,} bytes, {count:,} entries, {what}", len(times), *shown])
    print(table(("what goes", "steps", "median ms", "longest", "sum"), rows))


if __name__ == "__main__":
    main()
