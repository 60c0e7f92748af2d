"""One worker's view of groups: a store, subscriptions that may go another way than the rest, and members that wait."""

from __future__ import annotations

from typing import Any

import gevent

from korvet.config.settings import Settings
from korvet.groups.membership import GroupCoordinator
from korvet.groups.types import Joined, JoinRequest
from korvet.redis.client import Redis
from korvet.redis.pubsub import Subscriptions
from tests.groups.support import KEYS, Group

SECONDS_MAX = 20.0


class Worker:
    """One worker's groups; `events_url` is where it listens, if not where it runs scripts."""

    def __init__(self, url: str, raw: Any, events_url: str | None = None) -> None:
        self.redis = Redis(url, timeout_ms=5000, connect_timeout_ms=5000)
        self.subscriptions = Subscriptions(events_url or url, connect_timeout_ms=5000, linger_ms=30_000)
        self.group = Group(self.redis, raw)
        self.groups = GroupCoordinator(self.group.store, self.subscriptions, Settings(), KEYS.group_channel)

    def request(self, member: str = "", **fields: Any) -> JoinRequest:
        """Return the request of a member that joins."""
        given: dict[str, Any] = {
            "instance": "",
            "client_id": "c",
            "client_host": "/h",
            "session_ms": 10_000,
            "rebalance_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": (("range", b"topics"),),
            "require_known_member_id": False,
            "supports_skip_assignment": True,
        }
        return JoinRequest(group="billing", member_id=member, **given | fields)

    def joining(self, member: str = "", **fields: Any) -> gevent.Greenlet[..., Joined]:
        """Join in a greenlet of its own; returns once a new member waits in Redis."""
        before = self.waiting()
        greenlet = gevent.spawn(self.groups.join, self.request(member, **fields))
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
