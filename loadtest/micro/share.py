"""How long the scripts of share groups hold Redis: acquired, acknowledged at once or one by one, in both kinds.

Run as `python loadtest/micro/share.py` from the repository. Redis serves nobody else while a script runs. Starts a
private embedded server without persistence; the time is the server's own (INFO commandstats), the least of ROUNDS.
IN_FLIGHT records of the partition are in flight meanwhile, as many as may be, in ranges that do not touch each other:
every other record was released and acquired again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).parents[2]))

from korvet.cluster.group_configs import SharePolicy
from korvet.errors import KafkaError
from korvet.log.types import Read
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.share.reading import last_epoch
from korvet.share.store import SharePartitions
from korvet.share.types import (
    ACCEPT,
    RELEASE,
    Acknowledged,
    Acknowledgement,
    AckRange,
    Acquire,
    Acquired,
    AcquiredRange,
    Begin,
    HeldRanges,
    Readable,
)
from loadtest.micro import logs

RECORDS = 500
IN_FLIGHT = (0, 1500)
ROUNDS = 20
POLICY = SharePolicy(lock_ms=600_000, delivery_limit=1_000_000, in_flight_max=2000)
_CALLS = re.compile(r"cmdstat_evalsha:calls=(\d+),usec=(\d+)")


class Part:
    """A group's part of a log of 4,000 records, of a kind."""

    def __init__(self, redis: Redis, log: logs.Log, kind: str) -> None:
        self._redis, self._store = redis, SharePartitions(redis)
        self._partition = log.partition
        self._redis_group = kind == "redis"
        for script in scripts.all_scripts():
            redis.call("SCRIPT", "LOAD", script.source)
        for _ in range(8):
            log.store.append([log.append_of(RECORDS)])
        [found] = log.store.read([Read(log.partition, 0, 4000)])
        if isinstance(found, KafkaError):
            raise found
        self.offsets = [at for first, last in found.spans() for at in range(first, last + 1)]
        self._runs = found.spans() if log.format == "batch" else [(at, at) for at in self.offsets]
        self._epoch = last_epoch(found)
        self.begin()

    def begin(self) -> None:
        """Let the group begin at the first record."""
        start = self.offsets[0]
        self._store.delete("g", [self._partition])
        self._store.begin([Begin(self._partition, "g", start, self._redis_group, POLICY)])

    def acquire(self, member: str, first: int, span: int, count: int) -> None:
        """Acquire that many records of those whose numbers begin with `first`."""
        start, end = self.offsets[max(first, 1) - 1] + (first > 0), self.offsets[first + span - 1] + 1
        runs = [(max(run[0], start), min(run[1], end - 1)) for run in self._runs]
        readable = Readable(start, end, [run for run in runs if run[0] <= run[1]], epoch=self._epoch)
        [got] = self._store.acquire(
            [Acquire(self._partition, "g", member, readable, count, exact=True, policy=POLICY)]
        )
        assert isinstance(got, Acquired), got
        assert sum(each.last - each.first + 1 for each in got.ranges) == count, got

    def acknowledge(self, member: str, kind: int, numbers: range) -> None:
        """Acknowledge records by their numbers."""
        ranges = [AckRange(self.offsets[at], self.offsets[at], [kind]) for at in numbers]
        [done] = self._store.acknowledge([Acknowledgement(self._partition, "g", member, ranges, POLICY)])
        assert isinstance(done, Acknowledged), done

    def release(self, member: str) -> None:
        """Release all that a member has."""
        held = HeldRanges(self._partition)
        held.add([AcquiredRange(self.offsets[0], self.offsets[-1], 1)])
        self._store.release("g", member, [held], POLICY)

    def crumble(self, count: int) -> None:
        """Have that many records in flight, in as many ranges."""
        if count:
            self.acquire("other", 0, count, count)
            self.acknowledge("other", RELEASE, range(0, count, 2))
            # None is left available: it would be delivered before what is measured.
            self.acquire("another", 0, count, len(range(0, count, 2)))

    def held_us(self, run: Callable[[], None]) -> int:
        """Return how long one script has held Redis."""
        self._redis.call("CONFIG", "RESETSTAT")
        run()
        found = _CALLS.search(cast("bytes", self._redis.call("INFO", "commandstats")).decode())
        assert found is not None
        assert found[1] == "1", found[0]
        return int(found[2])


def measured(part: Part, others: int) -> dict[str, float]:
    """Return the times of each step in ms."""
    times: dict[str, list[int]] = {}
    for _ in range(ROUNDS):
        part.begin()
        part.crumble(others)
        end, more = others + RECORDS, others + 2 * RECORDS
        odd, even = range(others, end, 2), range(others + 1, end, 2)
        steps = {
            "acquire": partial(part.acquire, "m", others, RECORDS, RECORDS),
            "release every other": partial(part.acknowledge, "m", RELEASE, odd),
            "acquire them again": partial(part.acquire, "m2", others, RECORDS, len(odd)),
            "accept the others": partial(part.acknowledge, "m", ACCEPT, even),
            "release all": partial(part.release, "m2"),
            "acquire all again": partial(part.acquire, "m", others, RECORDS, len(odd)),
            "accept them": partial(part.acknowledge, "m", ACCEPT, odd),
            "acquire more": partial(part.acquire, "m", end, RECORDS, RECORDS),
            "accept them at once": partial(part.acknowledge, "m", ACCEPT, range(end, more)),
        }
        for name, step in steps.items():
            times.setdefault(name, []).append(part.held_us(step))
    return {name: min(each) / 1000 for name, each in times.items()}


def main() -> None:
    """Print a table."""
    print(f"{RECORDS} records; ms that Redis is held by one script")
    columns: dict[str, dict[str, float]] = {}
    for form, kind in (("record", "redis"), ("record", "ranges"), ("batch", "ranges")):
        for others in IN_FLIGHT:
            with logs.server() as redis:
                columns[f"{form} {kind} +{others}"] = measured(
                    Part(redis, logs.Log(redis, form), kind), others
                )
    names = next(iter(columns.values()))
    print(f"{'':22}", *(f"{name:>20}" for name in columns))
    for name in names:
        print(f"{name:22}", *(f"{column[name]:20.3f}" for column in columns.values()))


if __name__ == "__main__":
    main()
