"""One worker's view of groups: a store, subscriptions that may go another way than the rest, and members that wait."""

from __future__ import annotations

from typing import Any

import gevent

from korvet.cluster.group_configs import GroupConfigs
from korvet.config.settings import Settings
from korvet.groups.consumer.classic_members import ClassicMembers
from korvet.groups.consumer.coordinator import ConsumerGroups
from korvet.groups.consumer.migration import Migration
from korvet.groups.membership import GroupCoordinator
from korvet.groups.types import Joined
from korvet.log.store import LogStore
from korvet.redis.client import Redis
from korvet.redis.pubsub import Subscriptions
from korvet.topics.registry import TopicRegistry
from korvet.topics.store import TopicStore
from tests.groups.support import KEYS, Group, join_request

SECONDS_MAX = 20.0


def every_topic(_name: str) -> bool:
    """Let a member see every topic."""
    return True


class Worker:
    """One worker's groups; `events_url` is where it listens, if not where it runs scripts."""

    def __init__(self, url: str, raw: Any, events_url: str | None = None) -> None:
        self.redis = Redis(url, timeout_ms=5000, connect_timeout_ms=5000)
        self.subscriptions = Subscriptions(events_url or url, connect_timeout_ms=5000, linger_ms=30_000)
        self.group = Group(self.redis, raw)
        settings = Settings()
        log = LogStore(self.redis, self.redis, KEYS)
        self.topics = TopicRegistry(TopicStore(self.redis, KEYS), settings, log.partition)
        migration = Migration(self.group.store, self.topics, settings)
        configs = GroupConfigs(self.redis, KEYS, settings)
        self.consumers = ConsumerGroups(
            self.group.store.consumers, self.topics, configs, migration, settings, self.subscriptions
        )
        members = ClassicMembers(self.consumers, migration, self.topics)
        self.groups = GroupCoordinator(
            self.group.store, self.subscriptions, settings, KEYS.group_channel, members
        )

    def joining(self, member: str = "", **fields: Any) -> gevent.Greenlet[..., Joined]:
        """Join in a greenlet of its own; returns once a new member waits in Redis."""
        before = self.waiting()
        greenlet = gevent.spawn(self.groups.join, join_request("billing", member, **fields), every_topic)
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
