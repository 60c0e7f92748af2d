"""Two brokers on one Redis, by bytes: both tell the same of the cluster, and each serves what the other leads."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support import redis_servers
from tests.support.broker import Broker
from tests.support.processes import wait_until
from tests.support.topic_client import Client

PARTITIONS = 40


@pytest.fixture
def acting(cluster_redis: str, brokers: list[Broker]) -> int:
    """Give the broker whose keeper acts: the controller."""
    with redis_servers.connected(cluster_redis) as client:
        wait_until(lambda: client.exists("korvet:keeper"), "a keeper acts")
        holder: Any = client.get("korvet:keeper")
        return int(holder.partition(b":")[0])


def metadata(client: Client, *names: str, version: int = 12) -> Any:
    return client.call(MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names]), version)


def leaders(client: Client, name: str) -> list[int]:
    [topic] = metadata(client, name).topics
    assert [each.partition_index for each in topic.partitions] == list(range(len(topic.partitions)))
    return [each.leader_id for each in topic.partitions]


def assigned(client: Client, name: str, *assignment: list[int]) -> Any:
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
        for index, ids in enumerate(assignment)
    ]
    topic = CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=[]
    )
    [result] = client.call(CreateTopicsRequest(topics=[topic]), 7).topics
    return result


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_either_reports_of_both(
    ends: tuple[Client, Client], brokers: list[Broker], acting: int, version: int
) -> None:
    for client in ends:
        answer = metadata(client, version=version)
        found = [(each.node_id, each.host, each.port) for each in answer.brokers]
        assert found == [(0, *brokers[0].address), (1, *brokers[1].address)]
        assert answer.controller_id == (acting if version >= 1 else -1)


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster_of_either_reports_of_both(
    ends: tuple[Client, Client], brokers: list[Broker], acting: int, version: int
) -> None:
    for client in ends:
        answer = client.call(DescribeClusterRequest(include_cluster_authorized_operations=False), version)
        found = [(each.broker_id, each.host, each.port) for each in answer.brokers]
        assert found == [(0, *brokers[0].address), (1, *brokers[1].address)]
        assert answer.controller_id == acting


def test_leaders_are_spread_and_both_name_the_same(ends: tuple[Client, Client], topic: str) -> None:
    ends[0].create(topic, PARTITIONS)
    found = leaders(ends[0], topic)
    assert set(found) == {0, 1}
    assert leaders(ends[1], topic) == found
    [described] = metadata(ends[1], topic).topics
    assert all(each.replica_nodes == each.isr_nodes == [each.leader_id] for each in described.partitions)
    epochs = [ends[0].leader_epoch(topic, n) for n in range(PARTITIONS)]
    assert [each.leader_epoch for each in described.partitions] == epochs


@pytest.mark.parametrize("version", [3, 6])
def test_coordinators_are_spread_and_both_name_the_same(
    ends: tuple[Client, Client], brokers: list[Broker], version: int
) -> None:
    names = [f"group-{n}" for n in range(30)]

    def found(client: Client) -> list[tuple[int, str, int]]:
        if version < 4:
            answers = [client.call(FindCoordinatorRequest(key=name), version) for name in names]
        else:
            answers = client.call(FindCoordinatorRequest(coordinator_keys=names), version).coordinators
            assert [each.key for each in answers] == names
        assert {each.error_code for each in answers} == {ErrorCode.NONE}
        return [(each.node_id, each.host, each.port) for each in answers]

    assert found(ends[0]) == found(ends[1])
    assert set(found(ends[0])) == {(number, *brokers[number].address) for number in (0, 1)}


def test_each_serves_what_the_other_leads(ends: tuple[Client, Client], topic: str) -> None:
    ends[0].create(topic, PARTITIONS)
    found = leaders(ends[0], topic)
    for number in (0, 1):
        led = found.index(number)
        other = ends[1 - number]
        offset = other.append(topic, b"by the other", partition=led)
        for client in ends:
            response = client.fetch(topic, offset, partition=led)
            assert (response.error_code, b"by the other" in bytes(response.records)) == (ErrorCode.NONE, True)


def test_an_assignment_says_who_leads(ends: tuple[Client, Client], topic: str) -> None:
    assert assigned(ends[0], topic, [1], [0], [1], [1]).error_code == ErrorCode.NONE
    for client in ends:
        assert leaders(client, topic) == [1, 0, 1, 1]


def test_the_brokers_of_an_assignment_are_reported_in_its_order(
    ends: tuple[Client, Client], topic: str
) -> None:
    assert assigned(ends[0], topic, [0, 1], [1, 0]).error_code == ErrorCode.NONE
    for client in ends:
        [described] = metadata(client, topic).topics
        reported = [(each.leader_id, each.replica_nodes, each.isr_nodes) for each in described.partitions]
        assert reported == [(0, [0, 1], [0, 1]), (1, [1, 0], [1, 0])]
        assert [each.offline_replicas for each in described.partitions] == [[], []]


def test_an_assignment_to_a_broker_that_is_not_there_is_refused(
    ends: tuple[Client, Client], topic: str
) -> None:
    result = assigned(ends[0], topic, [0], [2])
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "[0, 1]" in result.error_message
