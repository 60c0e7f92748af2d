"""DeleteTopics by bytes: a deleted topic leaves no key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from korvet.protocol.messages.fetch import FetchResponse
from korvet.protocol.wire import ZERO_UUID
from tests.handlers.formats import BOTH_FORMATS
from tests.support import redis_servers
from tests.support.batches import values
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import wait_until
from tests.support.topic_client import Client, fetch_request

pytestmark = BOTH_FORMATS

UNKNOWN_ID = bytes(range(16))


def delete(client: Client, *names: str | None, version: int = 6, ids: Any = ()) -> Any:
    if version < 6:
        request = DeleteTopicsRequest(topic_names=[name or "" for name in names], timeout_ms=1000)
    else:
        topics = [DeleteTopicState(name=name) for name in names]
        topics += [DeleteTopicState(topic_id=each) for each in ids]
        request = DeleteTopicsRequest(topics=topics, timeout_ms=1000)
    return client.call(request, version).responses


@pytest.mark.parametrize("version", range(1, 7))
def test_every_version_deletes_by_name(client: Client, topic: str, version: int) -> None:
    topic_id = client.create(topic)
    [result] = delete(client, topic, version=version)
    assert (result.name, result.error_code, result.error_message) == (topic, ErrorCode.NONE, None)
    assert result.topic_id == (topic_id if version >= 6 else ZERO_UUID)
    [again] = delete(client, topic, version=version)
    assert (again.name, again.error_code) == (topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert bool(again.error_message) == (version >= 5)


def test_version_6_deletes_by_id(client: Client, topic: str) -> None:
    topic_id = client.create(topic)
    [result, unknown] = delete(client, ids=[topic_id, UNKNOWN_ID])
    assert (result.name, result.topic_id, result.error_code) == (topic, topic_id, ErrorCode.NONE)
    assert (unknown.name, unknown.topic_id) == (None, UNKNOWN_ID)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    [again] = delete(client, ids=[topic_id])
    assert again.error_code == ErrorCode.UNKNOWN_TOPIC_ID


SMALL, LARGE = 2, 130
"""Partitions of a topic that one script deletes, and of one that is deleted in steps."""


@pytest.mark.parametrize("partitions", [SMALL, LARGE])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
def test_a_fetch_that_waits_is_reported_that_the_topic_is_gone(
    two_clients: tuple[Client, Client],
    topic: str,
    partitions: int,
    stored: redis.Redis,
    *,
    again: bool,
    by_id: bool,
) -> None:
    here, there = two_clients
    topic_id = here.create(topic, partitions)
    last = partitions - 1
    waiting: dict[str, Any] = {"max_wait_ms": 2**31 - 1, "partition": last}
    version = 13 if by_id else 11
    named = fetch_request("", topic_id=topic_id, **waiting) if by_id else fetch_request(topic, **waiting)
    there.send(named, version)
    channel = f"korvet:{topic}:{last}"
    wait_until(lambda: redis_servers.listeners(stored, channel) > 0, "the fetch waits")
    here.delete(topic)
    if again:
        here.create(topic)
    [[response]] = [each.partitions for each in there.receive(FetchResponse, version).responses]
    known = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert response.error_code == known


@pytest.mark.parametrize("partitions", [SMALL, LARGE])
def test_a_producer_and_a_consumer_of_a_worker_that_has_not_heard_of_it_are_refused(
    two_clients: tuple[Client, Client], topic: str, partitions: int
) -> None:
    here, there = two_clients
    topic_id = here.create(topic, partitions)
    there.append(topic, b"v", partition=partitions - 1)
    here.delete(topic)
    of_last: dict[str, Any] = {"partition": partitions - 1}
    assert there.produce(topic, **of_last).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert there.fetch(topic, **of_last).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for answer in (
        there.fetch("", topic_id=topic_id, version=13, **of_last),
        there.produce("", topic_id=topic_id, version=13, **of_last),
    ):
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_what_there_is_no_time_for_is_cleared_away_later(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    client.create(topic, LARGE)
    client.append(topic, b"v", partition=LARGE - 1)
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=-1)
    [result] = client.call(request, 6).responses
    assert result.error_code == ErrorCode.NONE
    assert client.produce(topic, partition=LARGE - 1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    [again] = client.call(request, 6).responses
    assert again.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wait_until(lambda: not stored.hexists("korvet:topics", topic), "the keeper clears it away")
    assert list(stored.scan_iter(f"*korvet:{topic}:*", count=10_000)) == []


def test_a_topic_created_again_starts_over(client: Client, topic: str) -> None:
    old_id = client.create(topic)
    client.append(topic, b"old")
    delete(client, topic)
    new_id = client.create(topic)
    assert new_id != old_id
    assert client.fetch(topic).high_watermark == 0
    for answer in (
        client.fetch("", topic_id=old_id, version=13),
        client.produce("", topic_id=old_id, version=13),
    ):
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    client.append(topic, b"new")
    assert values(client.fetch("", topic_id=new_id, version=13).records) == [b"new"]


def test_a_topic_created_again_elsewhere_is_the_one_that_is_deleted(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    here.create(topic)
    there.delete(topic)
    new_id = there.create(topic, 2)
    [result] = delete(here, topic)
    assert (result.error_code, result.topic_id) == (ErrorCode.NONE, new_id)


def test_an_old_id_does_not_delete_the_new_topic(two_clients: tuple[Client, Client], topic: str) -> None:
    here, there = two_clients
    old_id = here.create(topic)
    there.delete(topic)
    there.create(topic)
    [result] = delete(here, ids=[old_id])
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert there.append(topic, b"v") >= 0


def test_known_and_unknown_topics_are_answered_side_by_side(client: Client, topic: str) -> None:
    client.create(topic)
    codes = {each.name: each.error_code for each in delete(client, "no-such-topic", topic, "a b", "")}
    assert codes == {"no-such-topic": 3, topic: 0, "a b": 3, "": 3}


@pytest.mark.parametrize("version", [1, 6])
def test_a_topic_named_twice_is_not_deleted(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    [result] = delete(client, topic, topic, version=version)
    assert (result.name, result.error_code) == (topic, ErrorCode.INVALID_REQUEST)
    assert client.append(topic, b"v") >= 0


@pytest.mark.parametrize("ids", [1, 2])
def test_a_topic_given_by_its_name_and_by_its_id_is_not_deleted(client: Client, topic: str, ids: int) -> None:
    other = f"{topic}-other"
    topic_id, _ = client.create(topic), client.create(other)
    by_name, other_by_name, by_id = delete(client, topic, other, ids=[topic_id] * ids)
    assert (by_name.name, by_name.error_code) == (topic, ErrorCode.INVALID_REQUEST)
    assert (by_id.topic_id, by_id.error_code) == (topic_id, ErrorCode.INVALID_REQUEST)
    assert (other_by_name.name, other_by_name.error_code) == (other, ErrorCode.NONE)
    assert client.append(topic, b"v") >= 0


def test_a_topic_is_given_by_name_or_by_id(client: Client, topic: str) -> None:
    topic_id = client.create(topic)
    for state in (DeleteTopicState(name=topic, topic_id=topic_id), DeleteTopicState()):
        [result] = client.call(DeleteTopicsRequest(topics=[state], timeout_ms=0), 6).responses
        assert result.error_code == ErrorCode.INVALID_REQUEST
    assert client.append(topic, b"v") >= 0


@pytest.fixture(scope="module")
def other_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker that deletes nothing."""
    flags = ("--set", "delete.topic.enable=false")
    with korvet_broker(tmp_path_factory.mktemp("other"), *flags, workers=1) as running:
        yield running


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (2, ErrorCode.INVALID_REQUEST),
        (3, ErrorCode.TOPIC_DELETION_DISABLED),
        (6, ErrorCode.TOPIC_DELETION_DISABLED),
    ],
)
def test_deletion_may_be_forbidden(other_broker: Broker, topic: str, version: int, code: ErrorCode) -> None:
    with Client(other_broker.address) as client:
        client.create(topic)
        [result] = delete(client, topic, version=version)
        assert (result.name, result.error_code) == (topic, code)
        assert client.append(topic, b"v") >= 0
