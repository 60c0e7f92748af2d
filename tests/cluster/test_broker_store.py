"""The registry of brokers on a real Redis: who is live, whose keeper holds the lease, rows that cannot be read."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from korvet.cluster.brokers import BrokerStore, RegisteredBroker, RegisteredBrokers
from korvet.cluster.leases import LeaseStore
from korvet.cluster.registration import Endpoint, Registration
from korvet.errors import ErrorCode, KafkaError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from tests.support.proxy import until
from tests.support.redis_cluster import redis_cluster

KEYS = Keys("korvet")
BROKERS = "korvet:brokers"
LEASE_MS = 60_000
ONE = Registration(broker_id=1, listeners={"PLAINTEXT": Endpoint("one.example", 9092)}, incarnation="a")
TWO = Registration(
    broker_id=2,
    listeners={"OUT": Endpoint("two.example", 9092), "IN": Endpoint("::1", 9094)},
    incarnation="b",
)


@pytest.fixture
def store(redis: Redis) -> BrokerStore:
    return BrokerStore(redis, KEYS)


def look(store: BrokerStore) -> RegisteredBrokers:
    return store.read(store.begin_read().result())


def live(store: BrokerStore) -> list[tuple[int, str, int]]:
    return [(broker.broker_id, *broker.address) for broker in look(store).brokers]


def test_registered_brokers_are_returned_in_order_of_ids_until_they_unregister(store: BrokerStore) -> None:
    assert look(store) == RegisteredBrokers((), None)
    store.register(TWO, LEASE_MS)
    store.register(ONE, LEASE_MS)
    assert live(store) == [(1, "one.example", 9092), (2, "two.example", 9092)]
    store.unregister(TWO, LEASE_MS)
    assert live(store) == [(1, "one.example", 9092)]
    assert [(broker.broker_id, broker.listeners) for broker in look(store).idle] == [(2, TWO.listeners)]
    store.register(TWO, LEASE_MS)
    store.unregister(TWO, 0)
    assert look(store).idle == ()
    store.register(TWO, LEASE_MS, starting=True)
    assert live(store) == [(1, "one.example", 9092)]
    assert [broker.broker_id for broker in look(store).idle] == [2]


def test_the_first_listener_identifies_a_broker_and_all_are_returned(store: BrokerStore) -> None:
    store.register(TWO, LEASE_MS)
    [result] = look(store).brokers
    assert result.address == ("two.example", 9092)
    assert result.listeners == TWO.listeners


def test_a_broker_that_registered_no_listeners_is_returned_with_its_address(
    store: BrokerStore, raw_redis: Any
) -> None:
    raw_redis.hset(BROKERS, "3", '{"host":"h","port":1,"until":9999999999999,"started":7}')
    assert look(store).brokers == (RegisteredBroker(3, Endpoint("h", 1), {}, 7),)


def test_a_broker_whose_lease_expired_is_not_returned(store: BrokerStore, raw_redis: Any) -> None:
    store.register(ONE, LEASE_MS)
    store.register(TWO, LEASE_MS)
    row = json.loads(raw_redis.hget(BROKERS, "1"))
    raw_redis.hset(BROKERS, "1", json.dumps(row | {"until": row["started"]}))
    assert live(store) == [(2, "two.example", 9092)]


def test_the_broker_whose_keeper_holds_the_lease_is_returned(
    store: BrokerStore, redis: Redis, raw_redis: Any
) -> None:
    lease = LeaseStore(redis, KEYS.keeper_lease, KEYS.keeper_fence)
    for epoch, broker_id in enumerate((17, 18), start=1):
        lease.acquire(f"{broker_id}:unique", LEASE_MS)
        # In a cluster nobody waits for who it is: the next look has it.
        until(lambda wanted=(broker_id, epoch): look(store)[1:3] == wanted)  # type: ignore[misc]  # a default has no type
        lease.release(f"{broker_id}:unique")
    raw_redis.set("korvet:keeper", "some other text")
    until(lambda: look(store)[1:3] == (None, 2))


@pytest.mark.slow
def test_brokers_are_known_though_the_node_of_the_lease_hangs() -> None:
    with redis_cluster() as cluster:
        redis = Redis(cluster.url, timeout_ms=5000, connect_timeout_ms=2000)
        store = BrokerStore(redis, KEYS)
        store.register(ONE, LEASE_MS)
        LeaseStore(redis, KEYS.keeper_lease, KEYS.keeper_fence).acquire("17:unique", LEASE_MS)
        until(lambda: look(store).keeper == 17)
        node = cluster.node_of(KEYS.keeper_lease)
        assert node is not cluster.node_of(BROKERS)
        node.freeze()
        try:
            assert [look(store).keeper for _ in range(3)] == [17] * 3
            assert live(store) == [(1, "one.example", 9092)]
        finally:
            node.thaw()
        node.kill()
        until(lambda: look(store).keeper is None)
        assert live(store) == [(1, "one.example", 9092)]
        redis.close()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("3", "no row"),
        ("x", '{"host":"h","port":1,"until":9999999999999,"started":1}'),
        ("3", '{"host":"h","port":0,"until":9999999999999,"started":1}'),
        ("3", '{"host":"","port":1,"until":9999999999999,"started":1}'),
        ("3", '{"host":"h","port":1,"started":1}'),
        ("3", '{"host":"h","port":1,"until":9999999999999,"started":1,"listeners":"IN"}'),
        ("3", '{"host":"h","port":1,"until":9999999999999,"started":1,"listeners":{"IN":["h"]}}'),
        ("3", '{"host":"h","port":1,"until":9999999999999,"started":1,"listeners":{"IN":["",1]}}'),
        ("3", '{"host":"h","port":1,"until":9999999999999,"started":1,"listeners":{"IN":["h",65536]}}'),
    ],
)
def test_a_row_that_cannot_be_read_is_logged_once_and_the_others_are_returned(
    store: BrokerStore, raw_redis: Any, caplog: pytest.LogCaptureFixture, name: str, text: str
) -> None:
    caplog.set_level(logging.ERROR)
    store.register(ONE, LEASE_MS)
    raw_redis.hset(BROKERS, name, text)
    for _ in range(3):
        assert live(store) == [(1, "one.example", 9092)]
    assert len(caplog.records) == 1
    assert name in caplog.text
    raw_redis.hset(BROKERS, name, "another text")
    look(store)
    assert len(caplog.records) == 2


def test_a_key_of_another_type_is_a_storage_error(store: BrokerStore, raw_redis: Any) -> None:
    raw_redis.set(BROKERS, "no hash")
    for ask in (lambda: store.register(ONE, LEASE_MS), lambda: store.unregister(ONE, 0), lambda: look(store)):
        with pytest.raises(KafkaError, match=BROKERS) as refusal:
            ask()
        assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
