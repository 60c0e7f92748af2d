"""How long the scripts of group membership hold Redis, by the size of the group.

Run as `python loadtest/micro/members.py` from the repository. Starts a private embedded server without persistence; the
time is the server's own (INFO commandstats, EVALSHA). Every member brings 1 KiB of metadata and gets 1 KiB. The join
measured is the one that completes the rebalance, and answers the leader; the sync is the leader's.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import os
import re
from collections.abc import Callable
from functools import partial
from typing import cast

from korvet.groups.store import GroupStore
from korvet.groups.types import Joined, JoinRequest, SyncRequest
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from loadtest.micro import logs

SIZES = (1, 10, 100, 1000)
ROUNDS = 15
HEARTBEATS = 300
BYTES = 1024
_CALLS = re.compile(r"cmdstat_evalsha:calls=(\d+),usec=(\d+)")


def held_us(redis: Redis, act: Callable[[], object]) -> int:
    """Act, and return how long the one script of it took."""
    redis.call("CONFIG", "RESETSTAT")
    act()
    found = _CALLS.search(cast("bytes", redis.call("INFO", "commandstats")).decode())
    assert found is not None
    assert found[1] == "1"
    return int(found[2])


class Group:
    """A group of many members."""

    def __init__(self, redis: Redis, size: int) -> None:
        redis.call("FLUSHALL")
        self.redis = redis
        self.store = GroupStore(redis, Keys("korvet"), size_max=1 << 30, initial_delay_ms=0)
        self.names = [f"consumer-{n}-01234567-89ab-cdef-0123-456789abcdef" for n in range(size)]
        self.generation = 0

    def join(self, name: str, *, new: bool = False) -> object:
        """Join with 1 KiB of metadata that is never the same."""
        outcome = self.store.join(
            JoinRequest(
                group="g",
                member_id="" if new else name,
                instance="",
                client_id="consumer",
                client_host="/127.0.0.1",
                session_ms=600_000,
                rebalance_ms=600_000,
                protocol_type="consumer",
                protocols=(("range", os.urandom(BYTES)),),
                require_known_member_id=False,
                supports_skip_assignment=True,
            ),
            name,
        )
        if isinstance(outcome, Joined):
            self.generation = outcome.generation
        return outcome

    def sync(self) -> object:
        """Bring the parts of all."""
        parts = tuple((name, os.urandom(BYTES)) for name in self.names)
        return self.store.sync(
            SyncRequest(
                group="g",
                member_id=self.names[0],
                instance="",
                generation=self.generation,
                protocol_type="consumer",
                protocol="range",
                assignments=parts,
            )
        )

    def rebalance(self) -> tuple[int, int, int]:
        """Have all join again; returns the times of a join that waits, of the last one, and of the leader's sync."""
        waiting = [self.held_us(partial(self.join, name)) for name in self.names[1:]]
        last = self.held_us(lambda: self.join(self.names[0]))
        return sorted(waiting)[len(waiting) // 2] if waiting else 0, last, self.held_us(self.sync)

    def held_us(self, act: Callable[[], object]) -> int:
        """Return how long a transition took, without the deadlines of those before it, which are written apart."""
        self.store.schedule.flush()
        return held_us(self.redis, act)

    def heartbeat(self) -> int:
        """Send one."""
        name = self.names[-1]
        return self.held_us(lambda: self.store.heartbeat("g", name, "", self.generation))


def main() -> None:
    """Print a table."""
    print(
        f"{'members':>10} {'heartbeat':>12} {'join, waits':>12} {'join, last':>12} {'sync, leader':>12}   us"
    )
    with logs.server() as redis:
        for size in SIZES:
            group = Group(redis, size)
            for name in group.names:
                group.join(name, new=True)
            group.join(group.names[0])
            group.sync()
            group.store.heartbeat("g", group.names[0], "", group.generation)
            rounds = [group.rebalance() for _ in range(ROUNDS)]
            middle = [sorted(column)[ROUNDS // 2] for column in zip(*rounds, strict=True)]
            beats = sorted(group.heartbeat() for _ in range(HEARTBEATS))[HEARTBEATS // 2]
            print(f"{size:10} {beats:12} " + " ".join(f"{each:12}" for each in middle), flush=True)


if __name__ == "__main__":
    main()
