"""Real consumers without membership commit and resume: assign(), commits with generation -1, over two workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.support import redis_servers
from tests.support.broker import Broker, korvet_broker
from tests.support.topic_client import Client

SECONDS_MAX = 30.0


@pytest.fixture(scope="module", params=["record", "batch"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with redis_servers.server() as url:
        flags = ("--redis-url", url, "--set", f"storage.format={request.param}")
        with korvet_broker(tmp_path_factory.mktemp("commits"), *flags) as running:
            yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address) as connection:
        yield connection


class Confluent:
    """A confluent-kafka consumer of partition 0."""

    def __init__(self, broker: Broker, group: str, topic: str) -> None:
        self.at = confluent_kafka.TopicPartition(topic, 0)
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self.consumer.assign([self.at])

    def read(self, count: int) -> list[bytes]:
        """Return the next values."""
        found: list[bytes] = []
        while len(found) < count:
            messages = self.consumer.consume(1, SECONDS_MAX)
            assert messages, "nothing came"
            assert messages[0].error() is None
            value = messages[0].value()
            assert value is not None
            found.append(value)
        return found

    def commit(self) -> None:
        """Commit the position, and wait for the answer."""
        [done] = self.consumer.commit(asynchronous=False)
        assert done.error is None

    def committed(self) -> int | None:
        """Return what is committed."""
        [found] = self.consumer.committed([self.at], SECONDS_MAX)
        assert found.error is None
        return None if found.offset < 0 else int(found.offset)

    def close(self) -> None:
        """Close."""
        self.consumer.close()


class KafkaPython:
    """A kafka-python consumer of partition 0."""

    def __init__(self, broker: Broker, group: str, topic: str) -> None:
        self.at = kafka.TopicPartition(topic, 0)
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        self.consumer.assign([self.at])

    def read(self, count: int) -> list[bytes]:
        """Return the next values."""
        found: list[bytes] = []
        while len(found) < count:
            polled = self.consumer.poll(timeout_ms=int(SECONDS_MAX * 1000), max_records=1)
            assert polled, "nothing came"
            found += [record.value for records in polled.values() for record in records]
        return found

    def commit(self) -> None:
        """Commit the position, and wait for the answer."""
        self.consumer.commit()

    def committed(self) -> int | None:
        """Return what is committed."""
        found: int | None = self.consumer.committed(self.at)
        return found

    def close(self) -> None:
        """Close."""
        self.consumer.close()


@pytest.fixture(params=[Confluent, KafkaPython])
def consumer(request: pytest.FixtureRequest) -> Any:
    """Give a kind of consumer."""
    return request.param


def name(consumer: type, what: str) -> str:
    return f"{what}-{consumer.__name__}"


def test_a_consumer_goes_on_behind_what_another_one_committed(
    broker: Broker, client: Client, consumer: Any
) -> None:
    topic = name(consumer, "resume")
    client.create(topic)
    for number in range(6):
        client.append(topic, b"%d" % number)
    first = consumer(broker, "group {}%", topic)
    assert first.committed() is None
    assert first.read(2) == [b"0", b"1"]
    first.commit()
    assert first.read(2) == [b"2", b"3"]
    first.close()
    second = consumer(broker, "group {}%", topic)
    assert second.read(3) == [b"2", b"3", b"4"]
    second.commit()
    committed = second.committed()
    second.close()
    third = consumer(broker, "group {}%", topic)
    assert third.committed() == committed
    assert third.read(1) == [b"5"]
    third.close()
    other = consumer(broker, "another", topic)
    assert other.read(1) == [b"0"]
    other.close()


def test_offsets_of_a_recreated_topic_start_over(broker: Broker, client: Client, consumer: Any) -> None:
    topic = name(consumer, "recreated")
    client.create(topic)
    client.append(topic, b"old-0", b"old-1")
    reader = consumer(broker, "group", topic)
    assert reader.read(2) == [b"old-0", b"old-1"]
    reader.commit()
    reader.close()
    client.delete(topic)
    client.create(topic)
    client.append(topic, b"new")
    reader = consumer(broker, "group", topic)
    assert reader.committed() is None
    assert reader.read(1) == [b"new"]
    reader.close()


def test_an_admin_client_lists_and_deletes_what_consumers_left(
    broker: Broker, client: Client, consumer: Any
) -> None:
    topic, group = name(consumer, "listed"), name(consumer, "listed-group")
    client.create(topic)
    client.append(topic, b"v")
    reader = consumer(broker, group, topic)
    reader.read(1)
    reader.commit()
    reader.close()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    listed = admin.list_consumer_groups(request_timeout=SECONDS_MAX).result()
    assert listed.errors == []
    assert group in {each.group_id for each in listed.valid}
    described = admin.describe_consumer_groups([group], request_timeout=SECONDS_MAX)[group].result()
    assert (described.state.name, described.members) == ("EMPTY", [])
    admin.delete_consumer_groups([group], request_timeout=SECONDS_MAX)[group].result()
    listed = admin.list_consumer_groups(request_timeout=SECONDS_MAX).result()
    assert group not in {each.group_id for each in listed.valid}
