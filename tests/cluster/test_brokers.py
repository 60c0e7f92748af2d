"""One worker's view of the cluster: who is live, and how leaders and coordinators are spread over them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from korvet.cluster.brokers import (
    NOBODY,
    BrokerAddress,
    BrokerStore,
    ClusterView,
    LiveBroker,
    LiveBrokers,
    Placed,
)
from korvet.cluster.leases import LeaseStore
from korvet.cluster.registration import Endpoint, Registration
from korvet.errors import ErrorCode, KafkaError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from tests.support.domain import Domain
from tests.support.proxy import until

LEASE_MS = 60_000
KEYS = Keys("korvet")
PARTITIONS = 3000
PLAINTEXT = "PLAINTEXT"


def member(broker_id: int) -> LiveBroker:
    return LiveBroker(broker_id, {PLAINTEXT: Endpoint(f"broker-{broker_id}.example", 9092)})


def brokers(*ids: int, keeper: int | None = None) -> LiveBrokers:
    return LiveBrokers([member(item) for item in ids], keeper)


def address(broker_id: int, name: str = "broker") -> BrokerAddress:
    return BrokerAddress(broker_id, f"{name}-{broker_id}.example", 9092)


def start(broker_id: int, at: LiveBroker | None = None) -> Registration:
    listeners = (at or member(broker_id)).listeners
    return Registration(broker_id=broker_id, listeners=listeners, incarnation=f"start-{broker_id}")


def register(here: Domain, broker_id: int, at: LiveBroker | None = None) -> None:
    BrokerStore(here.redis, KEYS).register(start(broker_id, at), LEASE_MS)


def known(cluster: ClusterView) -> list[int]:
    """Return who was live when the cluster was last refreshed."""
    return [item.broker_id for item in cluster.live.all]


@pytest.fixture
def cluster(here: Domain) -> ClusterView:
    return ClusterView("id", member(2), BrokerStore(here.redis, KEYS))


def test_a_single_broker_does_everything() -> None:
    alone = brokers(7)
    assert alone.on(PLAINTEXT).controller_id == 7
    assert alone.leaders("orders", 3, None) == [7, 7, 7]
    assert alone.coordinator("group") == 7
    assert alone.on(PLAINTEXT).coordinator("group") == address(7)


def test_partitions_and_groups_are_spread_over_all_brokers() -> None:
    live = brokers(0, 1, 2)
    leaders = Counter(live.leaders("orders", PARTITIONS, None))
    groups = Counter(live.coordinator(f"group-{n}") for n in range(PARTITIONS))
    assert leaders == dict.fromkeys((0, 1, 2), PARTITIONS / 3)
    assert sorted(groups) == [0, 1, 2]
    assert min(groups.values()) > 0.85 * PARTITIONS / 3


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 12, 50])
def test_each_broker_leads_its_share_of_a_topic(count: int, partitions: int) -> None:
    live = brokers(*range(count))
    for topic in range(20):
        led = Counter(live.leaders(f"topic-{topic}", partitions, None))
        assert {led[number] for number in range(count)} <= {partitions // count, -(-partitions // count)}


def test_the_loss_of_a_broker_moves_little_that_it_did_not_have() -> None:
    before, after = brokers(0, 1, 2), brokers(0, 2)
    pairs = zip(
        before.leaders("orders", PARTITIONS, None), after.leaders("orders", PARTITIONS, None), strict=True
    )
    assert sum(was not in (1, now) for was, now in pairs) < PARTITIONS * 0.02
    for n in range(PARTITIONS):
        was = before.coordinator(f"group-{n}")
        assert was in (1, after.coordinator(f"group-{n}"))


def test_every_process_spreads_alike() -> None:
    # Numbers that a hash seeded per process, or an order of arrival, would not give twice.
    assert brokers(2, 0, 1).leaders("orders", 12, None) == [1, 2, 1, 1, 2, 0, 1, 2, 0, 0, 0, 2]
    assert brokers(1, 0).coordinator("my-group") == 0


def test_the_first_live_broker_of_an_assignment_leads() -> None:
    live = brokers(0, 1)
    chosen = live.leaders("orders", 5, [[1, 0], [9, 0], [9], []])
    spread = live.leaders("orders", 5, None)
    assert chosen == [1, 0, *spread[2:]]
    assert live.leaders("orders", 1, [[1], [0]]) == [1]


def test_replicas_are_the_assigned_brokers_in_their_order_and_the_leader_is_one_of_them() -> None:
    live = brokers(0, 1)
    assert live.placed("orders", 3, [[1, 0], [9, 0], [8, 1, 9]]) == [
        Placed(1, [1, 0], [1, 0], []),
        Placed(0, [9, 0], [0], [9]),
        Placed(1, [8, 1, 9], [1], [8, 9]),
    ]


def test_a_leader_that_no_assignment_names_is_a_replica_of_its_own() -> None:
    live = brokers(0, 1)
    spread = live.leaders("orders", 4, None)
    nobody, any_broker, beyond, _ = spread
    assert live.placed("orders", 4, [[9], []]) == [
        Placed(nobody, [9, nobody], [nobody], [9]),
        Placed(any_broker, [any_broker], [any_broker], []),
        *(Placed(leader, [leader], [leader], []) for leader in spread[2:]),
    ]
    assert live.placed("orders", 3, None)[2] == Placed(beyond, [beyond], [beyond], [])


def test_the_controller_is_the_live_broker_whose_keeper_holds_the_lease() -> None:
    assert brokers(3, 5, 4, keeper=5).on(PLAINTEXT).controller_id == 5
    assert brokers(3, 5, 4, keeper=9).on(PLAINTEXT).controller_id == 3
    assert brokers(3, 5, 4).on(PLAINTEXT).controller_id == 3


@pytest.fixture
def mixed() -> LiveBrokers:
    """Give brokers of which 0 has the listener INSIDE alone, and 1 and 2 that and OUTSIDE."""
    inside = [Endpoint(f"inside-{number}.example", 9092) for number in range(3)]
    outside = [Endpoint(f"outside-{number}.example", 9092) for number in range(3)]
    both = [LiveBroker(item, {"INSIDE": inside[item], "OUTSIDE": outside[item]}) for item in (1, 2)]
    return LiveBrokers([LiveBroker(0, {"INSIDE": inside[0]}), *both], keeper=0)


def test_clients_of_a_listener_get_the_brokers_that_have_it_at_its_addresses(mixed: LiveBrokers) -> None:
    assert mixed.on("INSIDE").all == tuple(address(number, "inside") for number in range(3))
    assert mixed.on("OUTSIDE").all == (address(1, "outside"), address(2, "outside"))
    assert mixed.on("PLAINTEXT").all == ()


def test_the_controller_is_one_that_the_listener_leads_to(mixed: LiveBrokers) -> None:
    controllers = [mixed.on(item).controller_id for item in ("INSIDE", "OUTSIDE", "PLAINTEXT")]
    assert controllers == [0, 1, NOBODY]


def test_what_a_broker_without_the_listener_leads_has_no_leader_there(mixed: LiveBrokers) -> None:
    assignment = [[0, 1], [1, 0], [2, 9]]
    inside = [Placed(0, [0, 1], [0, 1], []), Placed(1, [1, 0], [1, 0], []), Placed(2, [2, 9], [2], [9])]
    assert mixed.on("INSIDE").placed("orders", 3, assignment) == inside
    assert mixed.on("OUTSIDE").placed("orders", 3, assignment) == [
        Placed(NOBODY, [0, 1], [0, 1], [0]),
        Placed(1, [1, 0], [1, 0], [0]),
        Placed(2, [2, 9], [2], [9]),
    ]


def test_a_coordinator_without_the_listener_is_not_available_there(mixed: LiveBrokers) -> None:
    groups = [f"group-{n}" for n in range(20)]
    assert {mixed.coordinator(group) for group in groups} == {0, 1, 2}
    for group in groups:
        kept_by = mixed.coordinator(group)
        assert mixed.on("INSIDE").coordinator(group) == address(kept_by, "inside")
        if kept_by:
            assert mixed.on("OUTSIDE").coordinator(group) == address(kept_by, "outside")
        else:
            with pytest.raises(KafkaError, match="broker 0 has no listener OUTSIDE") as refusal:
                mixed.on("OUTSIDE").coordinator(group)
            assert refusal.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_refresh_finds_live_brokers_and_always_this_one(here: Domain, cluster: ClusterView) -> None:
    assert known(cluster) == [2]
    register(here, 1)
    assert cluster.refresh().all == (member(1), member(2))
    register(here, 2, member(99))  # what Redis holds of this broker is of an earlier address
    register(here, 3)
    assert cluster.refresh().all == (member(1), member(2), member(3))
    assert known(cluster) == [1, 2, 3]


def test_a_broker_that_has_stopped_is_listed_and_leads_nothing(here: Domain, cluster: ClusterView) -> None:
    store = BrokerStore(here.redis, KEYS)
    for broker_id in (1, 2, 3, 4):
        register(here, broker_id)
    for broker_id in (1, 2, 3, 4):  # 2 is what this broker was before
        store.unregister(start(broker_id), LEASE_MS)
    register(here, 4)
    register(here, 5, member(3))
    seen = cluster.refresh()
    reached = seen.on(PLAINTEXT)
    assert [broker.broker_id for broker in reached.all] == [2, 4, 5]
    assert [broker.broker_id for broker in reached.listed] == [2, 4, 5, 1]
    assert set(seen.leaders("orders", PARTITIONS, [[1]])) == {2, 4, 5}
    assert {seen.coordinator(f"group-{number}") for number in range(100)} == {2, 4, 5}


def test_a_refresh_without_changes_changes_nothing(here: Domain, cluster: ClusterView) -> None:
    register(here, 1)
    before = cluster.refresh()
    register(here, 1)  # renewed
    assert cluster.refresh() is before
    assert before.on(PLAINTEXT) is before.on(PLAINTEXT)
    register(here, 1, member(99))
    assert cluster.refresh().on(PLAINTEXT).all == (BrokerAddress(1, "broker-99.example", 9092), address(2))


def test_a_refresh_finds_the_keeper(here: Domain, cluster: ClusterView) -> None:
    register(here, 1)
    assert cluster.refresh().on(PLAINTEXT).controller_id == 1
    LeaseStore(here.redis, KEYS.keeper_lease, KEYS.keeper_fence).acquire("2:unique", LEASE_MS)
    # Of a Redis Cluster another node may have the lease, for which a refresh does not wait.
    until(lambda: cluster.refresh().on(PLAINTEXT).controller_id == 2)


def test_of_two_brokers_at_one_address_the_later_one_is_seen(
    here: Domain, cluster: ClusterView, raw_redis: Any
) -> None:
    text = '{"host":"h","port":1,"incarnation":"x","until":9999999999999,"started":%d}'
    raw_redis.hset(KEYS.brokers, mapping={"5": text % 10, "6": text % 30, "7": text % 20})
    assert cluster.refresh().all == (member(2), LiveBroker(6, {PLAINTEXT: Endpoint("h", 1)}))
    register(here, 8, member(2))
    assert [item.broker_id for item in cluster.refresh().all] == [2, 6]


def test_commands_inside_a_refresh_do_not_wait_for_its_reply(here: Domain, cluster: ClusterView) -> None:
    register(here, 1)
    here.topics.refresh()
    with cluster.refreshing():
        before = known(cluster)
        here.topics.refresh()
    assert before == [2]
    assert known(cluster) == [1, 2]


def test_the_view_stays_if_redis_cannot_be_read(here: Domain, cluster: ClusterView, raw_redis: Any) -> None:
    register(here, 1)
    seen = cluster.refresh()
    raw_redis.set(KEYS.brokers, "no hash")
    assert cluster.refresh() is seen
    here.redis.close()
    assert cluster.refresh() is seen


def test_a_view_on_a_redis_that_is_away_from_the_start_is_this_broker() -> None:
    away = Redis("unix:///nowhere.sock", timeout_ms=100, connect_timeout_ms=100)
    assert ClusterView("id", member(2), BrokerStore(away, KEYS)).refresh().all == (member(2),)
