"""What others change is seen: when its message comes, comes late, or is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import gevent
import pytest
import redis as redis_py

from korvet.cluster.dynamic_settings import BrokerConfigStore
from korvet.cluster.features import FeatureUpdate
from korvet.config.dynamic import DEFAULT
from korvet.config.settings import Settings
from korvet.errors import StorageUnavailableError
from korvet.handlers.registry import Services
from korvet.protocol.types import (
    AclOperation,
    AclPermissionType,
    AclResourceType,
    FeatureUpgradeType,
    PatternType,
    ScramMechanism,
)
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.pubsub import Subscriptions
from korvet.security.acls import Acl, AclFilter, ResourcePattern, Rule
from korvet.security.credentials import Deletion, Upsertion
from korvet.security.quotas import Quota
from korvet.security.session import Principal, Session
from korvet.server.registry_watcher import Refresh, watch
from korvet.server.services import Storage
from korvet.server.worker import _watch_registry
from korvet.topics.registry import TopicSpec
from tests.support.dispatching import services_on
from tests.support.domain import Domain
from tests.support.proxy import Proxy, until

CHANNEL = Keys("korvet").topics_channel
NEVER_MS = 3_600_000
ALICE = Principal("User", "alice")


@pytest.fixture
def through_network(network: Proxy) -> Iterator[Subscriptions]:
    made = Subscriptions(Redis(network.url, timeout_ms=1000, connect_timeout_ms=1000), linger_ms=100)
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


def worker(storage: Storage) -> Services:
    return services_on(storage, Settings(authorizer_class_name="StandardAuthorizer"))


def allows(services: Services) -> bool:
    assert services.authorizer is not None
    rights = services.authorizer.rights(Session("10.0.0.1:1", principal=ALICE), "Fetch")
    return rights.allows(AclOperation.READ, AclResourceType.TOPIC, "orders", log=False)


def allow(services: Services) -> None:
    resource = ResourcePattern(AclResourceType.TOPIC, PatternType.LITERAL, "orders")
    acl = Acl(resource, Rule(str(ALICE), "*", AclOperation.READ, AclPermissionType.ALLOW))
    assert services.authorizer is not None
    assert services.authorizer.add([acl]) == [None]


def test_a_worker_has_what_others_have_changed_as_soon_as_the_message_comes(redis_url: str) -> None:
    """Users, rights, quotas, settings, topics, features and configs of groups."""
    settings = Settings(redis_url=redis_url)
    here, there = Storage.of(settings, None), Storage.of(settings, None)
    following, changing = worker(here), worker(there)
    watching = gevent.spawn(_watch_registry, settings, here, following)
    until(lambda: here.subscriptions.live(CHANNEL))
    following.traffic.received("gone", "id of a deleted topic", 1, 1)

    password = Upsertion(ScramMechanism.SCRAM_SHA_256, 4096, b"salt", b"x" * 32)
    changing.users.alter("alice", [password])
    until(lambda: following.users.get("alice", ScramMechanism.SCRAM_SHA_256))
    changing.users.alter("alice", [Deletion(ScramMechanism.SCRAM_SHA_256)])
    until(lambda: following.users.get("alice", ScramMechanism.SCRAM_SHA_256) is None)
    allow(changing)
    until(lambda: allows(following))
    assert changing.authorizer is not None
    changing.authorizer.remove(AclFilter())
    until(lambda: not allows(following))
    changing.quotas.alter((("user", "alice"),), {Quota.PRODUCER_BYTE_RATE: 7.0})
    until(lambda: following.quotas.table.limit(Quota.PRODUCER_BYTE_RATE, "alice", ""))
    changing.group_configs.alter("billing", lambda _row: {"consumer.session.timeout.ms": "50000"})
    until(lambda: following.group_configs.session_ms("billing", "consumer") == 50_000)
    BrokerConfigStore(there.redis, Keys("korvet")).alter(DEFAULT, lambda _row: {"message.max.bytes": "90"})
    until(lambda: following.live.settings.message_max_bytes == 90)
    changing.features.update({"share.version": FeatureUpdate(0, FeatureUpgradeType.SAFE_DOWNGRADE)})
    until(lambda: following.features.finalized.get("share.version", 0) == 0)
    changing.topics.create(TopicSpec(name="orders"))
    until(lambda: following.topics.get_cached("orders"))
    assert not following.traffic.rows()

    assert not watching.dead
    watching.kill()
    here.close()
    there.close()


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
