"""Questions about partitions: where they lie and move to, who leads them, what they hold, who writes to them.

Reached as `AdminClient.partitions`. Knows AlterPartitionReassignments, ListPartitionReassignments, ElectLeaders,
DescribeLogDirs and DescribeProducers: the controller answers the first three, every broker for itself
the fourth, and leaders the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from korvet.admin.errors import AdminError, BrokerError
from korvet.admin.types import TopicPartition, bad_partition, by_topic, for_each
from korvet.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from korvet.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from korvet.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from korvet.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from korvet.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from korvet.protocol.types import ElectionType

if TYPE_CHECKING:
    from korvet.admin.client import AdminClient
    from korvet.admin.connection import Address, Deadline

_NOT_TOLD = -1


class Reassignment(msgspec.Struct, frozen=True):
    """A move under way: the brokers that the partition lies on now, those that come, and those that go."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]


class LogSize(msgspec.Struct, frozen=True):
    """What a broker holds of a partition, in bytes. A `future` one is being copied between its directories.

    `offset_lag` is how many offsets it is behind.
    """

    size_bytes: int
    offset_lag: int
    future: bool


class LogDir(msgspec.Struct, frozen=True):
    """A directory of a broker, or why it cannot be read, and the bytes of its volume: None where they are not told."""

    path: str
    error: AdminError | None
    partitions: dict[TopicPartition, LogSize]
    total_bytes: int | None
    usable_bytes: int | None


