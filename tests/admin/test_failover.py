"""The admin client on clusters of several brokers: of Korvet, where one is killed, and of another Kafka."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer

from korvet.admin.client import AdminClient
from korvet.admin.offsets import EARLIEST, LATEST, CommittedOffset
from korvet.admin.topics import NewTopic
from korvet.admin.types import Resource, TopicPartition, settled
from tests.support.broker import korvet_cluster
from tests.support.processes import WAIT_SECONDS_MAX, wait_until
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
            found = admin.cluster.describe().controller
            known.extend([] if found is None else [found])
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


def test_another_kafka_is_asked_in_its_own_versions() -> None:
    """The mock cluster of librdkafka: three brokers, each partition and group with one that serves it."""
    producer = Producer({"test.mock.num.brokers": 3})
    bootstrap = ",".join(
        str(each) for each in producer.list_topics(timeout=WAIT_SECONDS_MAX).brokers.values()
    )
    bootstrap = ",".join(each.rpartition("/")[0] or each for each in bootstrap.split(","))
    for index in range(4):
        for _ in range(index):
            producer.produce("orders", b"value", partition=index)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    with AdminClient(bootstrap) as admin:
        topology = admin.topology(every_topic=True)
        assert len(topology.brokers) == 3
        assert topology.partitions == {"orders": [0, 1, 2, 3]}
        places = [TopicPartition("orders", index) for index in range(4)]
        ends = settled(admin.offsets.at(dict.fromkeys(places, LATEST)))
        assert [ends[place].offset for place in places] == [0, 1, 2, 3]
        starts = settled(admin.offsets.at(dict.fromkeys(places, EARLIEST)))
        assert {start.offset for start in starts.values()} == {0}
        for group in ("billing", "shipping", "auditing"):
            settled(admin.offsets.alter(group, {places[3]: 2}))
            assert admin.offsets.committed(group, places)[places[3]].offset == 2
