"""kafka-transactions: transactions listed, described, and those that hang found and aborted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from confluent_kafka import Producer

from tests.jvm.kafka_tools.test_features import wait_for_level
from tests.jvm.tools import AtBroker
from tests.support import reading
from tests.support.broker import Broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import topic_name

LATEST = 2
"""The level of transaction.version that brokers have by default."""


@pytest.fixture
def producer(brokers: list[Broker], topic: str) -> Iterator[Producer]:
    """Give a producer whose transactional id is the topic's name, with an open transaction in its partition 0."""
    config = {"bootstrap.servers": brokers[0].bootstrap, "transactional.id": topic, "log_level": 0}
    running = Producer(config)
    running.init_transactions(WAIT_SECONDS_MAX)
    running.begin_transaction()
    running.produce(topic, b"open", partition=0)
    assert running.flush(WAIT_SECONDS_MAX) == 0
    yield running
    running.purge()


def rows(said: str) -> list[dict[str, str]]:
    """Return the rows of a table by its titles."""
    titles, *lines = (line.split("\t") for line in said.splitlines())
    return [dict(zip(map(str.strip, titles), map(str.strip, line), strict=True)) for line in lines]


def row(tools: AtBroker, transactional_id: str, *flags: str) -> dict[str, str]:
    """Return what is listed of a transactional id, nothing if it is not."""
    results = rows(tools.done("kafka-transactions", "list", *flags))
    return next((result for result in results if result["TransactionalId"] == transactional_id), {})


def test_a_transaction_is_listed_and_described(tools: AtBroker, producer: Producer, topic: str) -> None:
    listed = row(tools, topic)
    assert listed["TransactionState"] == "Ongoing"
    assert row(tools, topic, "--duration-filter", "3600000") == {}
    assert row(tools, topic, "--transactional-id-pattern", f"{topic[:-1]}.") == listed
    assert row(tools, topic, "--transactional-id-pattern", topic[:-1]) == {}
    [described] = rows(tools.done("kafka-transactions", "describe", "--transactional-id", topic))
    assert described["ProducerId"] == listed["ProducerId"]
    assert (described["TransactionState"], described["TransactionTimeoutMs"]) == ("Ongoing", "60000")
    assert described["TopicPartitions"] == f"{topic}-0"
    of_partition = ("--topic", topic, "--partition", "0")
    [writing] = rows(tools.done("kafka-transactions", "describe-producers", *of_partition))
    assert writing["ProducerId"] == listed["ProducerId"]
    assert int(writing["CurrentTransactionStartOffset"]) >= 0
    producer.commit_transaction(WAIT_SECONDS_MAX)
    assert row(tools, topic)["TransactionState"] == "CompleteCommit"
    [written] = rows(tools.done("kafka-transactions", "describe-producers", *of_partition))
    assert written["CurrentTransactionStartOffset"] == "None"


def test_a_transaction_that_hangs_is_found_and_aborted(
    tools: AtBroker, producer: Producer, brokers: list[Broker], cluster_redis: str, topic: str
) -> None:
    hanging = ("find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
    assert rows(tools.done("kafka-transactions", *hanging)) == []
    with redis.Redis.from_url(cluster_redis) as stored:
        # No coordinator knows of it any more.
        assert stored.delete(f"korvet:transaction:{topic}:state") == 1
    [result] = rows(tools.done("kafka-transactions", *hanging))
    assert (result["Topic"], result["Partition"]) == (topic, "0")
    end = Producer({"bootstrap.servers": brokers[0].bootstrap})
    end.produce(topic, b"last", partition=0)
    assert end.flush(WAIT_SECONDS_MAX) == 0
    at = ("--topic", topic, "--partition", "0", "--start-offset", result["StartOffset"])
    tools.done("kafka-transactions", "abort", *at)
    assert rows(tools.done("kafka-transactions", *hanging)) == []
    with reading.consumer(
        brokers[0].bootstrap, topic, (0,), **{"isolation.level": "read_committed"}
    ) as running:
        assert [item.value for item in reading.read(running, 1)] == [b"last"]
    assert "Could not find any open transactions" in tools.refused("kafka-transactions", "abort", *at)


@pytest.mark.parametrize("level", [LATEST - 1, LATEST])
def test_transactions_of_the_java_producer_by_either_protocol(
    tools: AtBroker, brokers: list[Broker], level: int
) -> None:
    name, records = topic_name("java"), 5_000
    tools.done("kafka-topics", "--create", "--topic", name, "--partitions", "2")
    tools.done(
        "kafka-features",
        "upgrade" if level == LATEST else "downgrade",
        "--feature",
        f"transaction.version={level}",
    )
    wait_for_level(tools, level)
    flags = f"enable.idempotence=true --topic {name} --num-records {records} --record-size 10 --throughput -1"
    transactions = ("--transactional-id", name, "--transaction-duration-ms", "50")
    try:
        tools.run("kafka-producer-perf-test", *flags.split(), *transactions)
    finally:
        if level != LATEST:
            tools.done("kafka-features", "upgrade", "--feature", f"transaction.version={LATEST}")
            wait_for_level(tools, LATEST)
    assert row(tools, name)["TransactionState"] == "CompleteCommit"
    [described] = rows(tools.done("kafka-transactions", "describe", "--transactional-id", name))
    # By the second protocol (KIP-890) each transaction has an epoch of its own.
    assert (int(described["ProducerEpoch"]) > 0) == (level == LATEST)
    with reading.consumer(
        brokers[0].bootstrap, name, range(2), **{"isolation.level": "read_committed"}
    ) as running:
        assert len(reading.read(running, records)) == records
