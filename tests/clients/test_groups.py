"""Consumers of librdkafka in groups of either protocol, and in one that changes from one protocol to the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import redis

from tests.support import processes, reading
from tests.support.broker import Broker, korvet_broker

PARTITIONS = 6
SECONDS_MAX = 60.0
KINDS = [
    *("confluent eager", "confluent cooperative", "confluent static"),
    *("confluent consumer", "confluent consumer static"),
]


class Confluent:
    def __init__(self, bootstrap: str, topic: str, group: str, **config: Any) -> None:
        self.consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", **config}
        )
        self.consumer.subscribe([topic])
        self.values: list[bytes] = []

    def poll(self) -> None:
        for message in self.consumer.consume(100, 0.1):
            assert message.error() is None, message.error()
            self.values.append(message.value() or b"")

    def partitions(self) -> set[int]:
        return {item.partition for item in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


def member(kind: str, number: int, bootstrap: str, topic: str, subscription: str = "") -> Confluent:
    config: dict[str, Any] = {"session.timeout.ms": 45_000, "heartbeat.interval.ms": 200}
    if " consumer" in kind:  # the broker says how long these are
        config = {"group.protocol": "consumer"}
    if kind.endswith("cooperative"):
        config["partition.assignment.strategy"] = "cooperative-sticky"
    if kind.endswith("static"):
        config["group.instance.id"] = f"instance-{number}"
    return Confluent(bootstrap, subscription or topic, topic, **config)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker of two workers whose groups begin at once, and whose members send heartbeats often."""
    settings = (
        "group.initial.rebalance.delay.ms=0",
        "group.consumer.min.heartbeat.interval.ms=200",
        "group.consumer.heartbeat.interval.ms=200",
        "group.consumer.min.session.timeout.ms=1000",
    )
    flags = [word for setting in settings for word in ("--set", setting)]
    directory: Path = tmp_path_factory.mktemp("groups")
    with korvet_broker(directory, *flags, workers=2) as running:
        yield running


def produce(broker: Broker, topic: str, values: set[bytes]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number, value in enumerate(sorted(values)):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(SECONDS_MAX) == 0


def poll_until(members: list[Any], condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"{what}: {[item.partitions() for item in members]}"
        for item in members:
            item.poll()


def shared(members: list[Any]) -> bool:
    """Whether the members have all partitions, and no two have the same."""
    parts = [item.partitions() for item in members]
    return all(parts) and sorted(part for some in parts for part in some) == list(range(PARTITIONS))


@pytest.mark.parametrize("kind", KINDS)
def test_consumers_share_partitions_and_read_them(broker: Broker, kind: str) -> None:
    topic = kind.replace(" ", "-")
    reading.create_topic(broker.bootstrap, topic, PARTITIONS)
    members = [member(kind, 0, broker.bootstrap, topic)]
    try:
        poll_until(members, lambda: shared(members), "one has all")
        members.append(member(kind, 1, broker.bootstrap, topic))
        poll_until(members, lambda: shared(members), "two share")
        values = {b"value %d" % number for number in range(60)}
        produce(broker, topic, values)
        poll_until(members, lambda: values <= read_by(members), "all is read")
        members.pop().close()
        if not kind.endswith("static"):  # which leaves only when its session ends
            poll_until(members, lambda: shared(members), "one has all again")
    finally:
        for item in members:
            item.close()


def read_by(members: list[Confluent]) -> set[bytes]:
    return {value for item in members for value in item.values}


@pytest.mark.parametrize("classic", ["eager", "cooperative"])
def test_a_group_changes_to_the_consumer_protocol_and_back_while_it_reads(
    broker: Broker, stored: redis.Redis, classic: str
) -> None:
    topic = f"migrated-{classic}"
    reading.create_topic(broker.bootstrap, topic, PARTITIONS)
    state = f"{{korvet:group:{topic}:offsets}}:group"
    everybody = members = [
        member(f"confluent {classic}", number, broker.bootstrap, topic) for number in range(2)
    ]
    sent: set[bytes] = set()

    def still_reads(what: str) -> None:
        more = {b"%s %d" % (what.encode(), number) for number in range(30)}
        produce(broker, topic, more)
        sent.update(more)
        poll_until(members, lambda: shared(members) and sent <= read_by(everybody), what)

    try:
        still_reads("classic")
        for what, kind in (("upgrade", "confluent consumer"), ("downgrade", f"confluent {classic}")):
            for number in range(2):
                new = member(kind, number, broker.bootstrap, topic)
                members, everybody = [*members, new], [*everybody, new]
                still_reads(f"{what} {number}")
                processes.kill(broker.worker_pids()[number])
                members.pop(0).close()
                still_reads(f"{what} {number} done")
            assert stored.hget(state, "type") == (b"consumer" if what == "upgrade" else None)
    finally:
        for item in members:
            item.close()


def test_a_regular_expression_follows_the_topics_that_there_are(broker: Broker) -> None:
    reading.create_topic(broker.bootstrap, "expressed-one", PARTITIONS)
    expressed = member("confluent consumer", 0, broker.bootstrap, "expressed", "^expressed-(one|two)")
    named = member("confluent consumer", 1, broker.bootstrap, "expressed", "expressed-one")
    members = [expressed, named]

    def topics(of: Confluent) -> set[str]:
        return {item.topic for item in of.consumer.assignment()}

    try:
        poll_until(members, lambda: topics(named) == {"expressed-one"} and bool(topics(expressed)), "one")
        reading.create_topic(broker.bootstrap, "expressed-two", PARTITIONS)
        poll_until(members, lambda: "expressed-two" in topics(expressed), "two")
        values = {b"value %d" % number for number in range(30)}
        produce(broker, "expressed-two", values)
        poll_until(members, lambda: values <= set(expressed.values), "read")
        assert topics(named) == {"expressed-one"}
    finally:
        for item in members:
            item.close()
