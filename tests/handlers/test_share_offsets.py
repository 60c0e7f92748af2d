"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets by bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages import alter_share_group_offsets as alter_wire
from korvet.protocol.messages import delete_share_group_offsets as delete_wire
from korvet.protocol.messages import describe_share_group_offsets as describe_wire
from korvet.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from korvet.protocol.wire import ZERO_UUID
from tests.handlers.formats import BOTH_FORMATS
from tests.handlers.groups import Member
from tests.handlers.test_share_fetch import begun
from tests.support.share_consumer import ShareConsumer
from tests.support.topic_client import Client

pytestmark = BOTH_FORMATS


def described(
    client: Client, group: str, topics: Mapping[str, Sequence[int]] | None, version: int = 1
) -> list[Any]:
    """Return the topics of a group as they are described."""
    asked = describe_wire.DescribeShareGroupOffsetsRequestGroup(
        group_id=group,
        topics=None
        if topics is None
        else [
            describe_wire.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=list(indexes))
            for name, indexes in topics.items()
        ],
    )
    request = describe_wire.DescribeShareGroupOffsetsRequest(groups=[asked])
    [found] = client.call(request, version).groups
    assert (found.group_id, found.error_code, found.error_message) == (group, 0, None)
    return list(found.topics)


def position(client: Client, group: str, topic: str, version: int = 1) -> tuple[int, int]:
    """Return start offset and lag of a group in partition 0."""
    [found] = described(client, group, {topic: [0]}, version)
    [each] = found.partitions
    assert (found.topic_name, each.partition_index, each.error_code) == (topic, 0, 0)
    return each.start_offset, each.lag


def alter(client: Client, group: str, topic: str, *starts: tuple[int, int]) -> Any:
    """Move the start in partitions; returns the response."""
    partitions = [
        alter_wire.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=start)
        for index, start in starts
    ]
    topics = [alter_wire.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)]
    return client.call(alter_wire.AlterShareGroupOffsetsRequest(group_id=group, topics=topics), 0)


def delete(client: Client, group: str, *names: str) -> Any:
    """Have the group forget topics; returns the response."""
    topics = [delete_wire.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names]
    return client.call(delete_wire.DeleteShareGroupOffsetsRequest(group_id=group, topics=topics), 0)


def test_a_group_is_described_with_its_lag(client: Client, topic: str) -> None:
    consumer = begun(client, topic, 0, 1)
    start, lag = position(client, topic, topic)
    assert lag == 0
    first = client.append(topic, b"1", b"2", b"3")
    assert position(client, topic, topic)[1] == 3
    found = consumer.poll()
    assert position(client, topic, topic) == (first, 3)
    consumer.accept(found[1:2])
    assert position(client, topic, topic) == (first, 2)
    consumer.accept(found[:1])
    assert position(client, topic, topic) == (first + 2, 1)
    client.append(topic, b"4", b"5")
    assert position(client, topic, topic) == (first + 2, 3)
    # Version 0 does not know of it.
    assert position(client, topic, topic, version=0) == (first + 2, -1)
    assert start <= first


def test_all_partitions_of_a_group_are_those_in_which_it_has_been(client: Client, topic: str) -> None:
    consumer = begun(client, topic, 0, 2)
    [found] = described(client, topic, None)
    assert (found.topic_name, found.topic_id) == (topic, consumer.wanted[0].topic_id)
    assert [each.partition_index for each in found.partitions] == [0, 2]
    assert described(client, f"{topic}-nobody", None) == []


def test_where_a_group_has_not_been_it_begins_nowhere(client: Client, topic: str) -> None:
    begun(client, topic, 0, 1)
    client.create(f"{topic}-other")
    for name, index in ((f"{topic}-other", 0), (topic, 7), (f"{topic}-none", 0)):
        [found] = described(client, topic, {name: [index]})
        [each] = found.partitions
        assert (each.partition_index, each.start_offset, each.lag, each.error_code) == (index, -1, -1, 0)


def test_the_leader_epoch_is_that_of_the_partition(client: Client, topic: str) -> None:
    begun(client, topic)
    client.append(topic, b"1")
    [found] = described(client, topic, {topic: [0]})
    assert found.partitions[0].leader_epoch == client.leader_epoch(topic)


def test_the_start_of_a_group_without_members_is_moved(client: Client, topic: str) -> None:
    consumer = begun(client, topic)
    first = client.append(topic, b"1", b"2")
    consumer.accept(consumer.poll())
    assert alter(client, topic, topic, (0, first)).error_code == ErrorCode.NON_EMPTY_GROUP
    consumer.leave()
    answer = alter(client, topic, topic, (0, first + 1), (9, 0), (0, -1))
    assert (answer.error_code, answer.error_message) == (0, None)
    [found] = answer.responses
    assert (found.topic_name, found.topic_id) == (topic, consumer.wanted[0].topic_id)
    assert [(each.partition_index, each.error_code) for each in found.partitions] == [
        (0, 0),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, ErrorCode.INVALID_REQUEST),
    ]
    assert position(client, topic, topic) == (first + 1, 1)
    assert ShareConsumer(client, topic, topic).on(found.topic_id).values() == [b"2"]


def test_a_group_without_members_forgets_a_topic(client: Client, topic: str) -> None:
    consumer = begun(client, topic)
    client.append(topic, b"1", b"2")
    consumer.poll()
    assert delete(client, topic, topic).error_code == ErrorCode.NON_EMPTY_GROUP
    consumer.leave()
    answer = delete(client, topic, topic, f"{topic}-none")
    assert (answer.error_code, answer.error_message) == (0, None)
    assert [(each.topic_name, each.topic_id, each.error_code) for each in answer.responses] == [
        (topic, consumer.wanted[0].topic_id, 0),
        (f"{topic}-none", ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert position(client, topic, topic) == (-1, -1)
    [again] = delete(client, topic, topic).responses
    assert (again.error_code, again.error_message) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "There is no offset information to delete.",
    )
    # It begins once more, at the end.
    begins_again = ShareConsumer(client, topic, topic).on(consumer.wanted[0].topic_id)
    assert begins_again.values() == []
    client.append(topic, b"3")
    assert begins_again.values() == [b"3"]


def test_a_group_is_created_to_begin_somewhere(client: Client, topic: str) -> None:
    topic_id = client.create(topic)
    first = client.append(topic, b"1", b"2")
    [found] = alter(client, topic, topic, (0, first + 1)).responses
    assert [each.error_code for each in found.partitions] == [0]
    [group] = client.call(ShareGroupDescribeRequest(group_ids=[topic]), 1).groups
    assert (group.error_code, group.group_state, group.members) == (0, "Empty", [])
    assert ShareConsumer(client, topic, topic).on(topic_id).values() == [b"2"]


@pytest.mark.parametrize("kind", ["classic", "none"])
def test_what_is_no_share_group_is_not_changed(client: Client, topic: str, kind: str) -> None:
    client.create(topic)
    group = f"{topic}-group"
    if kind == "classic":
        Member(client, group).join()
        assert alter(client, group, topic, (0, 0)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert delete(client, group, topic).error_code == ErrorCode.GROUP_ID_NOT_FOUND
