"""One worker's view of groups: a store, subscriptions that may go another way than the rest, and members that wait."""

from __future__ import annotations

from typing import Any

import gevent

from korvet.config.settings import Settings
from korvet.groups.membership import GroupCoordinator
from korvet.groups.types import Joined
from korvet.redis.client import Redis
from korvet.redis.pubsub import Subscriptions
from tests.groups.support import KEYS, Group, join_request

SECONDS_MAX = 20.0


class Worker:
    """One worker's groups; `events_url` is where it listens, if not where it runs scripts."""

    def __init__(self, url: str, raw: Any, events_url: str | None = None) -> None:
        self.redis = Redis(url, timeout_ms=5000, connect_timeout_ms=5000)
        self.subscriptions = Subscriptions(events_url or url, connect_timeout_ms=5000, linger_ms=30_000)
        self.group = Group(self.redis, raw)
        self.groups = GroupCoordinator(self.group.store, self.subscriptions, Settings(), KEYS.group_channel)

    def joining(self, member: str = "", **fields: Any) -> gevent.Greenlet[..., Joined]:
        """Join in a greenlet of its own; returns once a new member waits in Redis."""
        before = self.waiting()
        greenlet = gevent.spawn(self.groups.join, join_request("billing", member, **fields))
        with gevent.Timeout(SECONDS_MAX):
            while not member and self.waiting() == before and not greenlet.dead:
                gevent.sleep(0.001)
        return greenlet

    def waiting(self) -> int:
        """Return how many members wait."""
        count: int = self.group.raw.zcount(self.group.deadlines, "+inf", "+inf")
        return count

    def close(self) -> None:
        """End its connections."""
        self.subscriptions.close()
        self.redis.close()
