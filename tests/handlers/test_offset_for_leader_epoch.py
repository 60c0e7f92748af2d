"""OffsetForLeaderEpoch by bytes: where the records of an epoch end, by which consumers find out that a log was cut."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from tests.handlers.formats import BOTH_FORMATS
from tests.support.topic_client import Client

pytestmark = BOTH_FORMATS


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_present_epoch_ends_with_the_log(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    epoch = client.leader_epoch(topic)
    assert client.epoch_end(topic, epoch, version=version) == (ErrorCode.NONE, epoch, 0)
    offset = client.append(topic, b"a", b"b")
    assert client.epoch_end(topic, epoch, version=version) == (ErrorCode.NONE, epoch, offset + 2)


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("later", [1, 2**31])
def test_an_epoch_that_has_not_begun_is_undefined_and_no_error(
    client: Client, topic: str, version: int, later: int
) -> None:
    client.create(topic)
    client.append(topic, b"v")
    asked = min(client.leader_epoch(topic) + later, 2**31 - 1)
    assert client.epoch_end(topic, asked, version=version) == (ErrorCode.NONE, -1, -1)
    assert client.epoch_end(topic, -1, version=version) == (ErrorCode.NONE, -1, -1)


def test_an_epoch_before_the_first_one_ends_where_that_begins(client: Client, topic: str) -> None:
    client.create(topic)
    client.append(topic, b"v")
    for epoch in (0, -2, client.leader_epoch(topic) - 1):
        assert client.epoch_end(topic, epoch) == (ErrorCode.NONE, epoch, 0)


@pytest.mark.parametrize(
    ("distance", "code"),
    [(0, 0), (10**9, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.FENCED_LEADER_EPOCH)],
)
def test_the_clients_own_epoch_is_checked(client: Client, topic: str, distance: int, code: int) -> None:
    client.create(topic)
    epoch = client.leader_epoch(topic)
    assert client.epoch_end(topic, epoch, current=epoch + distance)[0] == code


def test_unknown_topics_and_partitions_have_their_code(client: Client, topic: str) -> None:
    assert client.epoch_end("no-such-topic", 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


def test_a_topic_created_again_elsewhere_is_the_one_that_answers(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    here.create(topic)
    here.append(topic, b"old")
    there.delete(topic)
    there.create(topic)
    epoch = here.leader_epoch(topic)
    assert here.epoch_end(topic, epoch) == (ErrorCode.NONE, epoch, 0)


def test_a_partition_that_only_the_topic_created_again_has_is_found(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    here.create(topic)
    there.delete(topic)
    there.create(topic, 3)
    epoch = there.leader_epoch(topic, 2)
    assert here.epoch_end(topic, epoch, partition=2) == (ErrorCode.NONE, epoch, 0)
