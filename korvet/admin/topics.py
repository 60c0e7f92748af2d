"""Questions about topics: which there are, their creation, growth and deletion. Reached as `AdminClient.topics`.

Knows Metadata, CreateTopics, CreatePartitions, DeleteTopics and DeleteRecords; not who answers them, which the client
finds: changes go to the controller, records are deleted by the leaders.

Topics as a cluster tells them, and as it is asked to make them: the types, and the messages they are made from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from korvet.admin.errors import AdminError, BrokerError, InvalidRequestError
from korvet.admin.types import (
    Config,
    TopicId,
    TopicPartition,
    bad_partition,
    bad_topic,
    by_topic,
    for_each,
    source_of,
    topic_id_of,
)
from korvet.errors import ErrorCode
from korvet.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from korvet.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from korvet.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from korvet.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

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


if TYPE_CHECKING:
    from korvet.admin.client import AdminClient
    from korvet.admin.connection import Address, Deadline

T = TypeVar("T")

TopicKey = str | TopicId
"""A topic by its name, or by its id."""


# Names are sent in versions that every broker has; ids need the one that knows them.
_DELETE_BY_NAME = (1, 5)
_DELETE_BY_ID = (6, 6)
_DESCRIBE_BY_ID = (12, 13)


class Topics:
    """The questions about topics."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def list(self) -> list[TopicListing]:
        """Return all topics by name. Raises AdminError.

        >>> [topic.name for topic in admin.topics.list() if topic.name == "orders"]
        ['orders']
        """
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        response = self._client.question(
            lambda deadline: self._client.ask_any(request, MetadataResponse, deadline)
        )
        found = [
            TopicListing(each.name or "", topic_id_of(each.topic_id), each.is_internal, len(each.partitions))
            for each in response.topics
        ]
        return sorted(found, key=lambda topic: topic.name)

    def describe(self, topics: Iterable[TopicKey]) -> dict[TopicKey, TopicDescription | AdminError]:
        """Return each topic, by name or id, or why it is not described.

        UnknownTopicOrPartitionError and UnknownTopicIdError where there is none; asking does not make it.

            >>> described = admin.topics.describe(["orders"])
            >>> len(settled(described)["orders"].partitions)
            1
        """
        return self._client.settle(topics, self._client.anywhere, self._describe, refuse=bad_topic)

    def create(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic | AdminError]:
        """Make topics, or only tell whether they could be made; a plain name has the cluster's defaults.

        Returns for each what it has become, or what kept it from being made: TopicExistsError, InvalidTopicError,
        InvalidPartitionsError, InvalidReplicationFactorError, InvalidReplicaAssignmentError, InvalidConfigError,
        PolicyViolationError; InvalidRequestError for a name given twice. After RequestTimedOutError it may be made yet.

            >>> made = admin.topics.create(
            ...     [NewTopic("bills", partitions=3, configs={"retention.ms": "60000"})]
            ... )
            >>> settled(made)["bills"].partitions
            3
        """
        given = [NewTopic(each) if isinstance(each, str) else each for each in topics]
        wanted = {each.name: each for each in given}
        twice = [name for name, times in Counter(each.name for each in given).items() if times > 1]

        def refuse(key: str) -> AdminError | None:
            if key in twice:
                return InvalidRequestError(ErrorCode.INVALID_REQUEST, "the topic is given twice")
            return bad_topic(key)

        def ask(
            address: Address, keys: Sequence[str], deadline: Deadline
        ) -> dict[str, CreatedTopic | AdminError]:
            return self._create(address, [wanted[key] for key in keys], deadline, validate_only=validate_only)

        return self._client.settle(wanted, self._client.controller, ask, refuse=refuse, repeatable=False)

    def create_partitions(
        self, counts: Mapping[str, int | NewPartitions], *, validate_only: bool = False
    ) -> dict[str, AdminError | None]:
        """Let topics grow to so many partitions in all, or only tell whether they could.

        Returns for each what kept it from growing: UnknownTopicOrPartitionError, InvalidPartitionsError where it has as
        many already, InvalidReplicaAssignmentError. After RequestTimedOutError it may grow yet.

            >>> admin.topics.create_partitions({"orders": 4}, validate_only=True)
            {'orders': None}
        """

        def ask(address: Address, keys: Sequence[str], deadline: Deadline) -> dict[str, AdminError | None]:
            return self._grow(
                address, {key: counts[key] for key in keys}, deadline, validate_only=validate_only
            )

        return self._client.settle(counts, self._client.controller, ask, refuse=bad_topic, repeatable=False)

    def delete(self, topics: Iterable[TopicKey]) -> dict[TopicKey, AdminError | None]:
        """Delete topics, by name or id, with their records; returns for each what kept it from being deleted.

        These are UnknownTopicOrPartitionError, UnknownTopicIdError and TopicDeletionDisabledError. A name is deleted
        whatever topic bears it by then; an id only that very topic. After RequestTimedOutError it may go yet.

            >>> admin.topics.delete(["bills"])
            {'bills': None}
        """
        return self._client.settle(
            topics, self._client.controller, self._delete, refuse=bad_topic, repeatable=False
        )

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | AdminError]:
        """Delete the records before these offsets, LATEST for all there are; returns where each log begins now.

        Or what kept them from being deleted: OffsetOutOfRangeError, UnknownTopicOrPartitionError, and
        PolicyViolationError for a topic that is only compacted.

            >>> admin.topics.delete_records({TopicPartition("orders", 0): 10})
            {TopicPartition(topic='orders', partition=0): 10}
        """

        def ask(
            address: Address, keys: Sequence[TopicPartition], deadline: Deadline
        ) -> dict[TopicPartition, int | AdminError]:
            return self._delete_records(address, {key: offsets[key] for key in keys}, deadline)

        return self._client.settle(offsets, self._client.leaders, ask, refuse=bad_partition)

    def _describe(
        self, address: Address, keys: Sequence[TopicKey], deadline: Deadline
    ) -> dict[TopicKey, TopicDescription | AdminError]:
        def ask(
            topics: Iterable[MetadataRequestTopic], within: tuple[int, int] | None
        ) -> Iterable[MetadataResponseTopic]:
            request = MetadataRequest(topics=[*topics], allow_auto_topic_creation=False)
            return self._client.ask(address, request, MetadataResponse, deadline, within).topics

        def by_name(names: Iterable[str]) -> dict[TopicKey, TopicDescription | AdminError]:
            found = ask((MetadataRequestTopic(name=each) for each in names), None)
            return {each.name or "": description_of(each) for each in found}

        def by_id(ids: Iterable[TopicId]) -> dict[TopicKey, TopicDescription | AdminError]:
            wanted = (MetadataRequestTopic(name=None, topic_id=each.value) for each in ids)
            found = {topic_id_of(each.topic_id): each for each in ask(wanted, _DESCRIBE_BY_ID)}
            return {key: description_of(each) for key, each in found.items() if key}

        return _of_both_kinds(address, keys, by_name, by_id)

    def _create(
        self, address: Address, topics: Sequence[NewTopic], deadline: Deadline, *, validate_only: bool
    ) -> dict[str, CreatedTopic | AdminError]:
        request = CreateTopicsRequest(
            topics=[creatable_of(each) for each in topics],
            timeout_ms=deadline.broker_ms(),
            validate_only=validate_only,
        )
        response = self._client.ask(address, request, CreateTopicsResponse, deadline)
        return for_each(
            address, [each.name for each in topics], {each.name: created_of(each) for each in response.topics}
        )

    def _grow(
        self,
        address: Address,
        counts: Mapping[str, int | NewPartitions],
        deadline: Deadline,
        *,
        validate_only: bool,
    ) -> dict[str, AdminError | None]:
        request = CreatePartitionsRequest(
            topics=[growing_of(name, count) for name, count in counts.items()],
            timeout_ms=deadline.broker_ms(),
            validate_only=validate_only,
        )
        response = self._client.ask(address, request, CreatePartitionsResponse, deadline)
        outcomes: dict[str, AdminError | None] = {
            each.name: BrokerError.of(each.error_code, each.error_message) for each in response.results
        }
        return for_each(address, counts, outcomes)

    def _delete(
        self, address: Address, keys: Sequence[TopicKey], deadline: Deadline
    ) -> dict[TopicKey, AdminError | None]:
        timeout_ms = deadline.broker_ms()

        def ask(request: DeleteTopicsRequest, within: tuple[int, int]) -> Iterable[DeletableTopicResult]:
            return self._client.ask(address, request, DeleteTopicsResponse, deadline, within).responses

        def by_name(names: Iterable[str]) -> dict[TopicKey, AdminError | None]:
            request = DeleteTopicsRequest(topic_names=[*names], timeout_ms=timeout_ms)
            found = ask(request, _DELETE_BY_NAME)
            return {each.name or "": BrokerError.of(each.error_code, each.error_message) for each in found}

        def by_id(ids: Iterable[TopicId]) -> dict[TopicKey, AdminError | None]:
            topics = [DeleteTopicState(topic_id=each.value) for each in ids]
            request = DeleteTopicsRequest(topics=topics, timeout_ms=timeout_ms)
            found = {topic_id_of(each.topic_id): each for each in ask(request, _DELETE_BY_ID)}
            return {
                key: BrokerError.of(each.error_code, each.error_message) for key, each in found.items() if key
            }

        return _of_both_kinds(address, keys, by_name, by_id)

    def _delete_records(
        self, address: Address, offsets: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, int | AdminError]:
        topics = [
            DeleteRecordsTopic(
                name=name,
                partitions=[
                    DeleteRecordsPartition(partition_index=each.partition, offset=offsets[each])
                    for each in some
                ],
            )
            for name, some in by_topic(offsets)
        ]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=deadline.broker_ms())
        response = self._client.ask(address, request, DeleteRecordsResponse, deadline)
        outcomes: dict[TopicPartition, int | AdminError] = {}
        for topic in response.topics:
            for each in topic.partitions:
                place = TopicPartition(topic.name, each.partition_index)
                outcomes[place] = BrokerError.of(each.error_code, f"partition {place}") or each.low_watermark
        return for_each(address, offsets, outcomes)


def _of_both_kinds(
    address: Address,
    keys: Sequence[TopicKey],
    by_name: Callable[[Iterable[str]], dict[TopicKey, T | AdminError]],
    by_id: Callable[[Iterable[TopicId]], dict[TopicKey, T | AdminError]],
) -> dict[TopicKey, T | AdminError]:
    """Ask about names and about ids: what fails of the one question keeps nothing of the other from being told."""
    outcomes: dict[TopicKey, T | AdminError] = {}
    names = [each for each in keys if isinstance(each, str)]
    ids = [each for each in keys if isinstance(each, TopicId)]
    try:
        outcomes |= by_name(names) if names else {}
    except AdminError as error:
        outcomes |= dict.fromkeys(names, error)
    try:
        outcomes |= by_id(ids) if ids else {}
    except AdminError as error:
        outcomes |= dict.fromkeys(ids, error)
    return for_each(address, keys, outcomes)
