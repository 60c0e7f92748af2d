"""ListPartitionReassignments by bytes: nothing is ever on its way."""

from __future__ import annotations

from korvet.errors import ErrorCode
from korvet.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests.handlers.test_alter_partition_reassignments import move
from tests.support.topic_client import Client


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
