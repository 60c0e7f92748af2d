"""AlterPartitionReassignments by bytes: moves that every broker reports, each way to be refused, and none under way."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from korvet.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from korvet.topics.registry import PARTITIONS_MAX
from tests.support.topic_client import Client

VERSIONS = (0, 1)


def request(name: str, targets: dict[int, list[int] | None], **fields: Any) -> Any:
    partitions = [
        ReassignablePartition(partition_index=index, replicas=replicas) for index, replicas in targets.items()
    ]
    topics = [ReassignableTopic(name=name, partitions=partitions)]
    return AlterPartitionReassignmentsRequest(topics=topics, **fields)


def move(
    client: Client, name: str, targets: dict[int, list[int] | None], version: int = 1, **fields: Any
) -> dict[int, tuple[ErrorCode, str | None]]:
    """Ask for moves, and return what became of each partition."""
    answer = client.call(request(name, targets, **fields), version)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    [topic] = answer.responses
    assert topic.name == name
    return {
        each.partition_index: (ErrorCode(each.error_code), each.error_message) for each in topic.partitions
    }


def placement_of(client: Client, name: str) -> list[tuple[int, list[int]]]:
    """Return leader and replicas of each partition as Metadata reports them."""
    return [(each.leader_id, each.replica_nodes) for each in client.described(name).partitions]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_move_is_in_the_metadata_of_every_broker_when_it_is_answered(
    ends: tuple[Client, Client], topic: str, version: int
) -> None:
    ends[0].create(topic, 3)
    before = placement_of(ends[0], topic)
    one, two = ends
    for asked, other, leader in ((one, two, 1), (two, one, 0)):
        moved = move(asked, topic, {0: [leader], 2: [leader, 1 - leader]}, version)
        assert moved == {0: (ErrorCode.NONE, None), 2: (ErrorCode.NONE, None)}
        expected = [(leader, [leader]), before[1], (leader, [leader, 1 - leader])]
        assert placement_of(other, topic) == placement_of(asked, topic) == expected


def test_nothing_is_lost_by_a_move(ends: tuple[Client, Client], topic: str) -> None:
    topic_id = ends[0].create(topic)
    offset = ends[0].append(topic, b"before")
    [(leader, _)] = placement_of(ends[0], topic)
    move(ends[0], topic, {0: [1 - leader]})
    after = ends[1].append(topic, b"after")
    for client in ends:
        records = bytes(client.fetch(topic, offset).records)
        assert after > offset
        assert b"before" in records
        assert b"after" in records
        assert client.described(topic).topic_id == topic_id


def test_moves_of_several_topics_are_answered_in_their_order(ends: tuple[Client, Client], topic: str) -> None:
    names = [f"{topic}-{n}" for n in range(3)]
    for name in names[::2]:
        ends[0].create(name, 2)
    asked = request(names[0], {1: [1]})
    for name in names[1:]:
        asked.topics.extend(request(name, {1: [0], 0: [1]}).topics)
    answer = ends[0].call(asked, 1)
    found = [
        (each.name, [(one.partition_index, one.error_code) for one in each.partitions])
        for each in answer.responses
    ]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found == [
        (names[0], [(1, ErrorCode.NONE)]),
        (names[1], [(1, unknown), (0, unknown)]),
        (names[2], [(1, ErrorCode.NONE), (0, ErrorCode.NONE)]),
    ]
    assert [leader for leader, _ in placement_of(ends[1], names[2])] == [1, 0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("partition", "replicas", "refusal"),
    [
        (0, [0, 5], (ErrorCode.INVALID_REPLICA_ASSIGNMENT, "[5]: there are [0, 1]")),
        (0, None, (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "does not move")),
        (2, [1], (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "-2")),
    ],
)
def test_what_cannot_be_moved_is_refused_alone(
    ends: tuple[Client, Client],
    topic: str,
    version: int,
    partition: int,
    replicas: list[int] | None,
    refusal: tuple[ErrorCode, str],
) -> None:
    ends[0].create(topic, 2)
    before = placement_of(ends[0], topic)
    answers = move(ends[0], topic, {partition: replicas, 1: [1]}, version)
    assert answers[1] == (ErrorCode.NONE, None)
    code, message = answers[partition]
    assert (code, refusal[1] in (message or "")) == (refusal[0], True)
    assert placement_of(ends[1], topic) == [before[0], (1, [1])]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_that_is_not_there_cannot_be_moved(
    ends: tuple[Client, Client], topic: str, version: int
) -> None:
    for name in (topic, "", "not/a name"):
        for code, message in move(ends[0], name, {0: [1], 5: None}, version).values():
            assert code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert message


def test_a_topic_that_was_deleted_by_another_broker_cannot_be_moved(
    ends: tuple[Client, Client], topic: str
) -> None:
    ends[0].create(topic)
    assert placement_of(ends[1], topic)
    ends[0].delete(topic)
    [(code, _)] = move(ends[1], topic, {0: [1]}).values()
    assert code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_number_of_replicas_may_be_kept_from_changing(ends: tuple[Client, Client], topic: str) -> None:
    ends[0].create(topic, 2)
    before = placement_of(ends[0], topic)
    [(code, message)] = move(ends[0], topic, {0: [1, 0]}, allow_replication_factor_change=False).values()
    assert code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert message is not None
    assert "1 brokers" in message
    assert placement_of(ends[1], topic) == before
    moved = move(ends[0], topic, {0: [1], 1: [0]}, allow_replication_factor_change=False)
    assert {code for code, _ in moved.values()} == {ErrorCode.NONE}
    # Version 0 cannot forbid it, and its change is answered for.
    assert move(ends[0], topic, {0: [1, 0]}, 0) == {0: (ErrorCode.NONE, None)}
    assert placement_of(ends[1], topic)[0] == (1, [1, 0])


def test_the_answer_says_whether_the_number_might_change(ends: tuple[Client, Client], topic: str) -> None:
    for allowed in (True, False):
        asked = request(topic, {}, allow_replication_factor_change=allowed)
        assert ends[0].call(asked, 1).allow_replication_factor_change is allowed


def test_of_two_moves_of_one_partition_the_later_one_stays(ends: tuple[Client, Client], topic: str) -> None:
    ends[0].create(topic)
    asked = request(topic, {0: [0]})
    asked.topics[0].partitions.append(ReassignablePartition(partition_index=0, replicas=[1]))
    [answer] = ends[0].call(asked, 1).responses
    assert [(each.partition_index, each.error_code) for each in answer.partitions] == [(0, 0), (0, 0)]
    assert placement_of(ends[1], topic) == [(1, [1])]


def test_a_large_topic_that_is_named_very_often_is_moved_in_one_step(
    ends: tuple[Client, Client], topic: str
) -> None:
    """The client waits 30 s at most: a step for each time would take minutes."""
    last = PARTITIONS_MAX - 1
    ends[0].create(topic, PARTITIONS_MAX)
    asked = [*request(topic, {last: [0]}).topics, *request(topic, {last: [7], 0: [1]}).topics] * 1500
    asked += request(topic, {last: [1]}).topics
    answer = ends[0].call(AlterPartitionReassignmentsRequest(topics=asked), 1)
    codes = [[one.error_code for one in each.partitions] for each in answer.responses]
    refused = [ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.NONE]
    assert codes == [*[[ErrorCode.NONE], refused] * 1500, [ErrorCode.NONE]]
    found = placement_of(ends[1], topic)
    assert (found[0], found[last]) == ((1, [1]), (1, [1]))
    ends[0].delete(topic)


def test_a_request_for_nothing_is_answered_with_nothing(ends: tuple[Client, Client]) -> None:
    answer = ends[0].call(AlterPartitionReassignmentsRequest(topics=[]), 1)
    assert (answer.error_code, answer.responses) == (ErrorCode.NONE, [])


def test_a_move_that_was_answered_is_under_way_no_more(ends: tuple[Client, Client], topic: str) -> None:
    ends[0].create(topic, 2)
    assert move(ends[0], topic, {0: [1], 1: [1, 0]})[1][0] is ErrorCode.NONE
    named = [
        ListPartitionReassignmentsTopics(name=topic, partition_indexes=[0, 1]),
        ListPartitionReassignmentsTopics(name="not there", partition_indexes=[7]),
    ]
    for client in ends:
        for topics in (None, [], named):
            answer = client.call(ListPartitionReassignmentsRequest(topics=topics), 0)
            assert (answer.error_code, answer.error_message, answer.topics) == (ErrorCode.NONE, None, [])
