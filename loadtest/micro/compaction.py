"""What a pass of compaction costs: its records per second, and how long a step holds Redis.

Run as `python loadtest/micro/compaction.py [records]` from the repository. The log has a tenth as many keys as records;
values of 100 bytes. CPU time is this process's and the server's own; the longest step is the slowest command that the
server logged. Starts a private embedded server without persistence.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import time
from collections.abc import Callable
from typing import Any, cast

from korvet.config.settings import Settings
from korvet.log.appends import BatchAppend
from korvet.log.compaction import CompactionResult, Compactor
from korvet.log.compaction_store import CompactionStore
from korvet.log.types import Appended
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.topics import config as topic_config
from loadtest.micro import logs

RECORDS = 1_000_000
BATCH = 1000
BUFFER_BYTES = 128 * 1024 * 1024
BATCHES_OF = 10
"""Batches of other keys, sent in turns: a tenth as many keys as records, where a hundred batches are sent."""


def measured(what: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds that something took here, and what it returned."""
    begin = time.process_time()
    result = what()
    return time.process_time() - begin, result


def appends_of(log: logs.Log, count: int) -> list[BatchAppend]:
    """Return batches with keys of their own, to be sent in turns."""
    return [log.append_of(BATCH, first_key=n * BATCH) for n in range(max(1, count // BATCH // BATCHES_OF))]


def used_cpu(redis: Redis) -> float:
    """Return the CPU seconds that the server has used."""
    info = cast("bytes", redis.call("INFO", "cpu")).decode()
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    return float(fields["used_cpu_user"]) + float(fields["used_cpu_sys"])


def longest(redis: Redis) -> str:
    """Return the slowest command since the last reset, and how long it took."""
    entries = cast("list[Any]", redis.call("SLOWLOG", "GET", 1000))
    if not entries:
        return "below 0.2 ms"
    slowest = max(entries, key=lambda entry: int(entry[2]))
    command, *arguments = [word.decode() for word in cast("list[bytes]", slowest[3])[:2]]
    names = {script.sha: script.name for script in scripts.all_scripts()}
    return f"{int(slowest[2]) / 1000:.1f} ms ({names.get(arguments[0], command)})"


def measure_pass(redis: Redis, form: str, count: int) -> None:
    log = logs.Log(redis, form)
    appends = appends_of(log, count)
    for n in range(count // BATCH):
        assert isinstance(log.store.append([appends[n % len(appends)]])[0], Appended)
    overrides = {"cleanup.policy": "compact", "storage.format": log.format}
    config = topic_config.effective(overrides, Settings())
    compactor = Compactor(
        CompactionStore(redis), log.store, buffer_bytes=BUFFER_BYTES, decompressed_bytes_max=1 << 24
    )
    [plan] = compactor.plans([(log.partition, config)], lambda: None)[0]
    redis.call("CONFIG", "SET", "slowlog-log-slower-than", 200)
    redis.call("CONFIG", "SET", "slowlog-max-len", 1000)
    redis.call("SLOWLOG", "RESET")
    server_before, begin = used_cpu(redis), time.monotonic()
    cpu, done = measured(lambda: compactor.compact(plan, lambda: None))
    assert isinstance(done, CompactionResult)
    seconds, server = time.monotonic() - begin, used_cpu(redis) - server_before
    print(
        f"{form:16} {count / seconds:12,.0f} {cpu / count * 1e6:12.2f} {server / count * 1e6:12.2f} "
        f"{done.kept:10,}  {longest(redis)}",
        flush=True,
    )


def main() -> None:
    """Print what was measured."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    print(f"{'a pass':16} {'records/s':>12} {'us/record':>12} {'of Redis':>12} {'kept':>10}  longest step")
    for form in logs.FORMS:
        with logs.server() as redis:
            measure_pass(redis, form, count)


if __name__ == "__main__":
    main()
