"""Partitions through the admin client, on one broker and on two: moved, led, weighed, written to."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import Producer as KafkaProducer

from korvet.admin.client import AdminClient
from korvet.admin.cluster import LogDir, LogSize
from korvet.admin.errors import (
    BrokerError,
    ElectionNotNeededError,
    UnknownTopicOrPartitionError,
)
from korvet.admin.types import TopicPartition, settled
from korvet.errors import ErrorCode
from tests.admin.outcomes import code_of
from tests.support.broker import korvet_cluster
from tests.support.in_process import InProcessBroker
from tests.support.processes import WAIT_SECONDS_MAX, wait_until
from tests.support.topic_client import Client


def lies(admin: AdminClient, brokers: list[int]) -> bool:
    """Whether the one partition of orders has these replicas, and is led by the first."""
    [described] = settled(admin.topics.describe(["orders"]))["orders"].partitions
    return (described.leader, described.replicas) == (brokers[0], brokers)


@pytest.mark.slow
def test_a_partition_moves_to_the_broker_that_is_named_first(redis_url: str, tmp_path: Path) -> None:
    place = TopicPartition("orders", 0)
    with korvet_cluster(tmp_path, redis_url) as (zero, _), AdminClient(zero.bootstrap) as admin:
        settled(admin.topics.create(["orders"]))
        for target in ([0], [1], [0, 1], [1, 0]):
            assert admin.partitions.reassign({place: target}) == {place: None}
            wait_until(functools.partial(lies, admin, target), f"orders on {target}")
        assert admin.partitions.reassignments([place]) == admin.partitions.reassignments() == {}


def test_what_cannot_be_moved_keeps_nothing_else_from_it(
    admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=4)
    good, away, idle, twice = (TopicPartition(name, index) for index in range(4))
    gone, unsendable = TopicPartition(name, 4), TopicPartition("x" * 40_000, 0)
    outcomes = admin.partitions.reassign(
        {away: [4711], good: [0], idle: None, twice: [0, 0], gone: [0], unsendable: [0]}
    )
    assert {place: code_of(outcome) for place, outcome in outcomes.items()} == {
        away: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        good: None,
        idle: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        twice: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        gone: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        unsendable: ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


def test_the_number_of_replicas_can_be_held(admin: AdminClient, topic: str) -> None:
    place = TopicPartition(topic, 0)
    assert admin.partitions.reassign({place: [0]}, allow_replication_factor_change=False) == {place: None}


@pytest.mark.parametrize("unclean", [False, True])
def test_an_election_that_is_not_needed_is_an_error(admin: AdminClient, topic: str, *, unclean: bool) -> None:
    place, gone = TopicPartition(topic, 0), TopicPartition(topic, 1)
    outcomes = admin.partitions.elect_leaders([place, gone], unclean=unclean)
    assert isinstance(outcomes[place], ElectionNotNeededError)
    assert isinstance(outcomes[gone], UnknownTopicOrPartitionError)
    assert place not in admin.partitions.elect_leaders(unclean=unclean)


def held(directories: Iterable[LogDir]) -> dict[TopicPartition, LogSize]:
    """Return the partitions of all log directories: each node of Redis is one."""
    assert all(directory.error is None for directory in directories)
    return {each: size for directory in directories for each, size in directory.partitions.items()}


def test_logs_are_weighed(admin: AdminClient, client: Client, name: str) -> None:
    client.create(name, partitions=2)
    client.append(name, bytes(5000), partition=1)
    empty, full = TopicPartition(name, 0), TopicPartition(name, 1)
    outcomes = admin.partitions.log_dirs([0, 4711], [empty, full])
    assert code_of(outcomes[4711]) is ErrorCode.BROKER_NOT_AVAILABLE
    sizes = held(settled({0: outcomes[0]})[0])
    assert sizes.keys() == {empty, full}
    assert sizes[empty] == LogSize(0, 0, future=False)
    assert sizes[full].size_bytes > 0
    assert {empty, full} <= held(settled(admin.partitions.log_dirs())[0]).keys()


def test_producers_are_described_with_what_they_sent_last(
    broker: InProcessBroker, admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    producer = KafkaProducer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for _ in range(3):
        producer.produce(name, b"value", partition=1)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    quiet, busy, gone = (TopicPartition(name, index) for index in range(3))
    outcomes = admin.partitions.producers([quiet, busy, gone])
    assert outcomes[quiet] == []
    assert isinstance(outcomes[gone], UnknownTopicOrPartitionError)
    [found] = settled({busy: outcomes[busy]})[busy]
    assert found.producer_id >= 0
    assert (found.epoch, found.last_sequence, found.transaction_start) == (0, 2, None)


def test_partitions_that_cannot_be_asked_about_are_refused(admin: AdminClient) -> None:
    unsendable = TopicPartition("x" * 40_000, 0)
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        admin.partitions.reassignments([unsendable])
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        admin.partitions.log_dirs([0], [unsendable])
    assert (
        code_of(admin.partitions.elect_leaders([unsendable])[unsendable]) is ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    assert code_of(admin.partitions.producers([unsendable])[unsendable]) is ErrorCode.INVALID_TOPIC_EXCEPTION
