"""ElectLeaders by bytes: why no election changes anything, while the preferred broker is there and while it is not."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ReplicaElectionResult,
    TopicPartitions,
)
from korvet.protocol.types import ElectionType
from korvet.topics.registry import PARTITIONS_MAX
from tests.handlers.test_alter_partition_reassignments import move, placement_of
from tests.support.broker import korvet_broker
from tests.support.topic_client import Client

VERSIONS = (0, 1, 2)


def elected(
    client: Client,
    asked: dict[str, list[int]] | None,
    election_type: int = ElectionType.PREFERRED,
    version: int = 2,
) -> dict[tuple[str, int], ErrorCode]:
    """Ask for an election, and return what it came to for each partition."""
    topics = (
        None
        if asked is None
        else [TopicPartitions(topic=name, partitions=indexes) for name, indexes in asked.items()]
    )
    answer = client.call(ElectLeadersRequest(election_type=election_type, topic_partitions=topics), version)
    assert answer.error_code == ErrorCode.NONE
    results: list[ReplicaElectionResult] = answer.replica_election_results
    assert all(each.partition_result for each in results)
    assert all(one.error_message for each in results for one in each.partition_result)
    return {
        (each.topic, one.partition_id): ErrorCode(one.error_code)
        for each in results
        for one in each.partition_result
    }


@pytest.fixture(scope="session")  # as the brokers: a process may come to these tests more than once
def orphan(cluster_redis: str, brokers: object, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give a topic whose partition 0 and 1 are assigned to a broker that has stopped, 1 to broker 0 too, 2 to none."""
    flags = ("--redis-url", cluster_redis, "--broker-id", "2")
    name = "orphan"
    with (
        korvet_broker(tmp_path_factory.mktemp("third"), *flags, workers=1) as third,
        Client(third.address) as client,
    ):
        client.create(name, 3)
        assert set(move(client, name, {0: [2], 1: [2, 0]}).values()) == {(ErrorCode.NONE, None)}
        assert placement_of(client, name)[:2] == [(2, [2]), (2, [2, 0])]
        client.close()
        assert third.stop() == 0
    return name


@pytest.mark.parametrize("version", VERSIONS)
def test_a_preferred_leader_that_leads_needs_no_election(
    ends: tuple[Client, Client], topic: str, version: int
) -> None:
    ends[0].create(topic, 2)
    move(ends[0], topic, {0: [1]})
    for client in ends:
        assert elected(client, {topic: [0, 1]}, version=version) == {
            (topic, 0): ErrorCode.ELECTION_NOT_NEEDED,
            (topic, 1): ErrorCode.ELECTION_NOT_NEEDED,
        }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_preferred_leader_that_is_away_cannot_be_elected(
    ends: tuple[Client, Client], orphan: str, version: int
) -> None:
    for client in ends:
        assert elected(client, {orphan: [0, 1, 2]}, version=version) == {
            (orphan, 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            (orphan, 1): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            (orphan, 2): ErrorCode.ELECTION_NOT_NEEDED,
        }


def test_while_the_preferred_leader_is_away_another_leads_and_that_is_reported(
    ends: tuple[Client, Client], orphan: str
) -> None:
    alone, second, _ = placement_of(ends[0], orphan)
    assert second == (0, [2, 0])
    assert alone == (alone[0], [2, alone[0]])
    assert alone[0] in (0, 1)
    ends[1].append(orphan, b"goes on", partition=0)


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_every_version_reports_who_is_away(
    ends: tuple[Client, Client], orphan: str, version: int
) -> None:
    second = ends[1].described(orphan, version).partitions[1]
    assert (second.leader_id, second.replica_nodes, second.isr_nodes) == (0, [2, 0], [0])
    assert second.offline_replicas == ([2] if version >= 5 else [])


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_an_unclean_election_is_never_needed(ends: tuple[Client, Client], orphan: str, version: int) -> None:
    assert set(elected(ends[0], {orphan: [0, 1, 2]}, ElectionType.UNCLEAN, version).values()) == {
        ErrorCode.ELECTION_NOT_NEEDED
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_of_all_partitions_only_those_are_reported_that_would_need_an_election(
    ends: tuple[Client, Client], topic: str, orphan: str, version: int
) -> None:
    ends[0].create(topic, 2)
    assert elected(ends[0], None, version=version) == {
        (orphan, 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        (orphan, 1): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    }
    assert elected(ends[0], None, ElectionType.UNCLEAN) == {}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("election_type", [ElectionType.PREFERRED, ElectionType.UNCLEAN])
def test_what_is_not_there_cannot_be_elected(
    ends: tuple[Client, Client], topic: str, version: int, election_type: int
) -> None:
    ends[0].create(topic)
    election_type = election_type if version else ElectionType.PREFERRED
    assert elected(ends[0], {topic: [0, 1, -1], "not there": [0]}, election_type, version) == {
        (topic, 0): ErrorCode.ELECTION_NOT_NEEDED,
        (topic, 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (topic, -1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("not there", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_a_large_topic_that_is_named_very_often_holds_up_nobody(
    ends: tuple[Client, Client], topic: str
) -> None:
    """The client waits 30 s at most: a worker that looked at every partition each time would take minutes."""
    ends[0].create(topic, PARTITIONS_MAX)
    often = [TopicPartitions(topic=topic, partitions=[PARTITIONS_MAX - 1])] * 10_000
    answer = ends[0].call(
        ElectLeadersRequest(election_type=ElectionType.PREFERRED, topic_partitions=often), 2
    )
    outcomes = [one.error_code for each in answer.replica_election_results for one in each.partition_result]
    assert outcomes == [ErrorCode.ELECTION_NOT_NEEDED] * len(often)
    ends[0].delete(topic)


@pytest.mark.parametrize("version", VERSIONS[1:])
@pytest.mark.parametrize("election_type", [2, -1])
def test_an_unknown_type_of_election_is_refused_as_a_whole(
    ends: tuple[Client, Client], topic: str, version: int, election_type: int
) -> None:
    for topics in (None, [TopicPartitions(topic=topic, partitions=[0, 3])]):
        asked = ElectLeadersRequest(election_type=election_type, topic_partitions=topics)
        answer = ends[0].call(asked, version)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        results = [
            (one.partition_id, one.error_code, f"{election_type}" in one.error_message)
            for each in answer.replica_election_results
            for one in each.partition_result
        ]
        expected = [] if topics is None else [(index, ErrorCode.INVALID_REQUEST, True) for index in (0, 3)]
        assert results == expected
