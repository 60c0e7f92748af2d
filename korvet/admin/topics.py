"""Requests about topics: list, describe, create, grow and delete topics, and delete records.

Reached as `AdminClient.topics`. Changes go to the controller; records are deleted by the leaders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from korvet.admin.configs import Config
from korvet.admin.errors import AdminError, broker_error, error_in
from korvet.admin.routing import Attempt, Requests, Route
from korvet.admin.types import (
    ConfigSource,
    Outcomes,
    Q,
    TopicId,
    TopicPartition,
    enum_in,
    known,
    partitions_in,
    topic_id_in,
    topics_of,
)
from korvet.errors import ErrorCode
from korvet.protocol.messages import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    metadata,
)

TopicKey = str | TopicId
"""A topic by its name, or by its id."""


class TopicListing(msgspec.Struct, frozen=True):
    """A topic in a list; `partitions` is their number. The id is None if the broker is too old to have ids."""

    name: str
    topic_id: TopicId | None
    internal: bool
    partitions: int


class PartitionDescription(msgspec.Struct, frozen=True):
    """A partition with its replicas, the preferred leader first. `leader` is None if it has none now.

    `leader_epoch` is -1 if it is not known.
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
    """A topic to create. The cluster decides what is None, also of settings.

    `assignments` are the brokers of each partition, in order, the preferred leader first; they replace the two numbers.
    """

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    assignments: Sequence[Sequence[int]] | None = None
    configs: Mapping[str, str | None] = {}


class CreatedTopic(msgspec.Struct, frozen=True):
    """A topic that was created, or could be. Kafka returns these values since 2.4, and the id since 2.8."""

    name: str
    topic_id: TopicId | None
    partitions: int | None
    replication_factor: int | None
    configs: dict[str, Config]


class NewPartitions(msgspec.Struct, frozen=True):
    """The new total number of partitions of a topic; `assignments` are the brokers of the new ones, in order."""

    count: int
    assignments: Sequence[Sequence[int]] | None = None


class Topics(Requests):
    """The requests about topics."""

    def list(self) -> list[TopicListing]:
        """Return all topics by name. Raises AdminError.

        >>> [topic.name for topic in admin.topics.list() if topic.name == "orders"]
        ['orders']
        """
        request = metadata.MetadataRequest(topics=None, allow_auto_topic_creation=False)
        listed = [
            TopicListing(
                topic.name or "", topic_id_in(topic.topic_id), topic.is_internal, len(topic.partitions)
            )
            for topic in self._client.call(request, metadata.MetadataResponse).topics
        ]
        return sorted(listed, key=lambda topic: topic.name)

    def describe(self, topics: Iterable[TopicKey]) -> Outcomes[TopicKey, TopicDescription]:
        """Return each topic, by name or id, or an error. A topic that does not exist is not created.

        UnknownTopicOrPartitionError and UnknownTopicIdError if there is none.

            >>> described = admin.topics.describe(["orders"])
            >>> len(settled(described)["orders"].partitions)
            1
        """

        def ask(attempt: Attempt, keys: Sequence[TopicKey]) -> Outcomes[TopicKey, TopicDescription]:
            request = metadata.MetadataRequest(
                topics=_asked(metadata.MetadataRequestTopic, keys), allow_auto_topic_creation=False
            )
            response = attempt.send(request, metadata.MetadataResponse)
            return {_answered(topic, keys): _description(topic) for topic in response.topics}

        return self._client.for_each(topics, Route.ANY, ask)

    def create(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False
    ) -> Outcomes[str, CreatedTopic]:
        """Create topics, or only check whether they could be created. A plain name has the cluster's defaults.

        Returns each created topic or an error: TopicExistsError, or INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS,
        INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG, POLICY_VIOLATION; INVALID_REQUEST for a
        name that is given twice. After REQUEST_TIMED_OUT the topic may still be created.

            >>> made = admin.topics.create(
            ...     [NewTopic("bills", partitions=3, configs={"retention.ms": "60000"})]
            ... )
            >>> settled(made)["bills"].partitions
            3
        """
        given = [NewTopic(topic) if isinstance(topic, str) else topic for topic in topics]
        times = Counter(topic.name for topic in given)
        new = {topic.name: topic for topic in given if times[topic.name] == 1}
        twice = broker_error(ErrorCode.INVALID_REQUEST, "the topic is given twice")

        def ask(attempt: Attempt, names: Sequence[str]) -> Outcomes[str, CreatedTopic]:
            request = create_topics.CreateTopicsRequest(
                topics=[_creatable(new[name]) for name in names],
                timeout_ms=attempt.timeout_ms,
                validate_only=validate_only,
            )
            response = attempt.send(request, create_topics.CreateTopicsResponse)
            return {topic.name: _created(topic) for topic in response.topics}

        outcomes = self._client.for_each(new, Route.CONTROLLER, ask, idempotent=False)
        return {name: outcomes.get(name, twice) for name in times}

    def create_partitions(
        self, counts: Mapping[str, int | NewPartitions], *, validate_only: bool = False
    ) -> Outcomes[str, None]:
        """Grow topics to these total numbers of partitions, or only check whether they could grow.

        Returns None or an error for each: UnknownTopicOrPartitionError, INVALID_PARTITIONS if it has as many already,
        INVALID_REPLICA_ASSIGNMENT. After REQUEST_TIMED_OUT the topic may still grow.

            >>> admin.topics.create_partitions({"orders": 4}, validate_only=True)
            {'orders': None}
        """

        def ask(attempt: Attempt, names: Sequence[str]) -> Outcomes[str, None]:
            request = create_partitions.CreatePartitionsRequest(
                topics=[_grown(name, counts[name]) for name in names],
                timeout_ms=attempt.timeout_ms,
                validate_only=validate_only,
            )
            response = attempt.send(request, create_partitions.CreatePartitionsResponse)
            return {
                result.name: error_in(result.error_code, result.error_message) for result in response.results
            }

        return self._client.for_each(counts, Route.CONTROLLER, ask, idempotent=False)

    def delete(self, topics: Iterable[TopicKey]) -> Outcomes[TopicKey, None]:
        """Delete topics, by name or id, with their records. Returns None or an error for each.

        Errors are UnknownTopicOrPartitionError, UnknownTopicIdError and TOPIC_DELETION_DISABLED. A name deletes any
        topic that has it by then, an id only that one topic. After REQUEST_TIMED_OUT the topic may still be deleted.

            >>> admin.topics.delete(["bills"])
            {'bills': None}
        """

        def ask(attempt: Attempt, keys: Sequence[TopicKey]) -> Outcomes[TopicKey, None]:
            topics = _asked(delete_topics.DeleteTopicState, keys)
            request = delete_topics.DeleteTopicsRequest(topics=topics, timeout_ms=attempt.timeout_ms)
            response = attempt.send(request, delete_topics.DeleteTopicsResponse)
            return {
                _answered(result, keys): error_in(result.error_code, result.error_message)
                for result in response.responses
            }

        return self._client.for_each(topics, Route.CONTROLLER, ask, idempotent=False)

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> Outcomes[TopicPartition, int]:
        """Delete the records before these offsets, LATEST for all. Returns the new start of each log or an error.

        Errors are OffsetOutOfRangeError, UnknownTopicOrPartitionError, and POLICY_VIOLATION for a topic that is only
        compacted.

            >>> admin.topics.delete_records({TopicPartition("orders", 0): 10})
            {TopicPartition(topic='orders', partition=0): 10}
        """
        parts = {
            key: delete_records.DeleteRecordsPartition(partition_index=key.partition, offset=offset)
            for key, offset in offsets.items()
        }

        def ask(attempt: Attempt, keys: Sequence[TopicPartition]) -> Outcomes[TopicPartition, int]:
            topics = topics_of(delete_records.DeleteRecordsTopic, keys, parts)
            request = delete_records.DeleteRecordsRequest(topics=topics, timeout_ms=attempt.timeout_ms)
            response = attempt.send(request, delete_records.DeleteRecordsResponse)
            return {
                key: error_in(result.error_code, f"partition {key}") or result.low_watermark
                for key, result in partitions_in(response.topics)
            }

        return self._client.for_each(offsets, Route.LEADER, ask)


