"""DescribeProducers by bytes: who has written to a partition, from any worker."""

from __future__ import annotations

from typing import Any

import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from tests.handlers.formats import BOTH_FORMATS
from tests.support.batches import batch
from tests.support.topic_client import Client

pytestmark = BOTH_FORMATS


def described(client: Client, asked: dict[str, list[int]]) -> dict[tuple[str, int], Any]:
    topics = [TopicRequest(name=name, partition_indexes=indexes) for name, indexes in asked.items()]
    answer = client.call(DescribeProducersRequest(topics=topics), 0)
    found = {(topic.name, each.partition_index): each for topic in answer.topics for each in topic.partitions}
    assert list(found) == [(name, index) for name, indexes in asked.items() for index in indexes]
    return found


def send(client: Client, topic: str, producer_id: int, epoch: int, sequence: int, *values: bytes) -> None:
    records = batch(*values, producer_id=producer_id, epoch=epoch, sequence=sequence)
    assert client.produce(topic, records).error_code == ErrorCode.NONE


def test_the_producers_of_a_partition_are_reported_by_every_worker(
    two_clients: tuple[Client, Client], topic: str, stored: Any
) -> None:
    one, two = two_clients
    one.create(topic, 2)
    before = stored.time()[0] * 1000
    send(one, topic, 2**40, 7, 0, b"a", b"b", b"c")
    send(one, topic, 5, 0, 0, b"a")
    send(two, topic, 5, 0, 1, b"b")
    one.append(topic, b"not idempotent")
    for client in two_clients:
        found = described(client, {topic: [1, 0]})
        answers = [(each.error_code, each.error_message) for each in found.values()]
        assert answers == [(ErrorCode.NONE, None)] * 2
        assert found[topic, 1].active_producers == []
        producers = found[topic, 0].active_producers
        assert [(each.producer_id, each.producer_epoch, each.last_sequence) for each in producers] == [
            (5, 0, 1),
            (2**40, 7, 2),
        ]
        assert all(before <= each.last_timestamp for each in producers)
        assert {(each.coordinator_epoch, each.current_txn_start_offset) for each in producers} == {(-1, -1)}


def test_what_is_not_there_is_said_of_each_partition(client: Client, topic: str) -> None:
    client.create(topic)
    found = described(client, {topic: [0, 1, -1], "not there": [0]})
    codes = [each.error_code for each in found.values()]
    assert codes == [ErrorCode.NONE, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3]
    assert [bool(each.error_message) for each in found.values()] == [False, True, True, True]


def test_a_partition_that_is_asked_for_twice_is_answered_once(client: Client, topic: str) -> None:
    client.create(topic, 2)
    send(client, topic, 5, 0, 0, b"a")
    asked = [TopicRequest(name=topic, partition_indexes=indexes) for indexes in ([0, 0, 1], [1, 0, 2])]
    [answer] = client.call(DescribeProducersRequest(topics=asked), 0).topics
    assert [each.partition_index for each in answer.partitions] == [0, 1, 2]
    assert [len(each.active_producers) for each in answer.partitions] == [1, 0, 0]


def test_a_topic_that_was_created_again_has_none_of_the_old_ones_producers(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    one, two = two_clients
    one.create(topic)
    send(one, topic, 5, 0, 0, b"a")
    assert described(two, {topic: [0]})[topic, 0].active_producers
    one.delete(topic)
    assert described(two, {topic: [0]})[topic, 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    one.create(topic)
    [found] = described(two, {topic: [0]}).values()
    assert (found.error_code, found.active_producers) == (ErrorCode.NONE, [])


def test_a_row_that_cannot_be_read_is_an_error_of_its_partition(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    client.create(topic, 2)
    stored.hset(f"{{korvet:{topic}:0}}:producers", "7", "garbage")
    found = described(client, {topic: [0, 1]})
    assert [each.error_code for each in found.values()] == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    assert "producers" in found[topic, 0].error_message
