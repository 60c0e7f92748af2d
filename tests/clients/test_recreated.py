"""A topic deleted and re-created through one worker, seen by another that knew the former one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.support.broker import Broker
from tests.support.records import topic_name
from tests.support.topic_client import Client
from tests.support.wire_client import clients_of_two_workers

EARLIEST = -2


@pytest.fixture
def here_and_there(broker: Broker) -> Iterator[tuple[Client, Client]]:
    """Give connections to two workers."""
    with clients_of_two_workers(broker.address, broker.worker_pids(), Client) as clients:
        yield clients


def described(client: Client, topic: str) -> tuple[int, bytes, int]:
    """Return error code, id and number of partitions."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    [found] = client.call(request, 12).topics
    return found.error_code, found.topic_id, len(found.partitions)


def earliest(client: Client, topic: str) -> int:
    """Return the error code of ListOffsets."""
    asked = ListOffsetsPartition(partition_index=0, timestamp=EARLIEST)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
    [[found]] = [each.partitions for each in client.call(request, 5).topics]
    return int(found.error_code)


def epoch_end(client: Client, topic: str) -> int:
    """Return the error code of OffsetForLeaderEpoch."""
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])]
    )
    [[found]] = [each.partitions for each in client.call(request, 3).topics]
    return int(found.error_code)


def recreate(here: Client, there: Client, topic: str) -> bytes:
    """Make `there` know the former topic, then replace it through `here` by one of three partitions."""
    former = here.create(topic)
    assert described(there, topic) == (0, former, 1)
    here.delete(topic)
    return here.create(topic, 3)


def test_metadata_describes_the_new_topic(here_and_there: tuple[Client, Client]) -> None:
    here, there = here_and_there
    topic = topic_name("recreated")
    topic_id = recreate(here, there, topic)
    assert described(there, topic) == (0, topic_id, 3)
    here.delete(topic)
    assert described(there, topic)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("ask", [earliest, epoch_end, lambda client, topic: client.fetch(topic).error_code])
def test_a_reader_finds_the_new_topic_at_once(here_and_there: tuple[Client, Client], ask: object) -> None:
    assert callable(ask)
    here, there = here_and_there
    topic = topic_name("recreated")
    recreate(here, there, topic)
    assert ask(there, topic) == ErrorCode.NONE


def test_the_new_topic_is_deleted_by_its_name(here_and_there: tuple[Client, Client]) -> None:
    here, there = here_and_there
    topic = topic_name("recreated")
    recreate(here, there, topic)
    there.delete(topic)
    assert described(here, topic)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
