"""What clients see while Redis is away: of each topic, config and move that it is, in every version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest
from korvet.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from korvet.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from korvet.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from korvet.protocol.messages.list_config_resources import ListConfigResourcesRequest
from korvet.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from tests.handlers.configs import (
    BROKER,
    TOPIC,
    alter,
    altered,
    change,
    describe,
    replace,
    reset,
    value,
    wanted,
)
from tests.handlers.test_alter_partition_reassignments import request as moves
from tests.handlers.test_create_topics import create, spec
from tests.handlers.test_describe_topic_partitions import ask, codes, piece
from tests.handlers.test_metadata import ask as ask_metadata
from tests.support import redis_servers
from tests.support.batches import batch
from tests.support.broker import korvet_broker
from tests.support.topic_client import Client

AWAY = ErrorCode.KAFKA_STORAGE_ERROR
# Of a cluster each node may have gone alone: another one has the partition soon.
PARTITION_AWAY = ErrorCode.NOT_LEADER_OR_FOLLOWER if redis_servers.is_cluster() else AWAY


@pytest.fixture(scope="module")
def _away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, bytes]]:
    directory: Path = tmp_path_factory.mktemp("bereft")
    with ExitStack() as server, ExitStack() as broker:
        url = server.enter_context(redis_servers.server())
        flags = ("--redis-url", url, "--set", "redis.timeout.ms=2000")
        running = broker.enter_context(korvet_broker(directory, *flags, workers=1))
        client = broker.enter_context(Client(running.address))
        topic_id = client.create("known", 2)
        change(client, BROKER, "", {"message.max.bytes": "90"})
        server.close()
        yield client, topic_id


@pytest.fixture
def bereft(_away: tuple[Client, bytes]) -> Client:
    """Give a connection to a broker whose Redis has gone, after settings of it were altered."""
    return _away[0]


@pytest.fixture
def known_id(_away: tuple[Client, bytes]) -> bytes:
    """Give the id of its topic `known` of 2 partitions."""
    return _away[1]


@pytest.mark.parametrize("version", range(2, 8))
@pytest.mark.parametrize("validate_only", [False, True])
def test_no_topic_is_made(bereft: Client, version: int, *, validate_only: bool) -> None:
    results = create(bereft, spec("new"), spec("newer"), version=version, validate_only=validate_only)
    reported = [(each.name, each.error_code, bool(each.error_message)) for each in results]
    assert reported == [("new", AWAY, True), ("newer", AWAY, True)]


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("validate_only", [False, True])
def test_no_topic_grows(bereft: Client, version: int, *, validate_only: bool) -> None:
    topics = [CreatePartitionsTopic(name=name, count=5, assignments=None) for name in ("known", "unknown")]
    request = CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=validate_only)
    results = bereft.call(request, version).results
    reported = [(each.name, each.error_code, bool(each.error_message)) for each in results]
    assert reported == [("known", AWAY, True), ("unknown", AWAY, True)]


@pytest.mark.parametrize("version", range(1, 7))
def test_no_topic_is_deleted(bereft: Client, known_id: bytes, version: int) -> None:
    request = DeleteTopicsRequest(topic_names=["known", "unknown"], timeout_ms=1000)
    if version >= 6:
        states = [DeleteTopicState(name="unknown"), DeleteTopicState(topic_id=known_id)]
        request = DeleteTopicsRequest(topics=states, timeout_ms=1000)
    results = bereft.call(request, version).responses
    assert [each.error_code for each in results] == [AWAY, AWAY]
    [described] = ask_metadata(bereft, "known").topics
    assert (described.error_code, described.topic_id) == (ErrorCode.NONE, known_id)


@pytest.mark.parametrize("version", range(3))
def test_no_records_are_deleted(bereft: Client, version: int) -> None:
    partitions = [DeleteRecordsPartition(partition_index=index, offset=-1) for index in range(2)]
    topics = [DeleteRecordsTopic(name="known", partitions=partitions)]
    [topic] = bereft.call(DeleteRecordsRequest(topics=topics, timeout_ms=1000), version).topics
    reported = [(each.partition_index, each.error_code, each.low_watermark) for each in topic.partitions]
    assert reported == [(0, PARTITION_AWAY, -1), (1, PARTITION_AWAY, -1)]


@pytest.mark.parametrize("version", range(14))
def test_clients_find_the_broker_and_wait_with_it_for_what_it_does_not_know(
    bereft: Client, version: int
) -> None:
    answer = ask_metadata(bereft, "known", "unknown", version=version)
    assert [(each.error_code, len(each.partitions)) for each in answer.topics] == [
        (ErrorCode.NONE, 2),
        (ErrorCode.LEADER_NOT_AVAILABLE, 0),
    ]
    assert len(answer.brokers) == 1


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_reported_as_it_was(bereft: Client, version: int) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    answer = bereft.call(request, version)
    assert (answer.error_code, answer.controller_id, len(answer.brokers)) == (ErrorCode.NONE, 0, 1)


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
    assert answer.error_code == ErrorCode.NONE
    found: Any = [(each.error_code, bool(each.log_dir), each.topics) for each in answer.results]
    assert found == [(AWAY, True, [])] * (3 if redis_servers.is_cluster() else 1)


def test_each_partitions_producers_are_unknown(bereft: Client) -> None:
    topics = [TopicRequest(name="known", partition_indexes=[1, 0])]
    [topic] = bereft.call(DescribeProducersRequest(topics=topics), 0).topics
    reported = [(each.partition_index, each.error_code) for each in topic.partitions]
    assert reported == [(1, PARTITION_AWAY), (0, PARTITION_AWAY)]


@pytest.mark.parametrize("version", range(1, 5))
def test_nothing_is_described(bereft: Client, version: int) -> None:
    results = describe(bereft, wanted(TOPIC, "known"), wanted(BROKER, "0"), version=version)
    assert [(each.error_code, bool(each.error_message), each.configs) for each in results] == [
        (AWAY, True, []),
        (AWAY, True, []),
    ]


@pytest.mark.parametrize("version", range(2))
def test_nothing_is_altered(bereft: Client, version: int) -> None:
    resources = (altered(TOPIC, "known", {"segment.ms": "5"}), altered(BROKER, "0", {"log.roll.ms": "5"}))
    for validate_only in (True, False):
        answers = alter(bereft, *resources, version=version, validate_only=validate_only)
        assert [(each.error_code, bool(each.error_message)) for each in answers] == [(AWAY, True)] * 2


@pytest.mark.parametrize("version", range(3))
def test_nothing_is_replaced(bereft: Client, version: int) -> None:
    answers = replace(bereft, reset(TOPIC, "known", {}), reset(BROKER, "", {}), version=version)
    assert [(each.error_code, bool(each.error_message)) for each in answers] == [(AWAY, True)] * 2


def test_topics_cannot_be_listed(bereft: Client) -> None:
    answer = bereft.call(ListConfigResourcesRequest(resource_types=[TOPIC]), 1)
    assert (answer.error_code, answer.config_resources) == (AWAY, [])


def test_what_was_altered_before_counts_on(bereft: Client) -> None:
    assert bereft.produce("known", batch(b"v" * 100)).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_when_redis_is_back_without_what_was_altered_the_start_counts(tmp_path: Path) -> None:
    with korvet_broker(tmp_path, workers=1) as running, Client(running.address) as client:
        change(client, BROKER, "", {"message.max.bytes": "90"})
        with redis_servers.connected(running.redis_url) as stored:
            stored.flushall()
        assert value(client, BROKER, "0", "message.max.bytes") == "1048588"
