"""How long one append script holds Redis, by format and number of records.

Run as `python loadtest/micro/scripts.py` from the repository. Redis serves nobody else while a script runs, so this is
what a batch costs all others in latency; message.max.records bounds it in format `record`. Starts a private embedded
server without persistence; the time is the server's own (INFO commandstats, EVALSHA; SLOWLOG has the same), from
reading the command's arguments to the reply, and does not hold the reading of the request from the socket. It is wall
time: on a busy machine the least of it is the truest.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import re
from typing import cast

from korvet.log.types import Appended
from korvet.redis.client import Redis
from loadtest.micro import logs

SIZES = (1, 100, 1000, 10_000, 20_000, 30_000, 50_000, 100_000)
ROUNDS = {1: 2000, 100: 500, 1000: 100, 10_000: 30, 20_000: 20, 30_000: 15, 50_000: 10, 100_000: 7}
_CALLS = re.compile(r"cmdstat_evalsha:calls=(\d+),usec=(\d+)")


def held_us(redis: Redis, log: logs.Log, size: int) -> list[int]:
    """Append batches of `size` records; return the scripts' times in microseconds, shortest first."""
    append = log.append_of(size)
    assert isinstance(log.store.append([append])[0], Appended)  # loads the script
    times = []
    for _ in range(ROUNDS[size]):
        redis.call("CONFIG", "RESETSTAT")
        [outcome] = log.store.append([append])
        assert isinstance(outcome, Appended), outcome
        found = _CALLS.search(cast("bytes", redis.call("INFO", "commandstats")).decode())
        assert found is not None
        assert found[1] == "1"
        times.append(int(found[2]))
    return sorted(times)


def main() -> None:
    """Print a table."""
    print(f"{logs.VALUE_BYTES} bytes a value, keys of 8; ms that Redis is held by one script")
    print(f"{'':16} {'records':>10} {'min ms':>10} {'median ms':>10} {'max ms':>10} {'us/record':>10}")
    for form in logs.FORMS:
        for size in SIZES:
            with logs.server() as redis:
                times = held_us(redis, logs.Log(redis, form), size)
            shown = (times[0], times[len(times) // 2], times[-1])
            row = " ".join(f"{each / 1000:10.3f}" for each in shown)
            print(f"{form:16} {size:10,} {row} {shown[1] / size:10.3f}", flush=True)


if __name__ == "__main__":
    main()
