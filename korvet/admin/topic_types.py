"""Topics as a cluster tells them, and as it is asked to make them: the types, and the messages they are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from korvet.admin.config_types import Config, source_of
from korvet.admin.errors import AdminError, BrokerError
from korvet.admin.topic_id import TopicId, topic_id_of
from korvet.protocol.messages.create_partitions import CreatePartitionsAssignment, CreatePartitionsTopic
from korvet.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
)
from korvet.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic

_NO_NUMBER = -1


class TopicListing(msgspec.Struct, frozen=True):
    """A topic as it is listed; `partitions` is how many. The id is None where the broker is too old to tell."""

    name: str
    topic_id: TopicId | None
    internal: bool
    partitions: int


class PartitionDescription(msgspec.Struct, frozen=True):
    """A partition: the brokers it lies on, the preferred leader first. `leader` is None where it has none now.

    `leader_epoch` is -1 where it is not known.
    """

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]
    offline: list[int]


class TopicDescription(msgspec.Struct, frozen=True):
    """A topic with its partitions, in order."""

    name: str
    topic_id: TopicId | None
    internal: bool
    partitions: list[PartitionDescription]


class NewTopic(msgspec.Struct, frozen=True):
    """A topic to make. What is None is left to the cluster.

    `assignments` gives for each partition, in order, the brokers that it is to lie on, the preferred leader first: in
    place of the two numbers. A setting whose value is None is left to the cluster too.
    """

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    assignments: Sequence[Sequence[int]] | None = None
    configs: Mapping[str, str | None] = {}


class CreatedTopic(msgspec.Struct, frozen=True):
    """A topic that was made, or could be. Before Kafka 2.4 a broker tells nothing of it, and no id before 2.8."""

    name: str
    topic_id: TopicId | None
    partitions: int | None
    replication_factor: int | None
    configs: dict[str, Config]


class NewPartitions(msgspec.Struct, frozen=True):
    """How many partitions a topic is to have in all; `assignments`, if given, is for the new ones, in order."""

    count: int
    assignments: Sequence[Sequence[int]] | None = None


def description_of(topic: MetadataResponseTopic) -> TopicDescription | AdminError:
    """Read a topic in an answer to Metadata."""
    error = BrokerError.of(topic.error_code, f"topic {topic.name}" if topic.name else "")
    if error is not None:
        return error
    partitions = sorted(map(_partition, topic.partitions), key=lambda each: each.partition)
    return TopicDescription(topic.name or "", topic_id_of(topic.topic_id), topic.is_internal, partitions)


def _partition(partition: MetadataResponsePartition) -> PartitionDescription:
    return PartitionDescription(
        partition.partition_index,
        None if partition.leader_id == _NO_NUMBER else partition.leader_id,
        partition.leader_epoch,
        partition.replica_nodes,
        partition.isr_nodes,
        partition.offline_replicas,
    )


def creatable_of(topic: NewTopic) -> CreatableTopic:
    """Return a topic as CreateTopics takes it."""
    return CreatableTopic(
        name=topic.name,
        num_partitions=_NO_NUMBER if topic.partitions is None else topic.partitions,
        replication_factor=_NO_NUMBER if topic.replication_factor is None else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=[*brokers])
            for index, brokers in enumerate(topic.assignments or ())
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def created_of(topic: CreatableTopicResult) -> CreatedTopic | AdminError:
    """Read a topic in an answer to CreateTopics."""
    error = BrokerError.of(topic.error_code, topic.error_message)
    if error is not None:
        return error
    configs = {
        each.name: Config(
            each.name, each.value, source_of(each.config_source), each.read_only, each.is_sensitive
        )
        for each in topic.configs or ()
    }
    return CreatedTopic(
        topic.name,
        topic_id_of(topic.topic_id),
        None if topic.num_partitions == _NO_NUMBER else topic.num_partitions,
        None if topic.replication_factor == _NO_NUMBER else topic.replication_factor,
        configs,
    )


def growing_of(name: str, wanted: int | NewPartitions) -> CreatePartitionsTopic:
    """Return a topic as CreatePartitions takes it."""
    new = NewPartitions(wanted) if isinstance(wanted, int) else wanted
    assignments = None
    if new.assignments is not None:
        assignments = [CreatePartitionsAssignment(broker_ids=[*brokers]) for brokers in new.assignments]
    return CreatePartitionsTopic(name=name, count=new.count, assignments=assignments)
