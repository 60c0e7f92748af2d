"""A broker stops while a client of librdkafka has it cached as the coordinator of a group."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support import reading
from tests.support.broker import korvet_cluster

ANSWER_SECONDS_MAX = 30.0


def test_a_transaction_commits_offsets_at_the_coordinator_after_the_one_that_stopped(
    tmp_path: Path, redis_url: str
) -> None:
    with korvet_cluster(tmp_path, redis_url) as brokers:
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        reading.create_topic(bootstrap, "orders")
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "copier"})
        producer.init_transactions(ANSWER_SECONDS_MAX)
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "copiers"})
        metadata = consumer.consumer_group_metadata()

        def copy(offset: int) -> None:
            producer.begin_transaction()
            producer.produce("orders", b"copy")
            offsets = [TopicPartition("orders", 0, offset)]
            producer.send_offsets_to_transaction(offsets, metadata, ANSWER_SECONDS_MAX)
            producer.commit_transaction(ANSWER_SECONDS_MAX)

        copy(1)
        assert brokers[0].stop() == 0
        copy(2)
        consumer.close()
