"""OffsetForLeaderEpoch by bytes: consumers ask it to find out that a log was cut, which it never is."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.handlers.formats import BOTH_FORMATS
from tests.support.topic_client import Client

pytestmark = BOTH_FORMATS


def ask(
    client: Client, topic: str, epoch: int, version: int = 4, current: int = -1, partition: int = 0
) -> Any:
    asked = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    topics = [OffsetForLeaderTopic(topic=topic, partitions=[asked])]
    [answer] = client.call(OffsetForLeaderEpochRequest(topics=topics), version).topics
    [response] = answer.partitions
    assert (answer.topic, response.partition) == (topic, partition)
    return response.error_code, response.leader_epoch, response.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_present_epoch_ends_with_the_log(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    assert ask(client, topic, 0, version) == (ErrorCode.NONE, 0, 0)
    offset = client.append(topic, b"a", b"b")
    assert ask(client, topic, 0, version) == (ErrorCode.NONE, 0, offset + 2)


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("epoch", [-1, 1, 2**31 - 1, -2])
def test_any_other_epoch_is_undefined_and_no_error(
    client: Client, topic: str, version: int, epoch: int
) -> None:
    client.create(topic)
    client.append(topic, b"v")
    assert ask(client, topic, epoch, version) == (ErrorCode.NONE, -1, -1)


@pytest.mark.parametrize(
    ("current", "code"),
    [(0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH), (-2, ErrorCode.FENCED_LEADER_EPOCH)],
)
def test_the_clients_own_epoch_is_checked(client: Client, topic: str, current: int, code: int) -> None:
    client.create(topic)
    assert ask(client, topic, 0, current=current)[0] == code


def test_unknown_topics_and_partitions_have_their_code(client: Client, topic: str) -> None:
    client.create(topic)
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert ask(client, "no-such-topic", 0) == unknown
    assert ask(client, topic, 0, partition=1) == unknown


def test_a_topic_created_again_elsewhere_is_the_one_that_answers(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    here.create(topic)
    here.append(topic, b"old")
    there.delete(topic)
    there.create(topic)
    assert ask(here, topic, 0) == (ErrorCode.NONE, 0, 0)


def test_a_partition_that_only_the_topic_created_again_has_is_found(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    here.create(topic)
    there.delete(topic)
    there.create(topic, 3)
    assert ask(here, topic, 0, partition=2) == (ErrorCode.NONE, 0, 0)
