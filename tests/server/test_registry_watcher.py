"""What others change is seen: when its message comes, comes late, or is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import gevent
import pytest
import redis as redis_py

from korvet.config.settings import Settings
from korvet.errors import StorageUnavailableError
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.pubsub import Subscriptions
from korvet.security.acls import Acl, AclFilter, ResourcePattern, Rule
from korvet.security.authorizer import AclStore, Authorizer
from korvet.security.session import Principal, Session
from korvet.server.registry_watcher import Refresh, watch
from korvet.topics.registry import TopicSpec
from tests.support.domain import Domain
from tests.support.proxy import Proxy, until

CHANNEL = Keys("korvet").topics_channel
NEVER_MS = 3_600_000


@pytest.fixture
def through_network(network: Proxy) -> Iterator[Subscriptions]:
    made = Subscriptions(network.url, connect_timeout_ms=1000, linger_ms=100)
    yield made
    made.close()


@contextmanager
def watching(
    subscriptions: Subscriptions, *refreshes: Refresh, interval_ms: int = NEVER_MS
) -> Iterator[None]:
    """Watch, refreshing on messages alone unless an interval is given."""
    greenlet = gevent.spawn(watch, subscriptions, CHANNEL, refreshes, interval_ms=interval_ms)
    until(lambda: subscriptions.live(CHANNEL) or interval_ms != NEVER_MS)
    yield
    assert not greenlet.dead
    greenlet.kill()


def test_every_kind_of_change_is_seen_without_being_asked_for(here: Domain, there: Domain) -> None:
    with watching(here.subscriptions, here.topics.refresh):
        made = there.topics.create(TopicSpec(name="orders"))
        until(lambda: here.topics.get_cached("orders") == made)
        changed = there.topics.alter(made, lambda row: type(row)(name=row.name, id=row.id, partitions=1))
        until(lambda: here.topics.get_cached("orders") == changed != made)
        there.topics.delete(changed)
        until(lambda: here.topics.get_cached("orders") is None)


def test_a_right_counts_elsewhere_by_its_message_alone(here: Domain, redis: Redis) -> None:
    """Given and taken away; nothing else is read until then."""
    keys, alice = Keys("korvet"), Session("10.0.0.1:1", principal=Principal("User", "alice"))
    far, near = (Authorizer(AclStore(redis, keys), Settings()) for _ in "12")
    resource = ResourcePattern(AclResourceType.TOPIC, PatternType.LITERAL, "orders")
    acl = Acl(resource, Rule("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW))

    def may() -> bool:
        return far.rights(alice, "Fetch").allows(
            AclOperation.READ, AclResourceType.TOPIC, "orders", log=False
        )

    with watching(here.subscriptions, far.refresh):
        for _ in range(3):
            near.add([acl])
            until(may)
            near.remove(AclFilter())
            until(lambda: not may())


def test_every_refresh_is_called_for_one_message(here: Domain, raw_redis: redis_py.Redis) -> None:
    refreshes: list[str] = []
    with watching(here.subscriptions, lambda: refreshes.append("a"), lambda: refreshes.append("b")):
        until(lambda: refreshes == ["a", "b"])
        raw_redis.spublish(CHANNEL, "any content")
        until(lambda: refreshes == ["a", "b"] * 2)


def test_a_change_during_a_refresh_causes_another_one(here: Domain, raw_redis: redis_py.Redis) -> None:
    begun = 0
    go_on = gevent.event.Event()

    def slow() -> None:
        nonlocal begun
        begun += 1
        go_on.wait()

    heard: list[bytes | None] = []
    with watching(here.subscriptions, slow):
        here.subscriptions.listen(CHANNEL, heard.append)
        raw_redis.spublish(CHANNEL, "1")
        until(lambda: heard)
        assert begun == 1
        go_on.set()
        until(lambda: begun == 2)


def test_a_refresh_that_fails_keeps_no_other_from_being_called(
    here: Domain, raw_redis: redis_py.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    refreshes: list[str] = []

    def failing() -> None:
        refreshes.append("failed")
        raise StorageUnavailableError("Redis is away")

    def called(times: int) -> bool:
        return refreshes == ["failed", "b", "failed"] * times

    with watching(here.subscriptions, failing, lambda: refreshes.append("b"), failing):
        for n in range(1, 4):
            until(partial(called, n))
            raw_redis.spublish(CHANNEL, "1")
    assert [record.message for record in caplog.records] == ["cannot refresh topics and settings"]


def test_what_happened_while_the_connection_was_cut_is_seen_once_it_is_back(
    here: Domain, there: Domain, network: Proxy, through_network: Subscriptions
) -> None:
    with watching(through_network, here.topics.refresh):
        network.cut()
        made = there.topics.create(TopicSpec(name="orders"))
        until(lambda: here.topics.get_cached("orders") == made)
        assert network.connections > 1


def test_a_change_is_seen_though_its_message_is_lost(
    here: Domain, there: Domain, network: Proxy, through_network: Subscriptions
) -> None:
    with watching(through_network, here.topics.refresh, interval_ms=20):
        until(lambda: through_network.live(CHANNEL))
        network.silence()
        made = there.topics.create(TopicSpec(name="orders"))
        until(lambda: here.topics.get_cached("orders") == made)
        assert through_network.live(CHANNEL), "it was to be the interval, and not the end of the connection"


def test_changes_are_seen_without_a_confirmed_subscription(
    here: Domain, there: Domain, network: Proxy, through_network: Subscriptions
) -> None:
    network.silence()
    with watching(through_network, here.topics.refresh, interval_ms=20):
        made = there.topics.create(TopicSpec(name="orders"))
        until(lambda: here.topics.get_cached("orders") == made)
        assert not through_network.live(CHANNEL)
        network.cut()
