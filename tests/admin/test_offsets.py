"""Offsets through the admin client: committed ones, and those of the logs."""

from __future__ import annotations

import pytest

from korvet.admin.client import AdminClient
from korvet.admin.errors import BrokerError, GroupIdNotFoundError, UnknownTopicOrPartitionError
from korvet.admin.offsets import LATEST, CommittedOffset, ShareGroupOffset
from korvet.admin.types import TopicPartition, settled
from korvet.errors import ErrorCode
from tests.admin.outcomes import code_of
from tests.support.group_consumer import joined
from tests.support.in_process import InProcessBroker
from tests.support.share_consumer import ShareConsumer
from tests.support.topic_client import Client


def test_committed_offsets_come_back_with_epoch_and_metadata(
    admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=3)
    zero, one, two = (TopicPartition(name, index) for index in range(3))
    assert admin.offsets.committed(name) == {}
    noted = CommittedOffset(7, leader_epoch=0, metadata="by hand")
    assert admin.offsets.alter(name, {zero: 5, two: noted}) == {zero: None, two: None}
    assert admin.offsets.committed(name) == {zero: CommittedOffset(5), two: noted}
    assert admin.offsets.committed(name, [one, two]) == {two: noted}


def test_what_cannot_be_committed_keeps_nothing_else_from_being(
    admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    zero, one, two = (TopicPartition(name, index) for index in range(3))
    outcomes = admin.offsets.alter(name, {zero: 4, one: CommittedOffset(1, metadata="x" * 5000), two: 4})
    assert outcomes[zero] is None
    assert code_of(outcomes[one]) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert isinstance(outcomes[two], UnknownTopicOrPartitionError)
    with pytest.raises(BrokerError, match="OFFSET_METADATA_TOO_LARGE"):
        settled(outcomes)
    assert admin.offsets.committed(name) == {zero: CommittedOffset(4)}


def test_share_groups_are_where_they_have_begun(admin: AdminClient, client: Client, name: str) -> None:
    topic_id = client.create(name, partitions=3)
    zero, one = TopicPartition(name, 0), TopicPartition(name, 1)
    consumer = ShareConsumer(client, name, name).on(topic_id, 0, 2)
    assert consumer.poll() == []
    start = client.append(name, b"1", b"2", b"3")
    consumer.accept(consumer.poll()[:1])
    nobody = f"{name} nobody"
    found = settled(admin.offsets.of_share_groups({name: None, nobody: None}))
    assert found[nobody] == {}
    # Nothing of the third partition, where it has begun too, was acknowledged.
    assert found[name] == {zero: ShareGroupOffset(start + 1, client.leader_epoch(name), 2)}
    assert settled(admin.offsets.of_share_groups({name: [zero, one], nobody: []})) == {
        name: {zero: found[name][zero]},
        nobody: {},
    }


def test_missing_partitions_do_not_hide_the_others(admin: AdminClient, topic: str) -> None:
    places = [TopicPartition(topic, 0), TopicPartition(topic, 9), TopicPartition(f"{topic}-not", 0)]
    there, *others = admin.offsets.at(dict.fromkeys(places, LATEST)).values()
    assert not isinstance(there, Exception)
    for outcome in others:
        assert isinstance(outcome, UnknownTopicOrPartitionError)
        assert not outcome.retriable


def test_asking_for_a_topic_does_not_make_it(admin: AdminClient, name: str) -> None:
    for _ in range(2):
        topology = admin.topology([name])
        assert topology.partitions == {}
        assert isinstance(topology.failed[name], BrokerError)


def test_what_was_committed_can_be_deleted_by_partition(
    broker: InProcessBroker, admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    zero, one = (TopicPartition(name, index) for index in range(2))
    settled(admin.offsets.alter(name, {zero: 1, one: 2}))
    assert admin.offsets.delete(name, [zero]) == {zero: None}
    assert admin.offsets.committed(name) == {one: CommittedOffset(2)}
    with joined(broker.bootstrap, name, name):
        assert code_of(admin.offsets.delete(name, [one])[one]) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert isinstance(admin.offsets.delete(f"{name} not", [one])[one], GroupIdNotFoundError)
    assert admin.offsets.committed(name) == {one: CommittedOffset(2)}
