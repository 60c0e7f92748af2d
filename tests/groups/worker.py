"""A worker whose members of classic groups wait; its subscriptions may go another way than the rest."""

from __future__ import annotations

from typing import Any

import gevent

from korvet.groups.types import Joined
from korvet.redis.client import Redis
from korvet.redis.pubsub import Subscriptions
from tests.groups.consumer.support import NAME, Consumers
from tests.groups.support import Group, join_request
from tests.support.domain import Domain
from tests.support.virtual_clock import VirtualClock

SECONDS_MAX = 60.0
"""Limit of a wait that only a fault makes long."""


def every_topic(_name: str) -> bool:
    return True


class Worker(Consumers):
    """One worker's groups; `events_url` is where it listens, if not where it runs scripts."""

    clock: VirtualClock

    def __init__(self, domain: Domain, raw: Any, clock: VirtualClock, events_url: str | None = None) -> None:
        if events_url is not None:
            events = Redis(events_url, timeout_ms=5000, connect_timeout_ms=5000)
            domain.subscriptions = Subscriptions(events, linger_ms=30_000)
        super().__init__(domain, raw, clock=clock)
        self.group = Group(domain.redis, raw)
        self.group.store = self.store

    def joining(self, member: str = "", **fields: Any) -> gevent.Greenlet[..., Joined]:
        """Join in a greenlet of its own; returns once the member waits for others, or has its answer."""
        greenlet = self.clock.spawn(self.classic.join, join_request(NAME, member, **fields), every_topic)
        self.clock.run_until_idle()
        return greenlet
