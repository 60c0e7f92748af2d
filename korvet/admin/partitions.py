"""Requests about partitions: where their replicas are, who leads them, their logs and their producers.

Reached as `AdminClient.partitions`. The controller reassigns and elects; each broker describes its own log directories,
and leaders describe producers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from korvet.admin.connection import Deadline
from korvet.admin.errors import AdminError, error_in, raise_error_in
from korvet.admin.routing import Attempt, ClusterClient
from korvet.admin.types import TopicPartition, by_topic, partition_name_error
from korvet.protocol.messages import alter_partition_reassignments, describe_log_dirs, elect_leaders
from korvet.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from korvet.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from korvet.protocol.types import ElectionType

_ABSENT = -1


class Reassignment(msgspec.Struct, frozen=True):
    """An ongoing reassignment: the present replicas, those that are added, and those that are removed."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]


class LogSize(msgspec.Struct, frozen=True):
    """The log of a partition on a broker. A `future` one is being copied between its directories.

    `offset_lag` is the number of offsets that it lacks.
    """

    size_bytes: int
    offset_lag: int
    future: bool


class LogDir(msgspec.Struct, frozen=True):
    """A log directory of a broker, or why it cannot be read, and the bytes of its volume, None if not known."""

    path: str
    error: AdminError | None
    partitions: dict[TopicPartition, LogSize]
    total_bytes: int | None
    usable_bytes: int | None