class Producer(msgspec.Struct, frozen=True):
    """An idempotent producer of a partition, with the number and the time (ms) of the last record it has sent.

    Both are -1 where they are not known. `transaction_start` is the first offset of its open transaction, if any.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int | None


class Partitions:
    """The questions about partitions."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def reassign(
        self,
        moves: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> dict[TopicPartition, AdminError | None]:
        """Move partitions to these brokers, the preferred leader first; None gives up a move that is under way.

        Returns for each what kept its move from beginning: UnknownTopicOrPartitionError, InvalidReplicaAssignmentError,
        NoReassignmentInProgressError. To forbid that the number of replicas changes takes Kafka 4.1: UnsupportedError.

            >>> admin.partitions.reassign({TopicPartition("orders", 0): [0]})
            {TopicPartition(topic='orders', partition=0): None}
        """

        def ask(
            address: Address, keys: Sequence[TopicPartition], deadline: Deadline
        ) -> dict[TopicPartition, AdminError | None]:
            request = AlterPartitionReassignmentsRequest(
                timeout_ms=deadline.broker_ms(),
                allow_replication_factor_change=allow_replication_factor_change,
                topics=[_reassignable(name, some, moves) for name, some in by_topic(keys)],
            )
            response = self._client.ask(address, request, AlterPartitionReassignmentsResponse, deadline)
            _raise(response.error_code, response.error_message)
            outcomes: dict[TopicPartition, AdminError | None] = {
                TopicPartition(topic.name, each.partition_index): BrokerError.of(
                    each.error_code, each.error_message
                )
                for topic in response.responses
                for each in topic.partitions
            }
            return for_each(address, keys, outcomes)

        return self._client.settle(
            moves, self._client.controller, ask, refuse=bad_partition, repeatable=False
        )

    def reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the moves under way, of these partitions or of all. Raises AdminError.

        >>> admin.partitions.reassignments()
        {}
        """
        topics = None
        if partitions is not None:
            topics = [
                ListPartitionReassignmentsTopics(
                    name=name, partition_indexes=[each.partition for each in some]
                )
                for name, some in by_topic(_askable(partitions))
            ]

        def ask(deadline: Deadline) -> ListPartitionReassignmentsResponse:
            request = ListPartitionReassignmentsRequest(timeout_ms=deadline.broker_ms(), topics=topics)
            response = self._client.ask_controller(request, ListPartitionReassignmentsResponse, deadline)
            _raise(response.error_code, response.error_message)
            return response

        return {
            TopicPartition(topic.name, each.partition_index): Reassignment(
                each.replicas, each.adding_replicas, each.removing_replicas
            )
            for topic in self._client.question(ask).topics
            for each in topic.partitions
        }

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, AdminError | None]:
        """Have the preferred leaders elected, of these partitions or of all; returns what kept each from it.

        `unclean` elects any live replica where none is in sync, at the price of records. The errors are
        ElectionNotNeededError, PreferredLeaderNotAvailableError, EligibleLeadersNotAvailableError and
        UnknownTopicOrPartitionError. Of all partitions, those that need no election are left out, and AdminError is
        raised where nothing is told.

            >>> place = TopicPartition("orders", 0)
            >>> admin.partitions.elect_leaders([place])
            {TopicPartition(topic='orders', partition=0): ElectionNotNeededError(...)}
        """
        if partitions is None:
            return self._client.question(
                lambda deadline: _elected(
                    self._client.ask_controller(
                        _election(None, deadline, unclean=unclean), ElectLeadersResponse, deadline
                    )
                )
            )

        def ask(
            address: Address, keys: Sequence[TopicPartition], deadline: Deadline
        ) -> dict[TopicPartition, AdminError | None]:
            request = _election(keys, deadline, unclean=unclean)
            response = self._client.ask(address, request, ElectLeadersResponse, deadline)
            return for_each(address, keys, _elected(response))

        return self._client.settle(
            partitions, self._client.controller, ask, refuse=bad_partition, repeatable=False
        )

    def log_dirs(
        self, brokers: Iterable[int] | None = None, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[int, Sequence[LogDir] | AdminError]:
        """Return for each broker, these or all, its directories with these partitions or all, or why it tells none.

        BrokerNotAvailableError for a broker that is not there. Raises AdminError where the brokers are not told.

            >>> sizes = settled(admin.partitions.log_dirs())
        """
        wanted = [*self._client.topology().brokers] if brokers is None else brokers
        topics = None
        if partitions is not None:
            topics = [
                DescribableLogDirTopic(topic=name, partitions=[each.partition for each in some])
                for name, some in by_topic(_askable(partitions))
            ]

        def ask(
            address: Address, keys: Sequence[int], deadline: Deadline
        ) -> dict[int, Sequence[LogDir] | AdminError]:
            request = DescribeLogDirsRequest(topics=topics)
            response = self._client.ask(address, request, DescribeLogDirsResponse, deadline)
            _raise(response.error_code, None)
            found = [_log_dir(each) for each in response.results]
            return dict.fromkeys(keys, found)

        return self._client.settle(wanted, self._client.brokers, ask)

    def producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Sequence[Producer] | AdminError]:
        """Return for each partition its idempotent producers, or why they are not told.

        UnknownTopicOrPartitionError where there is no such partition; UnsupportedError before Kafka 2.8.

            >>> writing = settled(admin.partitions.producers([TopicPartition("orders", 0)]))
        """

        def ask(
            address: Address, keys: Sequence[TopicPartition], deadline: Deadline
        ) -> dict[TopicPartition, Sequence[Producer] | AdminError]:
            request = DescribeProducersRequest(
                topics=[
                    TopicRequest(name=name, partition_indexes=[each.partition for each in some])
                    for name, some in by_topic(keys)
                ]
            )
            response = self._client.ask(address, request, DescribeProducersResponse, deadline)
            found = {
                TopicPartition(topic.name, each.partition_index): _producers(each)
                for topic in response.topics
                for each in topic.partitions
            }
            return for_each(address, keys, found)

        return self._client.settle(partitions, self._client.leaders, ask, refuse=bad_partition)


def _raise(code: int, message: str | None) -> None:
    """Raise the error of a whole answer, where it has one."""
    error = BrokerError.of(code, message)
    if error is not None:
        raise error


def _reassignable(
    name: str, partitions: Iterable[TopicPartition], moves: Mapping[TopicPartition, Sequence[int] | None]
) -> ReassignableTopic:
    rows = []
    for each in partitions:
        replicas = moves[each]
        rows.append(
            ReassignablePartition(
                partition_index=each.partition, replicas=None if replicas is None else [*replicas]
            )
        )
    return ReassignableTopic(name=name, partitions=rows)


def _election(
    partitions: Iterable[TopicPartition] | None, deadline: Deadline, *, unclean: bool
) -> ElectLeadersRequest:
    topics = None
    if partitions is not None:
        topics = [
            TopicPartitions(topic=name, partitions=[each.partition for each in some])
            for name, some in by_topic(partitions)
        ]
    return ElectLeadersRequest(
        election_type=ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED,
        topic_partitions=topics,
        timeout_ms=deadline.broker_ms(),
    )


def _elected(response: ElectLeadersResponse) -> dict[TopicPartition, AdminError | None]:
    _raise(response.error_code, None)
    return {
        TopicPartition(topic.topic, each.partition_id): BrokerError.of(each.error_code, each.error_message)
        for topic in response.replica_election_results
        for each in topic.partition_result
    }


def _log_dir(result: DescribeLogDirsResult) -> LogDir:
    partitions = {
        TopicPartition(topic.name, each.partition_index): LogSize(
            each.partition_size, each.offset_lag, each.is_future_key
        )
        for topic in result.topics
        for each in topic.partitions
    }
    return LogDir(
        result.log_dir,
        BrokerError.of(result.error_code),
        partitions,
        None if result.total_bytes == _NOT_TOLD else result.total_bytes,
        None if result.usable_bytes == _NOT_TOLD else result.usable_bytes,
    )


def _producers(partition: PartitionResponse) -> Sequence[Producer] | AdminError:
    error = BrokerError.of(partition.error_code, partition.error_message)
    return error or [
        Producer(
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.last_timestamp,
            each.coordinator_epoch,
            None if each.current_txn_start_offset == _NOT_TOLD else each.current_txn_start_offset,
        )
        for each in partition.active_producers
    ]


def _askable(partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Return partitions once each. Raises the error of one that nobody can be asked about."""
    asked = set(partitions)
    for error in map(bad_partition, asked):
        if error is not None:
            raise error
    return asked
