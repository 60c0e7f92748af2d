"""Topics through the admin client: made, listed, described, grown, emptied, deleted."""

from __future__ import annotations

import pytest

from korvet.admin.client import AdminClient
from korvet.admin.errors import OffsetOutOfRangeError, UnknownTopicIdError, UnknownTopicOrPartitionError
from korvet.admin.offsets import EARLIEST, LATEST
from korvet.admin.topics import (
    CreatedTopic,
    NewPartitions,
    NewTopic,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from korvet.admin.types import ConfigSource, TopicId, TopicPartition, settled
from korvet.errors import ErrorCode
from tests.admin.outcomes import code_of
from tests.support.topic_client import Client

UNSENDABLE = ["x" * 40_000, "\udc80"]


def test_a_topic_is_made_listed_described_and_deleted(admin: AdminClient, name: str) -> None:
    made = settled(admin.topics.create([NewTopic(name, partitions=2, configs={"retention.ms": "60000"})]))
    assert made[name].topic_id is not None
    assert (made[name].partitions, made[name].replication_factor) == (2, 1)
    retention = made[name].configs["retention.ms"]
    assert (retention.value, retention.source) == ("60000", ConfigSource.TOPIC)
    listed = admin.topics.list()
    assert TopicListing(name, made[name].topic_id, internal=False, partitions=2) in listed
    assert listed == sorted(listed, key=lambda topic: topic.name)
    [leader] = admin.topology().brokers
    described = settled(admin.topics.describe([name]))
    epochs = [
        partition.leader_epoch for partition in described[name].partitions
    ]  # each node of a cluster has its own
    assert min(epochs) > 0
    partitions = [
        PartitionDescription(index, leader, epoch, [leader], [leader], [])
        for index, epoch in enumerate(epochs)
    ]
    wanted = TopicDescription(name, made[name].topic_id, internal=False, partitions=partitions)
    assert described == {name: wanted}
    assert admin.topics.delete([name]) == {name: None}
    assert name not in [item.name for item in admin.topics.list()]
    assert isinstance(admin.topics.describe([name])[name], UnknownTopicOrPartitionError)


def test_a_name_given_twice_is_refused_and_the_others_are_made(admin: AdminClient, name: str) -> None:
    outcomes = admin.topics.create([f"{name}-twice", name, NewTopic(f"{name}-twice", partitions=3)])
    assert list(outcomes) == [f"{name}-twice", name]
    assert code_of(outcomes[f"{name}-twice"]) is ErrorCode.INVALID_REQUEST
    assert isinstance(outcomes[name], CreatedTopic)
    assert isinstance(admin.topics.describe([f"{name}-twice"])[f"{name}-twice"], UnknownTopicOrPartitionError)


def test_topics_grow(admin: AdminClient, topic: str) -> None:
    [broker] = admin.topology().brokers
    assert admin.topics.create_partitions({topic: 2}, validate_only=True) == {topic: None}
    assert len(settled(admin.topics.describe([topic]))[topic].partitions) == 1
    assert admin.topics.create_partitions({topic: 2}) == {topic: None}
    assert admin.topics.create_partitions({topic: NewPartitions(4, [[broker]] * 2)}) == {topic: None}
    assert len(settled(admin.topics.describe([topic]))[topic].partitions) == 4


def test_topics_are_described_and_deleted_by_id_and_name_together(
    admin: AdminClient, client: Client, name: str
) -> None:
    one = TopicId(client.create(f"{name}-one"))
    two = TopicId(client.create(f"{name}-two"))
    gone = TopicId(b"gone" * 4)
    keys: list[str | TopicId] = [one, f"{name}-two", gone, name]
    described = admin.topics.describe(keys)
    assert list(described) == keys
    results = [description for description in described.values() if isinstance(description, TopicDescription)]
    assert [(result.name, result.topic_id) for result in results] == [
        (f"{name}-one", one),
        (f"{name}-two", two),
    ]
    assert isinstance(described[gone], UnknownTopicIdError)
    assert isinstance(described[name], UnknownTopicOrPartitionError)
    deleted = admin.topics.delete(keys)
    assert (deleted[one], deleted[f"{name}-two"]) == (None, None)
    assert isinstance(deleted[gone], UnknownTopicIdError)
    assert isinstance(deleted[name], UnknownTopicOrPartitionError)


@pytest.mark.parametrize("topic", UNSENDABLE)
def test_a_name_that_cannot_be_sent_keeps_none_of_the_others_from_being_answered(
    admin: AdminClient, client: Client, name: str, topic: str
) -> None:
    client.create(name)
    described = admin.topics.describe([topic, name])
    assert code_of(described[topic]) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert isinstance(described[name], TopicDescription)
    ends = admin.offsets.at({TopicPartition(topic, 0): LATEST, TopicPartition(name, 0): LATEST})
    assert code_of(ends[TopicPartition(topic, 0)]) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert settled({0: ends[TopicPartition(name, 0)]})[0].offset == 0
    assert code_of(admin.topics.create([topic])[topic]) is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_records_are_deleted_up_to_an_offset(admin: AdminClient, client: Client, name: str) -> None:
    client.create(name, partitions=3)
    for partition in range(2):
        client.append(name, *[b"value"] * 10, partition=partition)
    zero, one, two, three = (TopicPartition(name, index) for index in range(4))
    outcomes = admin.topics.delete_records({zero: 4, one: LATEST, two: 1, three: 1})
    assert (outcomes[zero], outcomes[one]) == (4, 10)
    assert isinstance(outcomes[two], OffsetOutOfRangeError)
    assert isinstance(outcomes[three], UnknownTopicOrPartitionError)
    starts = settled(admin.offsets.at({zero: EARLIEST, one: EARLIEST}))
    assert [starts[place].offset for place in (zero, one)] == [4, 10]


@pytest.mark.parametrize("value", [b"", bytes(15), bytes(17), bytes(16)])
def test_a_topic_id_is_16_bytes_that_are_not_zero(value: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        TopicId(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "AAECAwQFBgcICQoLDA0OD",
        "AAECAwQFBgcICQoLDA0ODw==",
        "AAECAwQFBgcICQoLDA0ODx",
        "AAECAwQFBgcICQoLDA0OD+",
        "A" * 22,
        "ä" * 22,
    ],
)
def test_a_text_that_is_not_a_topic_id_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a topic id"):
        TopicId.of(text)
