"""A worker's lease: until when, by Redis' clock, it may change groups and topics; and what it missed without one.

A worker may be out of action for any time: its process stopped, its machine suspended, or Redis out of reach. When it
goes on, the buffers of its connections hold requests that nobody wants any more: their clients have asked others since.
So the worker looks at Redis' clock every third of broker.lease.ms, after which clients are sent to other brokers. Each
script that changes groups, topics or configs carries the end of this lease, and refuses to
run later (lua/shared/lease.lua). No clock of a worker's machine matters for that, nor where the bytes have lain. Each
node of a cluster has a lease of its own, by its own clock.

A worker that finds its lease ended takes a new one before it begins another request. An earlier request may be
late: a change whose client has gone is not begun, and a commit does not replace one made after the last look before.
Late too is a request that waited in this worker for longer than a lease: its commit replaces none made since it came.

Nothing else needs a coordinator's epoch, as Kafka's groups have one: a worker keeps nothing of a group between two
scripts, and each script reads all that it decides by.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import gevent
from gevent.event import Event
from korvet_core import DataPath

from korvet.clock import CLOCK, Clock
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.logs import Log
from korvet.redis.client import Redis, RedisNode
from korvet.redis.replies import RespError, time_ms
from korvet.turns import SHORTEST_SECONDS

RETRY_SECONDS_MAX = 1.0
"""Until Redis is asked again that did not answer."""

TURNS = 20
"""Of the event loop, after which it has come to all connections that were readable before a late renewal: it takes 256
of them at first, then twice as many each turn."""

SLOW_NODE_SECONDS = 0.25
"""How long a renewal waits for the other nodes of a cluster once one has answered: they need not be waited for."""

_log = Log(__name__)


class Look(NamedTuple):
    """A look at the clock of a node (ms), when it was answered (monotonic seconds), and the number of the renewal."""

    ms: int
    at: float
    renewal: int


class ServingLease:
    """The lease of one worker, whose changes go over `redis`."""

    def __init__(self, redis: Redis, lease_ms: int, *, clock: Clock = CLOCK) -> None:
        self._redis = redis
        self._clock = clock
        redis.lease_nodes()
        self._lease_ms = lease_ms
        # The last look at the clock of each node, and those that are not answered yet.
        self._looks: dict[RedisNode, Look] = {}
        self._silent: dict[RedisNode, gevent.Greenlet[..., Look | None]] = {}
        self._answered = Event()  # set when one of them answers
        self._renewals = 0
        self._end = -math.inf
        self._away = False
        self._renewal: gevent.Greenlet[[], None] | None = None
        # The last one that came late: what came before this (monotonic seconds) may be older than the look before it.
        self._late_until = -math.inf
        self._late_since_ms = 0
        self._core: DataPath[Any] | None = None

    def report_to(self, core: DataPath[Any]) -> None:
        """Report the lease to the core, now and after each renewal."""
        self._core = core
        core.set_lease(self._end, self._late_until, self._lease_ms / 1000)

    def keep(self) -> None:
        """Renew the lease in time, until the greenlet is ended."""
        pause = self._lease_ms / 1000 / 3
        while True:
            self.renew()
            wait_s = min(pause, RETRY_SECONDS_MAX) if self._away else pause
            # A node that answers again gets its lease at once.
            self._clock.wait(self._answered, self._clock.to_whole_second(wait_s))

    def renew(self) -> None:
        """Take the lease from now on; if Redis is away there is none, and its scripts refuse what is sent."""
        if self._renewal is None:
            self._renewal = self._clock.spawn(self._renew)
        self._renewal.join()

    def is_late(self, came_after: float) -> bool:
        """Return whether a request received after this monotonic time may be late; renews an ended lease."""
        has_ended = self._clock.boot_time() >= self._end
        for node in self._redis.known_nodes():
            has_ended = has_ended or node.lease_ended
        if has_ended:
            if not self._away:
                self.renew()
            return True
        return came_after < self._late_until or self._clock.monotonic() - came_after > self._lease_ms / 1000

    def not_after_ms(self, came_after: float) -> int:
        """Return when (Redis' clock) a late request can have been sent at the earliest; 0 if Redis was never asked.

        By the clock of the node of a cluster that is behind the others: a commit that is refused is sent again.
        """
        if came_after < self._late_until or not self._looks:
            return self._late_since_ms
        return min(look.ms - math.ceil((look.at - came_after) * 1000) for look in self._looks.values())

    def _look(self) -> dict[RedisNode, Look]:
        """Look at the clocks of the nodes; those that answer nothing go on being waited for. Raises KafkaError.

        A script has its lease compared with the clock of its own node, so each node has its own.
        """
        self._answered.clear()
        for node, look in self._silent.items():
            # Wherever the answer has lain: the lease that it gives ends by the clock of its node.
            if look.value:
                node.lease_end_ms = look.value.ms + self._lease_ms
        self._silent = {node: look for node, look in self._silent.items() if not look.ready()}
        self._renewals += 1
        looks = {
            node: self._clock.spawn(self._ask_clock, node)
            for node in self._redis.nodes()
            if node not in self._silent
        }
        left = list(looks.values())
        while left and not any(look.value for look in looks.values()):
            gevent.wait(left, count=1)
            left = [look for look in left if not look.ready()]
        with contextlib.suppress(TimeoutError), self._clock.timeout(SLOW_NODE_SECONDS, TimeoutError()):
            gevent.joinall(left)
        # What they answer may be of before this worker was stopped: it gives a lease, and says nothing else.
        for node, look in looks.items():
            if not look.ready():
                self._silent[node] = look
                look.rawlink(lambda _look: self._answered.set())
        result = {node: look.value for node, look in looks.items() if look.value}
        if not result:
            raise StorageUnavailableError("no node of Redis gave its time")
        return result

    def _ask_clock(self, node: RedisNode) -> Look | None:
        renewal = self._renewals
        with contextlib.suppress(KafkaError, RespError):
            return Look(time_ms(node.call("TIME")), self._clock.monotonic(), renewal)
        return None

    def _renew(self) -> None:
        asked = self._clock.boot_time()
        before = self._looks
        try:
            looks = self._look()
            gap_ms = gap_of(before, looks)
            is_late = gap_ms > self._lease_ms
            for _ in range(TURNS if is_late else 0):
                gevent.sleep(SHORTEST_SECONDS)
        except (KafkaError, RespError):
            self._away = True
            return
        finally:
            self._renewal = None
        known = self._redis.known_nodes()
        self._looks = {node: look for node, look in before.items() if node in known} | looks
        self._away = False
        for node in known:
            # That of before is set again too: what was refused until now was looked at.
            look = looks.get(node)
            node.lease_end_ms = node.lease_end_ms if look is None else look.ms + self._lease_ms
        # The answer may have lain here for as long as the worker was stopped.
        self._end = asked + self._lease_ms / 1000
        if is_late:
            self._late_until = self._clock.monotonic()
            self._late_since_ms = min(look.ms for look in before.values())
            _log.warning("lease renewed late", lease_ms=self._lease_ms, after_ms=gap_ms)
        if self._core is not None:
            self.report_to(self._core)


def gap_of(before: Mapping[RedisNode, Look], looks: Mapping[RedisNode, Look]) -> int:
    """Return how long the time between two renewals was, by the node for which it was the longest.

    Only nodes that answered the last one count: a node that was away for a while does not know.
    """
    last = max((look.renewal for look in before.values()), default=0)
    gaps = [
        look.ms - before[node].ms
        for node, look in looks.items()
        if node in before and before[node].renewal == last
    ]
    if gaps or not before:
        return max(gaps, default=0)
    return max(look.ms for look in looks.values()) - max(look.ms for look in before.values())
