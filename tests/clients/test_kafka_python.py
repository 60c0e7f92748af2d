"""kafka-python as a client: it gets back exactly what it sent, and finds its way around the log."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import (
    MessageSizeTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from tests.support import ops
from tests.support.broker import Broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import (
    CODECS,
    PARTITIONS,
    PER_CODEC,
    TIMESTAMP_FIRST_MS,
    Received,
    Sample,
    by_codec,
    check_exactly,
    samples,
    topic_name,
)

MILLISECONDS_MAX = int(WAIT_SECONDS_MAX * 1000)


@contextmanager
def admin(broker: Broker) -> Iterator[Any]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as running:
        yield running


def create(broker: Broker, topic: str, partitions: int = 1) -> None:
    with admin(broker) as running:
        running.create_topics([NewTopic(topic, partitions, 1)], timeout_ms=MILLISECONDS_MAX)


def produce(broker: Broker, topic: str, records: Iterable[Sample], **config: Any) -> list[tuple[int, int]]:
    """Send and wait; returns partition and offset of each acknowledgement."""
    common = {"bootstrap_servers": broker.bootstrap, "linger_ms": 20, "batch_size": 256 * 1024}
    with closing(KafkaProducer(**{**common, **config})) as producer:
        futures = [
            producer.send(
                topic,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp,
            )
            for record in records
        ]
        producer.flush(WAIT_SECONDS_MAX)
        acknowledged = [future.get(0) for future in futures]
    return [(metadata.partition, metadata.offset) for metadata in acknowledged]


@contextmanager
def consumer(broker: Broker, topic: str, partitions: int = 1, **config: Any) -> Iterator[Any]:
    common = {"bootstrap_servers": broker.bootstrap, "auto_offset_reset": "earliest", "group_id": None}
    with closing(KafkaConsumer(**{**common, **config})) as running:
        running.assign([TopicPartition(topic, index) for index in range(partitions)])
        yield running


def consume(running: Any, count: int) -> list[Received]:
    """Read `count` records, then look whether there are more than that."""
    received: list[Received] = []
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while len(received) < count:
        assert time.monotonic() < deadline, f"{len(received)} of {count} records"
        received += poll(running, 200)
    return received + poll(running, 200)


def poll(running: Any, wait_ms_max: int) -> list[Received]:
    found = running.poll(wait_ms_max, max_records=PER_CODEC)
    return [
        Received(each.partition, each.offset, each.key, each.value, tuple(each.headers), each.timestamp)
        for records in found.values()
        for each in records
    ]


def test_twenty_thousand_records_of_all_codecs_come_back_exactly(broker: Broker) -> None:
    topic = topic_name("kafka-python")
    create(broker, topic, PARTITIONS)
    sent = samples(0, PER_CODEC * len(CODECS), null_headers=False)
    offsets: list[tuple[int, int]] = []
    weights: list[float] = []
    for codec, part in by_codec(sent):
        before = ops.settled_total(broker, "korvet_received_bytes_total")
        kind = None if codec == "none" else codec
        offsets += produce(broker, topic, part, compression_type=kind, enable_idempotence=False)
        weights.append(ops.settled_total(broker, "korvet_received_bytes_total") - before)
    assert max(weights[1:]) < weights[0] / 2, "compressed batches travelled"
    with consumer(broker, topic, PARTITIONS) as running:
        check_exactly(sent, consume(running, len(sent)), offsets)


def test_an_idempotent_producer_writes_every_record_once(broker: Broker) -> None:
    topic = topic_name("kafka-python-idempotent")
    create(broker, topic, PARTITIONS)
    sent = samples(0, 5000, null_headers=False)
    offsets = produce(broker, topic, sent, enable_idempotence=True, batch_size=16 * 1024)
    with consumer(broker, topic, PARTITIONS) as running:
        check_exactly(sent, consume(running, len(sent)), offsets)


def test_offsets_are_found_by_end_and_by_time_and_can_be_sought(broker: Broker) -> None:
    topic = topic_name("kafka-python-offsets")
    create(broker, topic)
    sent = [record._replace(partition=0) for record in samples(0, 3000, null_headers=False)]
    offsets = [offset for _, offset in produce(broker, topic, sent)]
    only = TopicPartition(topic, 0)
    with consumer(broker, topic) as running:
        assert running.beginning_offsets([only]) == {only: offsets[0]}
        assert running.end_offsets([only]) == {only: offsets[-1] + 1}
        found = running.offsets_for_times({only: TIMESTAMP_FIRST_MS + 500})[only]
        assert (found.offset, found.timestamp) == (offsets[1500], TIMESTAMP_FIRST_MS + 500)
        assert running.offsets_for_times({only: TIMESTAMP_FIRST_MS + 3000}) == {only: None}
        assert len(consume(running, len(sent))) == len(sent)
        running.seek(only, offsets[1490])
        check_exactly(sent[1490:], consume(running, 1510))
        running.seek_to_end(only)
        assert running.position(only) == offsets[-1] + 1
        running.seek_to_beginning(only)
        assert running.position(only) == offsets[0]


def test_a_consumer_that_waits_at_the_end_of_an_empty_topic_gets_the_first_record(broker: Broker) -> None:
    topic = topic_name("kafka-python-waits")
    create(broker, topic)
    with consumer(broker, topic, auto_offset_reset="none") as running:
        only = TopicPartition(topic, 0)
        running.seek(only, running.end_offsets([only])[only])
        assert poll(running, 1000) == []
        sent = [Sample(0, b"first", b"record", (), TIMESTAMP_FIRST_MS)]
        produce(broker, topic, sent)
        check_exactly(sent, consume(running, 1))


def test_a_record_of_900_kilobytes_passes_and_a_larger_batch_than_allowed_does_not(broker: Broker) -> None:
    topic = topic_name("kafka-python-large")
    create(broker, topic)
    large = bytes(range(256)) * 3600
    sent = [Sample(0, None, large, (), TIMESTAMP_FIRST_MS), Sample(0, b"", b"small", (), TIMESTAMP_FIRST_MS)]
    produce(broker, topic, sent)
    with consumer(broker, topic) as running:
        check_exactly(sent, consume(running, 2))
    too_large = [Sample(0, None, large * 2, (), TIMESTAMP_FIRST_MS)]
    with pytest.raises(MessageSizeTooLargeError, match=r"exceeds max\.message\.bytes = 1048588"):
        produce(broker, topic, too_large, max_request_size=4_000_000)


def test_an_unknown_topic_is_created_by_a_producer_but_not_by_who_only_looks(broker: Broker) -> None:
    topic = topic_name("kafka-python-auto")
    with admin(broker) as running:
        (described,) = running.describe_topics([topic])
        assert described["error_code"] == UnknownTopicOrPartitionError.errno
        assert topic not in running.list_topics()
        sent = [Sample(2, b"k", b"v", (), TIMESTAMP_FIRST_MS)]
        offsets = produce(broker, topic, sent)
        (described,) = running.describe_topics([topic])
        assert len(described["partitions"]) == 3
    with consumer(broker, topic, 3) as running:
        check_exactly(sent, consume(running, 1), offsets)


def test_a_deleted_topic_is_gone_and_its_name_can_be_used_again(broker: Broker) -> None:
    topic = topic_name("kafka-python-deleted")
    create(broker, topic, 2)
    with pytest.raises(TopicAlreadyExistsError):
        create(broker, topic)
    produce(broker, topic, [Sample(1, b"old", b"old", (), TIMESTAMP_FIRST_MS)])
    with admin(broker) as running:
        running.delete_topics([topic])
        assert topic not in running.list_topics()
    create(broker, topic, 2)
    sent = [Sample(1, b"new", b"new", (), TIMESTAMP_FIRST_MS)]
    offsets = produce(broker, topic, sent)
    with consumer(broker, topic, 2) as running:
        check_exactly(sent, consume(running, 1), offsets)


def test_a_consumer_of_many_partitions_reads_all_of_them_in_a_session(broker: Broker) -> None:
    """It names its partitions once, and drops a session whose answers are not those that belong to it."""
    topic, partitions, rounds = topic_name("session"), 100, 5
    create(broker, topic, partitions)
    with (
        consumer(broker, topic, partitions, fetch_max_wait_ms=5000) as running,
        closing(KafkaProducer(bootstrap_servers=broker.bootstrap)) as producer,
    ):
        expected: list[tuple[int, bytes]] = []
        received: list[tuple[int, bytes]] = []
        for number in range(rounds):
            some = [(partition, b"%d" % number) for partition in range(number, partitions, 30)]
            for partition, value in some:
                producer.send(topic, value, partition=partition)
            producer.flush(WAIT_SECONDS_MAX)
            expected += some
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while len(received) < len(expected) and time.monotonic() < deadline:
                for records in running.poll(1000).values():
                    received += [(each.partition, each.value) for each in records]
        assert sorted(received) == sorted(expected)
        [session] = running._fetcher._session_handlers.values()
        assert session.next_metadata.session_id > 0
        assert session.next_metadata.epoch > 1
