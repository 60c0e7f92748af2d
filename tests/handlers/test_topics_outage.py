"""What administrators of topics see while Redis is away: that it is, of each topic and in every version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

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
from tests.handlers.test_create_topics import create, spec
from tests.handlers.test_metadata import ask
from tests.support import redis_servers
from tests.support.broker import korvet_broker
from tests.support.topic_client import Client

AWAY = ErrorCode.KAFKA_STORAGE_ERROR


@pytest.fixture(scope="module")
def bereft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, bytes]]:
    """Give a connection to a broker whose Redis has gone, and the id of its topic `known` of 2 partitions."""
    directory: Path = tmp_path_factory.mktemp("bereft")
    with ExitStack() as server, ExitStack() as broker:
        url = server.enter_context(redis_servers.server())
        flags = ("--redis-url", url, "--set", "redis.timeout.ms=500")
        running = broker.enter_context(korvet_broker(directory, *flags, workers=1))
        client = broker.enter_context(Client(running.address))
        topic_id = client.create("known", 2)
        server.close()
        yield client, topic_id


@pytest.mark.parametrize("version", range(2, 8))
@pytest.mark.parametrize("validate_only", [False, True])
def test_no_topic_is_made(bereft: tuple[Client, bytes], version: int, *, validate_only: bool) -> None:
    client, _ = bereft
    results = create(client, spec("new"), spec("newer"), version=version, validate_only=validate_only)
    reported = [(each.name, each.error_code, bool(each.error_message)) for each in results]
    assert reported == [("new", AWAY, True), ("newer", AWAY, True)]


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("validate_only", [False, True])
def test_no_topic_grows(bereft: tuple[Client, bytes], version: int, *, validate_only: bool) -> None:
    client, _ = bereft
    topics = [CreatePartitionsTopic(name=name, count=5, assignments=None) for name in ("known", "unknown")]
    request = CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=validate_only)
    results = client.call(request, version).results
    reported = [(each.name, each.error_code, bool(each.error_message)) for each in results]
    assert reported == [("known", AWAY, True), ("unknown", AWAY, True)]


@pytest.mark.parametrize("version", range(1, 7))
def test_no_topic_is_deleted(bereft: tuple[Client, bytes], version: int) -> None:
    client, topic_id = bereft
    request = DeleteTopicsRequest(topic_names=["known", "unknown"], timeout_ms=1000)
    if version >= 6:
        states = [DeleteTopicState(name="unknown"), DeleteTopicState(topic_id=topic_id)]
        request = DeleteTopicsRequest(topics=states, timeout_ms=1000)
    results = client.call(request, version).responses
    assert [each.error_code for each in results] == [AWAY, AWAY]
    [described] = ask(client, "known").topics
    assert (described.error_code, described.topic_id) == (ErrorCode.NONE, topic_id)


@pytest.mark.parametrize("version", range(3))
def test_no_records_are_deleted(bereft: tuple[Client, bytes], version: int) -> None:
    client, _ = bereft
    partitions = [DeleteRecordsPartition(partition_index=index, offset=-1) for index in range(2)]
    topics = [DeleteRecordsTopic(name="known", partitions=partitions)]
    [topic] = client.call(DeleteRecordsRequest(topics=topics, timeout_ms=1000), version).topics
    reported = [(each.partition_index, each.error_code, each.low_watermark) for each in topic.partitions]
    assert reported == [(0, AWAY, -1), (1, AWAY, -1)]


@pytest.mark.parametrize("version", range(14))
def test_clients_find_the_broker_and_wait_with_it_for_what_it_does_not_know(
    bereft: tuple[Client, bytes], version: int
) -> None:
    client, _ = bereft
    answer = ask(client, "known", "unknown", version=version)
    assert [(each.error_code, len(each.partitions)) for each in answer.topics] == [
        (ErrorCode.NONE, 2),
        (ErrorCode.LEADER_NOT_AVAILABLE, 0),
    ]
    assert len(answer.brokers) == 1


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_reported_as_it_was(bereft: tuple[Client, bytes], version: int) -> None:
    client, _ = bereft
    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    answer = client.call(request, version)
    assert (answer.error_code, answer.controller_id, len(answer.brokers)) == (ErrorCode.NONE, 0, 1)
