"""What a group of the consumer protocol costs Redis and its worker, by members and partitions (KIP-848).

Run as `python loadtest/micro/consumer_groups.py` from the repository. Starts a private embedded server without
persistence. `heartbeat` is the server's own time of the script of a member that has all that it is to have (INFO
commandstats). Then a tenth of the members leaves, and one that stays has the target computed and written: `assigned` is
how long that takes as a whole, `Redis` the longest that one command of it holds the server (INFO latencystats, its
highest percentile), `loop` the longest that other greenlets of the worker wait meanwhile, in CPU time: other
load makes no difference. `settled` is the time that all heartbeats together take then until every member has its
target. `alone` is the longest that one command holds the server where a single member joins, gets all and leaves.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import re
import time
from contextlib import closing
from typing import cast

import gevent

from korvet.cluster.group_configs import GroupConfigs
from korvet.config.settings import Settings
from korvet.groups.consumer.coordinator import ConsumerGroups
from korvet.groups.consumer.migration import Migration
from korvet.groups.consumer.types import NOTHING, MemberReport, Owned
from korvet.groups.store import GroupStore
from korvet.log.store import LogStore
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.pubsub import Subscriptions
from korvet.topics.registry import TopicRegistry, TopicSpec
from korvet.topics.store import TopicStore
from loadtest.micro import logs
from loadtest.micro.members import held_us
from tests.support.redis_servers import embedded_server

SIZES = ((10, 100), (100, 1_000), (1_000, 10_000))
TOPICS = 10
HEARTBEATS = 300
_LONGEST = re.compile(r"latency_percentiles_usec_(\w+):.*p100=([\d.]+)")


class Group:
    """A group of many members, and the worker that serves it."""

    def __init__(self, redis: Redis, subscriptions: Subscriptions, members: int, partitions: int) -> None:
        redis.call("FLUSHALL")
        self.redis = redis
        settings, keys = Settings(), Keys("korvet")
        log = LogStore(redis, redis, keys)
        topics = TopicRegistry(TopicStore(redis, keys), settings, log.partition)
        for number in range(TOPICS):
            topics.create(TopicSpec(name=f"topic-{number}", partitions=partitions // TOPICS))
        self.store = GroupStore(redis, keys, size_max=1 << 30, initial_delay_ms=0)
        migration = Migration(self.store, topics, settings)
        self.groups = ConsumerGroups(
            *(self.store.consumers, topics, GroupConfigs(redis, keys, settings), migration, settings),
            subscriptions,
        )
        self.epochs = {f"01234567-89ab-cdef-0123-{number:012}": 0 for number in range(members)}
        self.owned: dict[str, Owned] = dict.fromkeys(self.epochs, NOTHING)

    def send(self, member: str, *, owned: Owned | None = None, leaves: bool = False) -> None:
        """Send a heartbeat of a member, and do as its answer says."""
        joins = self.epochs[member] == 0
        report = MemberReport(
            group="g",
            member_id=member,
            epoch=-1 if leaves else self.epochs[member],
            client_id="consumer",
            client_host="/127.0.0.1",
            rebalance_ms=300_000 if joins else None,
            names=tuple(f"topic-{number}" for number in range(TOPICS)) if joins else None,
            owned=NOTHING if joins else owned,
        )
        answer = self.groups.renew(report) or self.groups.heartbeat(report, lambda _topic: True)
        self.epochs[member] = answer.epoch
        if answer.assigned is not None:
            self.owned[member] = answer.assigned

    def settle(self) -> float:
        """Have all send heartbeats until nothing changes; returns the seconds that those took."""
        began = time.monotonic()
        while True:
            before = dict(self.epochs), dict(self.owned)
            for member in self.epochs:
                self.send(member, owned=self.owned[member])
            if before == (self.epochs, self.owned):
                return time.monotonic() - began

    def reassign(self) -> tuple[float, float, float]:
        """Have a tenth leave, and one heartbeat compute the target; returns ms as a whole, of Redis and of the loop."""
        for member in list(self.epochs)[::10]:
            self.send(member, leaves=True)
            del self.epochs[member], self.owned[member]
        longest, running = 0.0, True

        def watch() -> None:
            nonlocal longest
            while running:
                began = time.thread_time()
                gevent.sleep(0.001)
                longest = max(longest, time.thread_time() - began)

        watching = gevent.spawn(watch)
        self._reset()
        began = time.monotonic()
        self.send(next(iter(self.epochs)))
        seconds = time.monotonic() - began
        running = False
        watching.join()
        return seconds * 1000, self._held_ms(), longest * 1000

    def be_alone(self) -> float:
        """Have one join, get all and leave; returns ms of Redis."""
        for member in list(self.epochs)[1:]:
            self.send(member, leaves=True)
            del self.epochs[member], self.owned[member]
        [member] = self.epochs
        self.send(member, leaves=True)
        self._reset()
        self.epochs[member], self.owned[member] = 0, NOTHING
        self.settle()
        self.send(member, leaves=True)
        return self._held_ms()

    def _reset(self) -> None:
        self.redis.call("CONFIG", "RESETSTAT")
        self.redis.call("CONFIG", "SET", "latency-tracking-info-percentiles", "100")

    def _held_ms(self) -> float:
        found = _LONGEST.findall(cast("bytes", self.redis.call("INFO", "latencystats")).decode())
        return max(float(us) for name, us in found if name not in ("config", "info")) / 1000

    def heartbeat(self) -> int:
        """Send one of a member that has its target; returns the microseconds of Redis."""
        self.store.schedule.flush()
        return held_us(self.redis, lambda: self.send(list(self.epochs)[-1]))


def main() -> None:
    """Print a table."""
    print(
        f"{'members':>8} {'partitions':>10} {'heartbeat':>10} us {'assigned':>10} {'Redis':>8} {'loop':>8} ms"
        f" {'settled':>8} s {'alone':>8} ms"
    )
    with embedded_server() as url, closing(Redis(url, timeout_ms=60_000, connect_timeout_ms=5000)) as redis:
        subscriptions = Subscriptions(Redis(url, timeout_ms=5000, connect_timeout_ms=5000), linger_ms=1000)
        for members, partitions in SIZES:
            group = Group(redis, subscriptions, members, partitions)
            for member in group.epochs:
                group.send(member)
            group.settle()
            group.send(next(iter(group.epochs)))  # loads the script
            beats = sorted(group.heartbeat() for _ in range(HEARTBEATS))[HEARTBEATS // 2]
            logs.collect_as_a_worker()
            whole, held, loop = group.reassign()
            settled = group.settle()
            print(
                f"{members:8} {partitions:10} {beats:10}    {whole:10.0f} {held:8.1f} {loop:8.1f}    {settled:8.1f}"
                f"   {group.be_alone():8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