class Producer(msgspec.Struct, frozen=True):
    """An idempotent producer of a partition, with sequence and timestamp (ms) of its last record, -1 if not known.

    `transaction_start` is the first offset of its open transaction, if any.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int | None


class Partitions:
    """The requests about partitions."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def reassign(
        self,
        replicas: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> dict[TopicPartition, AdminError | None]:
        """Reassign partitions to these brokers, the preferred leader first. None cancels an ongoing reassignment.

        Returns None or an error for each: UnknownTopicOrPartitionError, INVALID_REPLICA_ASSIGNMENT,
        NO_REASSIGNMENT_IN_PROGRESS. To forbid a change of the number of replicas needs Kafka 4.1: UnsupportedError.

            >>> admin.partitions.reassign({TopicPartition("orders", 0): [0]})
            {TopicPartition(topic='orders', partition=0): None}
        """

        def ask(attempt: Attempt, keys: Sequence[TopicPartition]) -> dict[TopicPartition, AdminError | None]:
            request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(
                timeout_ms=attempt.timeout_ms,
                allow_replication_factor_change=allow_replication_factor_change,
                topics=[
                    alter_partition_reassignments.ReassignableTopic(
                        name=name, partitions=[reassignable(each) for each in some]
                    )
                    for name, some in by_topic(keys)
                ],
            )
            response = attempt.send(
                request, alter_partition_reassignments.AlterPartitionReassignmentsResponse
            )
            raise_error_in(response.error_code, response.error_message)
            return {
                TopicPartition(topic.name, each.partition_index): error_in(
                    each.error_code, each.error_message
                )
                for topic in response.responses
                for each in topic.partitions
            }

        def reassignable(key: TopicPartition) -> alter_partition_reassignments.ReassignablePartition:
            brokers = replicas[key]
            return alter_partition_reassignments.ReassignablePartition(
                partition_index=key.partition, replicas=None if brokers is None else [*brokers]
            )

        return self._client.for_each(
            replicas, self._client.to_controller, ask, error_of=partition_name_error, idempotent=False
        )

    def reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the ongoing reassignments, of these partitions or of all. Raises AdminError.

        >>> admin.partitions.reassignments()
        {}
        """
        topics = None
        if partitions is not None:
            topics = [
                ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
                for name, indexes in _indexes(_checked(partitions))
            ]

        def attempt(deadline: Deadline) -> ListPartitionReassignmentsResponse:
            controller = self._client.attempt_at_controller(deadline)
            request = ListPartitionReassignmentsRequest(timeout_ms=controller.timeout_ms, topics=topics)
            response = controller.send(request, ListPartitionReassignmentsResponse)
            raise_error_in(response.error_code, response.error_message)
            return response

        return {
            TopicPartition(topic.name, each.partition_index): Reassignment(
                each.replicas, each.adding_replicas, each.removing_replicas
            )
            for topic in self._client.retry(attempt).topics
            for each in topic.partitions
        }

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, AdminError | None]:
        """Elect the preferred leaders, of these partitions or of all. Returns None or an error for each.

        `unclean` elects any live replica if none is in sync: records are lost. Errors are ElectionNotNeededError,
        UnknownTopicOrPartitionError, PREFERRED_LEADER_NOT_AVAILABLE and ELIGIBLE_LEADERS_NOT_AVAILABLE. For all
        partitions, those that need no election are left out, and AdminError is raised if the request fails.

            >>> admin.partitions.elect_leaders([TopicPartition("orders", 0)])
            {TopicPartition(topic='orders', partition=0): ElectionNotNeededError(...)}
        """

        def ask(
            attempt: Attempt, keys: Sequence[TopicPartition] | None
        ) -> dict[TopicPartition, AdminError | None]:
            topics = None
            if keys is not None:
                topics = [
                    elect_leaders.TopicPartitions(topic=name, partitions=indexes)
                    for name, indexes in _indexes(keys)
                ]
            request = elect_leaders.ElectLeadersRequest(
                election_type=ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED,
                topic_partitions=topics,
                timeout_ms=attempt.timeout_ms,
            )
            response = attempt.send(request, elect_leaders.ElectLeadersResponse)
            raise_error_in(response.error_code)
            return {
                TopicPartition(topic.topic, each.partition_id): error_in(each.error_code, each.error_message)
                for topic in response.replica_election_results
                for each in topic.partition_result
            }

        if partitions is None:
            return self._client.retry(
                lambda deadline: ask(self._client.attempt_at_controller(deadline), None)
            )
        return self._client.for_each(
            partitions, self._client.to_controller, ask, error_of=partition_name_error, idempotent=False
        )

    def log_dirs(
        self, brokers: Iterable[int] | None = None, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[int, Sequence[LogDir] | AdminError]:
        """Return the log directories of each broker, these or all, with these partitions or all, or an error.

        BROKER_NOT_AVAILABLE for an unknown broker. Raises AdminError if the brokers cannot be listed.

            >>> sizes = settled(admin.partitions.log_dirs())
        """
        ids = [*self._client.topology().brokers] if brokers is None else brokers
        topics = None
        if partitions is not None:
            topics = [
                describe_log_dirs.DescribableLogDirTopic(topic=name, partitions=indexes)
                for name, indexes in _indexes(_checked(partitions))
            ]

        def ask(attempt: Attempt, keys: Sequence[int]) -> dict[int, Sequence[LogDir] | AdminError]:
            request = describe_log_dirs.DescribeLogDirsRequest(topics=topics)
            response = attempt.send(request, describe_log_dirs.DescribeLogDirsResponse)
            raise_error_in(response.error_code)
            dirs = [_log_dir(each) for each in response.results]
            return dict.fromkeys(keys, dirs)

        return self._client.for_each(ids, self._client.to_brokers, ask)

    def producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Sequence[Producer] | AdminError]:
        """Return the idempotent producers of each partition, or an error.

        UnknownTopicOrPartitionError for an unknown partition; UnsupportedError before Kafka 2.8.

            >>> writing = settled(admin.partitions.producers([TopicPartition("orders", 0)]))
        """

        def ask(
            attempt: Attempt, keys: Sequence[TopicPartition]
        ) -> dict[TopicPartition, Sequence[Producer] | AdminError]:
            topics = [TopicRequest(name=name, partition_indexes=indexes) for name, indexes in _indexes(keys)]
            response = attempt.send(DescribeProducersRequest(topics=topics), DescribeProducersResponse)
            return {
                TopicPartition(topic.name, each.partition_index): _producers(each)
                for topic in response.topics
                for each in topic.partitions
            }

        return self._client.for_each(partitions, self._client.to_leaders, ask, error_of=partition_name_error)


def _indexes(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    return [(topic, [each.partition for each in some]) for topic, some in by_topic(partitions)]


def _checked(partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Return each partition once. Raises the error of one whose name cannot be sent."""
    checked = set(partitions)
    for error in map(partition_name_error, checked):
        if error is not None:
            raise error
    return checked


def _log_dir(result: describe_log_dirs.DescribeLogDirsResult) -> LogDir:
    partitions = {
        TopicPartition(topic.name, each.partition_index): LogSize(
            each.partition_size, each.offset_lag, each.is_future_key
        )
        for topic in result.topics
        for each in topic.partitions
    }
    return LogDir(
        result.log_dir,
        error_in(result.error_code),
        partitions,
        None if result.total_bytes == _ABSENT else result.total_bytes,
        None if result.usable_bytes == _ABSENT else result.usable_bytes,
    )


def _producers(partition: PartitionResponse) -> Sequence[Producer] | AdminError:
    return error_in(partition.error_code, partition.error_message) or [
        Producer(
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.last_timestamp,
            each.coordinator_epoch,
            None if each.current_txn_start_offset == _ABSENT else each.current_txn_start_offset,
        )
        for each in partition.active_producers
    ]
