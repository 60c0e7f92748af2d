"""The admin client on a cluster of two brokers, one of which is killed."""

from __future__ import annotations

from pathlib import Path

from korvet.admin.client import AdminClient
from korvet.admin.offsets import LATEST, CommittedOffset
from korvet.admin.topics import NewTopic
from korvet.admin.types import Resource, TopicPartition, settled
from tests.support.broker import korvet_cluster
from tests.support.processes import wait_until
from tests.support.topic_client import Client


def test_a_killed_broker_costs_no_question(tmp_path: Path, redis_url: str) -> None:
    lease = ("--set", "broker.lease.ms=2000")
    with korvet_cluster(tmp_path, redis_url, *lease) as (zero, one), AdminClient(zero.bootstrap) as admin:
        with Client(one.address) as client:
            client.create("orders", partitions=8)
        places = [TopicPartition("orders", index) for index in range(8)]
        leaders = {admin.topology(["orders"]).leader(place) for place in places}
        assert len(leaders) == 2
        settled(admin.offsets.alter("billing", dict.fromkeys(places, 0)))
        zero.kill()
        assert settled(admin.offsets.at(dict.fromkeys(places, LATEST))).keys() == set(places)
        for number in range(4):
            group = f"group-{number}"
            settled(admin.offsets.alter(group, {places[0]: number}))
            assert admin.offsets.committed(group) == {places[0]: CommittedOffset(number)}


def test_a_killed_controller_costs_no_change(tmp_path: Path, redis_url: str) -> None:
    lease = ("--set", "broker.lease.ms=2000", "--set", "keeper.lease.ms=2000")
    with korvet_cluster(tmp_path, redis_url, *lease) as brokers, AdminClient(brokers[0].bootstrap) as admin:
        known: list[int] = []

        def is_known() -> bool:
            # A second question may reach the other broker, which does not know yet.
            result = admin.cluster.describe().controller
            known.extend([] if result is None else [result])
            return bool(known)

        wait_until(is_known, "a controller")
        [controller] = known
        left = 1 - controller
        brokers[controller].kill()
        settled(admin.topics.create([NewTopic("orders", partitions=2)]))
        settled(admin.configs.alter({Resource.topic("orders"): {"retention.ms": "1000"}}))
        settled(admin.topics.create_partitions({"orders": 4}))
        settled(admin.partitions.reassign({TopicPartition("orders", 0): [left]}))
        settled(admin.topics.delete(["orders"]))
        wait_until(lambda: admin.cluster.describe().controller == left, "the other controller")
