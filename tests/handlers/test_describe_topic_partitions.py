"""DescribeTopicPartitions by bytes: topics in order, in pieces that the cursor joins, and what cannot be described."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.wire import ZERO_UUID
from tests.handlers.test_alter_partition_reassignments import move
from tests.support.topic_client import Client

EVERY_OPERATION = sum(1 << each for each in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe, describe configs, alter configs, by the numbers of AclOperation."""


def ask(client: Client, *names: str, at: tuple[str, int] | None = None, limit: int = 2000) -> Any:
    cursor = None if at is None else Cursor(topic_name=at[0], partition_index=at[1])
    topics = [TopicRequest(name=name) for name in names]
    request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=cursor)
    return client.call(request, 0)


def piece(answer: Any) -> tuple[list[tuple[str, list[int]]], tuple[str, int] | None]:
    """Return topics and partitions of an answer, and where it goes on."""
    topics = [
        (topic.name, [each.partition_index for each in topic.partitions])
        for topic in answer.topics
        if topic.error_code == ErrorCode.NONE
    ]
    after = answer.next_cursor
    return topics, None if after is None else (after.topic_name, after.partition_index)


def codes(answer: Any) -> dict[str, ErrorCode]:
    return {each.name: ErrorCode(each.error_code) for each in answer.topics}


def test_partitions_are_reported_as_in_metadata(ends: tuple[Client, Client], topic: str) -> None:
    topic_id = ends[0].create(topic, 5)
    move(ends[0], topic, {0: [1, 0], 3: [0]})
    for client in ends:
        [described] = ask(client, topic).topics
        assert (described.name, described.topic_id, described.is_internal) == (topic, topic_id, False)
        assert described.topic_authorized_operations == EVERY_OPERATION
        for one, two in zip(described.partitions, client.described(topic).partitions, strict=True):
            assert (one.error_code, one.partition_index) == (ErrorCode.NONE, two.partition_index)
            assert (one.leader_id, one.leader_epoch) == (two.leader_id, two.leader_epoch)
            assert (one.replica_nodes, one.isr_nodes) == (two.replica_nodes, two.isr_nodes)
            assert one.offline_replicas == two.offline_replicas == []
            assert (one.eligible_leader_replicas, one.last_known_elr) == ([], [])
        assert described.partitions[0].replica_nodes == [1, 0]


def test_topics_are_reported_once_in_order_of_their_names(client: Client, topic: str) -> None:
    for suffix in ("b", "a", "c"):
        client.create(topic + suffix)
    names = [topic + suffix for suffix in "cabca"]
    assert piece(ask(client, *names)) == ([(topic + suffix, [0]) for suffix in "abc"], None)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
def test_the_pieces_make_a_whole(client: Client, topic: str, limit: int) -> None:
    counts = {f"{topic}{suffix}": count for suffix, count in (("a", 3), ("b", 1), ("c", 2))}
    for name, count in counts.items():
        client.create(name, count)
    found: list[tuple[str, int]] = []
    at: tuple[str, int] | None = None
    asks = 0
    while asks == 0 or at is not None:
        topics, at = piece(ask(client, *counts, at=at, limit=limit))
        reported = [(name, index) for name, indexes in topics for index in indexes]
        assert 0 < len(reported) <= limit
        found += reported
        asks += 1
    assert found == [(name, index) for name, count in counts.items() for index in range(count)]
    assert asks == -(-6 // limit)


def test_a_topic_that_does_not_fit_any_more_is_where_the_next_answer_begins(
    client: Client, topic: str
) -> None:
    names = [f"{topic}{suffix}" for suffix in "ab"]
    for name in names:
        client.create(name, 2)
    assert piece(ask(client, *names, limit=2)) == ([(names[0], [0, 1])], (names[1], 0))
    assert piece(ask(client, *names, limit=3)) == ([(names[0], [0, 1]), (names[1], [0])], (names[1], 1))
    assert piece(ask(client, *names, limit=4)) == ([(names[0], [0, 1]), (names[1], [0, 1])], None)


@pytest.mark.parametrize("limit", [0, -1, -(2**31)])
def test_a_limit_that_lets_nothing_through_lets_one_partition_through(
    client: Client, topic: str, limit: int
) -> None:
    client.create(topic, 2)
    assert piece(ask(client, topic, limit=limit)) == ([(topic, [0])], (topic, 1))


def test_no_answer_has_more_than_2000_partitions(client: Client, topic: str) -> None:
    client.create(topic, 2001)
    topics, after = piece(ask(client, topic, limit=2**31 - 1))
    assert (topics, after) == ([(topic, list(range(2000)))], (topic, 2000))
    assert piece(ask(client, topic, at=(topic, 2000))) == ([(topic, [2000])], None)
    client.delete(topic)


def test_an_empty_list_asks_for_all_topics(client: Client, topic: str) -> None:
    client.create(topic, 3)
    every: list[str] = []
    at: tuple[str, int] | None = ("", 0)
    while at is not None:
        topics, at = piece(ask(client, at=at, limit=50))
        every += [name for name, _ in topics]
    everywhere = client.call(MetadataRequest(topics=None), 12).topics
    assert sorted(set(every)) == sorted(each.name for each in everywhere)
    assert every == sorted(every)
    topics, _ = piece(ask(client, at=(topic, 1)))
    assert topics[0] == (topic, [1, 2])


def test_all_topics_go_on_after_one_that_was_deleted(client: Client, topic: str) -> None:
    names = [f"{topic}{suffix}" for suffix in "ac"]
    for name in names:
        client.create(name, 2)
    topics, _ = piece(ask(client, at=(f"{topic}b", 1)))
    assert topics[0] == (names[1], [0, 1])


def test_what_cannot_be_reported_is_said_of_each_topic(client: Client, topic: str) -> None:
    client.create(topic)
    missing = f"{topic}-missing"
    answer = ask(client, topic, missing, "not/a name", "")
    assert codes(answer) == {
        topic: ErrorCode.NONE,
        missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "not/a name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    failed = [each for each in answer.topics if each.error_code]
    assert all((each.topic_id, each.partitions) == (ZERO_UUID, []) for each in failed)
    assert answer.next_cursor is None
    # Asking creates nothing, whatever auto.create.topics.enable says.
    assert codes(ask(client, missing))[missing] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_another_worker_made_or_deleted_is_known_at_once(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    one, two = two_clients
    one.create(topic)
    assert codes(ask(two, topic))[topic] == ErrorCode.NONE
    one.delete(topic)
    assert codes(ask(two, topic))[topic] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_cursor_after_the_last_partition_goes_on_with_the_next_topic(client: Client, topic: str) -> None:
    names = [f"{topic}{suffix}" for suffix in "ab"]
    for name in names:
        client.create(name, 2)
    assert piece(ask(client, *names, at=(names[0], 7), limit=2)) == (
        [(names[0], []), (names[1], [0, 1])],
        None,
    )


@pytest.mark.parametrize("at", [("elsewhere", 0), ("", 0), ("a", -1), ("a", -(2**31))])
def test_a_cursor_that_cannot_be_is_refused_for_every_topic(client: Client, at: tuple[str, int]) -> None:
    answer = ask(client, "a", "b", at=at)
    assert codes(answer) == {"a": ErrorCode.INVALID_REQUEST, "b": ErrorCode.INVALID_REQUEST}
    assert answer.next_cursor is None


def test_a_cursor_that_cannot_be_is_refused_of_all_topics(client: Client) -> None:
    assert codes(ask(client, at=("somewhere", -1))) == {"somewhere": ErrorCode.INVALID_REQUEST}
