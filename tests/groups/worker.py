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
from tests.support.virtual_clock import VirtualClock

SECONDS_MAX = 60.0
"""Limit of a wait that only a fault makes long."""


def every_topic(_name: str) -> bool:
    """Let a member see every topic."""
    return True


class Worker:
    """One worker's groups; `events_url` is where it listens, if not where it runs scripts."""

    def __init__(self, url: str, raw: Any, clock: VirtualClock, events_url: str | None = None) -> None:
        self.clock = clock
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
            self.group.store, self.subscriptions, settings, KEYS.group_channel, members, clock=clock
        )

    def joining(self, member: str = "", **fields: Any) -> gevent.Greenlet[..., Joined]:
        """Join in a greenlet of its own; returns once the member waits for others, or has its answer."""
        greenlet = self.clock.spawn(self.groups.join, join_request("billing", member, **fields), every_topic)
        self.clock.run_until_idle()
        return greenlet

    def close(self) -> None:
        """End its connections."""
        self.subscriptions.close()
        self.redis.close()
