"""What administrators of placement see while Redis is away: that it is, and what the worker knows without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from korvet.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from korvet.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from korvet.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from tests.handlers.test_alter_partition_reassignments import request as moves
from tests.handlers.test_describe_topic_partitions import ask, codes, piece
from tests.support import redis_servers
from tests.support.broker import korvet_broker
from tests.support.topic_client import Client

AWAY = ErrorCode.KAFKA_STORAGE_ERROR


@pytest.fixture(scope="module")
def bereft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Give a connection to a broker whose Redis has gone, after its topic `known` of 2 partitions was reported."""
    directory: Path = tmp_path_factory.mktemp("bereft")
    with ExitStack() as server, ExitStack() as broker:
        url = server.enter_context(redis_servers.server())
        flags = ("--redis-url", url, "--set", "redis.timeout.ms=500")
        running = broker.enter_context(korvet_broker(directory, *flags, workers=1))
        client = broker.enter_context(Client(running.address))
        client.create("known", 2)
        server.close()
        yield client


def test_moves_are_refused_as_a_whole_and_each(bereft: Client) -> None:
    answer = bereft.call(moves("known", {0: [0], 1: [0]}), 1)
    assert (answer.error_code, bool(answer.error_message)) == (AWAY, True)
    [topic] = answer.responses
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(0, AWAY), (1, AWAY)]


@pytest.mark.parametrize("version", range(3))
def test_an_election_is_refused_as_a_whole_and_each(bereft: Client, version: int) -> None:
    topics = [TopicPartitions(topic="known", partitions=[0, 1])]
    answer = bereft.call(ElectLeadersRequest(topic_partitions=topics), version)
    assert answer.error_code == (AWAY if version else ErrorCode.NONE)
    [result] = answer.replica_election_results
    assert [(each.partition_id, each.error_code) for each in result.partition_result] == [
        (0, AWAY),
        (1, AWAY),
    ]


def test_nothing_moves_without_redis_either(bereft: Client) -> None:
    answer = bereft.call(ListPartitionReassignmentsRequest(), 0)
    assert (answer.error_code, answer.topics) == (ErrorCode.NONE, [])


def test_topics_that_the_worker_knows_are_reported_and_others_are_to_be_asked_for_again(
    bereft: Client,
) -> None:
    answer = ask(bereft, "known", "other", "not/a name")
    assert piece(answer) == ([("known", [0, 1])], None)
    assert codes(answer) == {
        "known": ErrorCode.NONE,
        "other": ErrorCode.LEADER_NOT_AVAILABLE,
        "not/a name": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert piece(ask(bereft)) == ([("known", [0, 1])], None)


@pytest.mark.parametrize("version", range(1, 5))
def test_the_log_directory_is_offline(bereft: Client, version: int) -> None:
    answer = bereft.call(DescribeLogDirsRequest(topics=None), version)
    [result] = answer.results
    found: Any = (answer.error_code, result.error_code, bool(result.log_dir), result.topics)
    assert found == (ErrorCode.NONE, AWAY, True, [])


def test_each_partitions_producers_are_unknown(bereft: Client) -> None:
    topics = [TopicRequest(name="known", partition_indexes=[1, 0])]
    [topic] = bereft.call(DescribeProducersRequest(topics=topics), 0).topics
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(1, AWAY), (0, AWAY)]
