"""A worker's lease: until when, by Redis' clock, it may change groups and topics; and what it missed without one.

A worker may be out of action for any time: its process stopped, its machine suspended, or Redis out of reach. When it
goes on, the buffers of its connections hold requests that nobody wants any more: their clients have asked others since.
So the worker looks at Redis' clock every third of broker.lease.ms, after which clients are sent to other brokers. Each
script that changes groups, topics or configs carries the time at which the lease that this gives ends, and refuses to
run later (lua/shared/lease.lua). No clock of a worker's machine matters for that, nor where the bytes have lain.

A worker that finds its lease ended takes a new one before it begins another request. What may have come before that is
late: a change whose client has gone is not begun, and a commit does not replace one made after the last look before.
Late too is a request that waited in this worker for longer than a lease: its commit replaces none made since it came.

Nothing else needs a coordinator's epoch, as Kafka's groups have one: a worker keeps nothing of a group between two
scripts, and each script reads all that it decides by.
"""

from __future__ import annotations

import contextlib
import math
import time

import gevent

from korvet.errors import KafkaError, StorageUnavailableError
from korvet.logs import Log
from korvet.redis.client import Redis
from korvet.redis.cluster import connected_first
from korvet.redis.node import PendingCommands, RedisNode
from korvet.redis.replies import RespError, time_ms, value_of
from korvet.turns import SHORTEST_SECONDS

RETRY_SECONDS_MAX = 1.0
"""Until Redis is asked again that did not answer."""

TURNS = 20
"""Of the event loop, after which it has come to all connections that were readable before a late renewal: it takes 64
of them at first, then twice as many each turn, and the last of those first."""

_log = Log(__name__)

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux's monotonic clock stops while the machine is suspended; this one does not."""


class ServingLease:
    """The lease of one worker, whose changes go over `redis`."""

    def __init__(self, redis: Redis, lease_ms: int) -> None:
        self._redis = redis
        redis.lease_nodes()
        self._lease_ms = lease_ms
        # The last look at Redis' clock, and when it was answered (time.monotonic).
        self._looked_ms, self._looked_at = 0, -math.inf
        self._end = -math.inf
        self._away = False
        self._renewal: gevent.Greenlet[[], None] | None = None
        # The last one that came late: what came before this (time.monotonic) may be older than the look before it.
        self._late_until = -math.inf
        self._late_since_ms = 0

    def keep(self) -> None:
        """Renew the lease in time, until the greenlet is ended."""
        pause = self._lease_ms / 1000 / 3
        while True:
            self.renew()
            gevent.sleep(min(pause, RETRY_SECONDS_MAX) if self._away else pause)

    def renew(self) -> None:
        """Take the lease from now on; if Redis is away there is none, and its scripts refuse what is sent."""
        if self._renewal is None:
            self._renewal = gevent.spawn(self._renew)
        self._renewal.join()

    def is_late(self, came_after: float) -> bool:
        """Return whether a request may be late that came after that (time.monotonic); renews a lease that has ended."""
        has_ended = time.clock_gettime(_CLOCK) >= self._end
        for node in self._redis.known_nodes():
            has_ended = has_ended or node.lease_ended
        if has_ended:
            if not self._away:
                self.renew()
            return True
        return came_after < self._late_until or time.monotonic() - came_after > self._lease_ms / 1000

    def not_after_ms(self, came_after: float) -> int:
        """Return when (Redis' clock) a late request can have been sent at the earliest; 0 if Redis was never asked."""
        if came_after < self._late_until or not self._looked_ms:
            return self._late_since_ms
        return self._looked_ms - math.ceil((self._looked_at - came_after) * 1000)

    def _clocks_ms(self) -> dict[RedisNode, int]:
        """Return the clock of each node; a script has its lease compared with that of its own. Raises KafkaError."""
        asked: dict[RedisNode, PendingCommands] = {}
        clocks: dict[RedisNode, int] = {}
        for node in connected_first(self._redis.nodes()):
            with contextlib.suppress(KafkaError):
                asked[node] = node.begin_pipeline([("TIME",)])
        for node, begun in asked.items():
            with contextlib.suppress(KafkaError, RespError):
                clocks[node] = time_ms(value_of(begun.result()[0]))
        if not clocks:
            raise StorageUnavailableError("no node of Redis gave its time")
        return clocks

    def _renew(self) -> None:
        asked = time.clock_gettime(_CLOCK)
        try:
            clocks = self._clocks_ms()
            now_ms = next(iter(clocks.values()))
            answered_at = time.monotonic()
            before_ms = self._looked_ms
            is_late = 0 < before_ms < now_ms - self._lease_ms
            for _ in range(TURNS if is_late else 0):
                gevent.sleep(SHORTEST_SECONDS)
        except (KafkaError, RespError):
            self._away = True
            return
        finally:
            self._renewal = None
        self._looked_ms, self._looked_at = now_ms, answered_at
        self._away = False
        for node in self._redis.known_nodes():
            node.lease_ended = False
        for node, clock_ms in clocks.items():
            node.lease_end_ms = clock_ms + self._lease_ms
        # The answer may have lain here for as long as the worker was stopped.
        self._end = asked + self._lease_ms / 1000
        if is_late:
            self._late_until, self._late_since_ms = time.monotonic(), before_ms
            _log.warning("lease renewed late", lease_ms=self._lease_ms, after_ms=now_ms - before_ms)