def _asked(kind: type[Q], keys: Iterable[TopicKey]) -> list[Q]:
    """Return the topics of a request, each by its name or by its id."""
    return [
        kind(name=None, topic_id=key.value) if isinstance(key, TopicId) else kind(name=key) for key in keys
    ]


def _answered(
    topic: metadata.MetadataResponseTopic | delete_topics.DeletableTopicResult, keys: Sequence[TopicKey]
) -> TopicKey:
    """Return the name or id by which a topic in a response was asked for; all keys of a request are of one type."""
    if isinstance(keys[0], TopicId):
        return topic_id_in(topic.topic_id) or ""
    return topic.name or ""


def _description(topic: metadata.MetadataResponseTopic) -> TopicDescription | AdminError:
    error = error_in(topic.error_code, subject=f"topic {topic.name}" if topic.name else "")
    if error is not None:
        return error
    partitions = [
        PartitionDescription(
            partition.partition_index,
            known(partition.leader_id),
            partition.leader_epoch,
            partition.replica_nodes,
            partition.isr_nodes,
            partition.offline_replicas,
        )
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
    ]
    return TopicDescription(topic.name or "", topic_id_in(topic.topic_id), topic.is_internal, partitions)


def _creatable(topic: NewTopic) -> create_topics.CreatableTopic:
    return create_topics.CreatableTopic(
        name=topic.name,
        num_partitions=-1 if topic.partitions is None else topic.partitions,
        replication_factor=-1 if topic.replication_factor is None else topic.replication_factor,
        assignments=[
            create_topics.CreatableReplicaAssignment(partition_index=index, broker_ids=[*brokers])
            for index, brokers in enumerate(topic.assignments or ())
        ],
        configs=[
            create_topics.CreatableTopicConfig(name=name, value=value)
            for name, value in topic.configs.items()
        ],
    )


def _grown(name: str, count: int | NewPartitions) -> create_partitions.CreatePartitionsTopic:
    new = NewPartitions(count) if isinstance(count, int) else count
    assignments = None
    if new.assignments is not None:
        assignments = [
            create_partitions.CreatePartitionsAssignment(broker_ids=[*ids]) for ids in new.assignments
        ]
    return create_partitions.CreatePartitionsTopic(name=name, count=new.count, assignments=assignments)


def _created(topic: create_topics.CreatableTopicResult) -> CreatedTopic | AdminError:
    error = error_in(topic.error_code, topic.error_message)
    if error is not None:
        return error
    configs = {
        config.name: Config(
            config.name,
            config.value,
            enum_in(ConfigSource, config.config_source),
            config.read_only,
            config.is_sensitive,
        )
        for config in topic.configs or ()
    }
    numbers = known(topic.num_partitions), known(topic.replication_factor)
    return CreatedTopic(topic.name, topic_id_in(topic.topic_id), *numbers, configs)
