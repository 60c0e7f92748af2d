"""Requests about the cluster, its brokers and where partitions are. Reached as `AdminClient.cluster` and `.partitions`.

`Cluster` has brokers and what they support; `Partitions` has replicas, leaders, logs and producers of partitions. The
controller reassigns and elects; each broker describes its own log directories, and leaders describe producers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from korvet.admin.connection import Address, Deadline
from korvet.admin.errors import AdminError, UnsupportedError, error_in, raise_error_in
from korvet.admin.routing import Attempt, ClusterClient
from korvet.admin.types import (
    Outcomes,
    TopicPartition,
    by_topic,
    indexes_by_topic,
    known,
    name_error,
    partitions_in,
)
from korvet.protocol.messages import all_messages, describe_log_dirs, elect_leaders
from korvet.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from korvet.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from korvet.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
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
from korvet.protocol.messages.metadata import MetadataRequest, MetadataResponse
from korvet.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from korvet.protocol.types import ElectionType, FeatureUpgradeType, ResourceType

_VERSION, _FORMAT = "korvet.version", "korvet.format"
_BUILD_SECONDS_MAX = 2.0


class BrokerNode(msgspec.Struct, frozen=True):
    """A broker by the address that clients use. A `fenced` one is registered but inactive."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


class BrokerBuild(msgspec.Struct, frozen=True):
    """The version of Korvet that a broker runs, and its highest format of data; None for a broker that names none."""

    version: str | None = None
    format: int | None = None


class ClusterDescription(msgspec.Struct, frozen=True):
    """A cluster. `controller` is the broker that takes changes, None if there is none now."""

    cluster_id: str | None
    controller: int | None
    brokers: list[BrokerNode]


class ApiVersions(msgspec.Struct, frozen=True):
    """An API and the versions of it that a broker serves, both included; no name if it is not known here."""

    key: int
    name: str
    first: int
    last: int


class FeatureLevels(msgspec.Struct, frozen=True):
    """The levels of a feature, both included."""

    first: int
    last: int


class ClusterFeatures(msgspec.Struct, frozen=True):
    """The features of a cluster (KIP-584): what a broker supports, and what the cluster has finalized.

    `epoch` rises with every change of the latter; -1 if there is none.
    """

    supported: dict[str, FeatureLevels]
    finalized: dict[str, FeatureLevels]
    epoch: int


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


class Cluster:
    """The requests about the cluster."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def describe(self, *, include_fenced: bool = False) -> ClusterDescription:
        """Return the cluster with its brokers by id. Raises AdminError.

        That is UnsupportedError for fenced brokers before Kafka 4.0.

            >>> [broker.broker_id for broker in admin.cluster.describe().brokers]
            [0]
        """

        def attempt(deadline: Deadline) -> ClusterDescription:
            request = DescribeClusterRequest(
                include_cluster_authorized_operations=False, include_fenced_brokers=include_fenced
            )
            try:
                response = self._client.send_any(request, DescribeClusterResponse, deadline)
            except UnsupportedError:
                if include_fenced:
                    raise
                metadata = self._client.send_any(MetadataRequest(topics=[]), MetadataResponse, deadline)
                brokers = [
                    BrokerNode(each.node_id, each.host, each.port, each.rack, fenced=False)
                    for each in metadata.brokers
                ]
                return _description(metadata.cluster_id, metadata.controller_id, brokers)
            raise_error_in(response.error_code, response.error_message)
            return _description(response.cluster_id, response.controller_id, map(_node, response.brokers))

        found = self._client.retry(attempt)
        self._client.remember(Address(each.host, each.port) for each in found.brokers if not each.fenced)
        return found

    def builds(self, brokers: Iterable[BrokerNode]) -> dict[int, BrokerBuild]:
        """Return what each broker runs, by its id, from its configs `korvet.version` and `korvet.format`.

        Each is asked once, for at most two seconds: nothing is known of one that is away, of Kafka's, or without the
        right to its configs.

            >>> admin.cluster.builds(admin.cluster.describe().brokers)[0].format
            2
        """

        def build(broker: BrokerNode) -> BrokerBuild:
            deadline = Deadline(min(_BUILD_SECONDS_MAX, self._client.deadline().left()))
            attempt = Attempt(self._client, Address(broker.host, broker.port), deadline)
            resource = DescribeConfigsResource(
                resource_type=ResourceType.BROKER,
                resource_name=str(broker.broker_id),
                configuration_keys=[_VERSION, _FORMAT],
            )
            try:
                response = attempt.send(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse)
            except AdminError:
                return BrokerBuild()
            configs = {config.name: config.value for result in response.results for config in result.configs}
            number = configs.get(_FORMAT) or ""
            return BrokerBuild(configs.get(_VERSION), int(number) if number.isdecimal() else None)

        return {broker.broker_id: build(broker) for broker in brokers if not broker.fenced}

    def apis(self, brokers: Iterable[int] | None = None) -> Outcomes[int, dict[int, ApiVersions]]:
        """Return for each broker, these or all, the APIs that it serves by key, or an error.

        BROKER_NOT_AVAILABLE for an unknown broker. Raises AdminError if the brokers cannot be listed.

            >>> settled(admin.cluster.apis())[0][0].name
            'Produce'
        """
        ids = [*self._client.topology().brokers] if brokers is None else brokers
        names = {
            cls.api.key: cls.__name__.removesuffix("Request") for cls in all_messages() if cls.is_request()
        }

        def ask(attempt: Attempt, keys: Sequence[int]) -> Outcomes[int, dict[int, ApiVersions]]:
            served = {
                each.api_key: ApiVersions(
                    each.api_key, names.get(each.api_key, ""), each.min_version, each.max_version
                )
                for each in sorted(attempt.api_versions().api_keys, key=lambda each: each.api_key)
            }
            return dict.fromkeys(keys, served)

        return self._client.for_each(ids, self._client.to_brokers, ask)

    def features(self) -> ClusterFeatures:
        """Return the features of the cluster, as the first reachable broker has them. Raises AdminError.

        A broker before Kafka 2.7 has none.

            >>> features = admin.cluster.features()
        """

        def attempt(deadline: Deadline) -> ClusterFeatures:
            response = Attempt(self._client, self._client.reachable(deadline), deadline).api_versions()
            return ClusterFeatures(
                {
                    each.name: FeatureLevels(each.min_version, each.max_version)
                    for each in response.supported_features
                },
                {
                    each.name: FeatureLevels(each.min_version_level, each.max_version_level)
                    for each in response.finalized_features
                },
                response.finalized_features_epoch,
            )

        return self._client.retry(attempt)

    def update_features(
        self,
        levels: Mapping[str, int],
        kind: FeatureUpgradeType = FeatureUpgradeType.UPGRADE,
        *,
        validate_only: bool = False,
    ) -> None:
        """Set the levels of features, all or none, 0 to remove one; a lower level needs a downgrade as `kind`.

        Raises AdminError: INVALID_UPDATE_VERSION if a feature or level is not supported or the kind is wrong;
        UnsupportedError for downgrades and validate_only before Kafka 3.3.

            >>> admin.cluster.update_features({"transaction.version": 2})
        """
        updates = [
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level in levels.items()
        ]

        def attempt(deadline: Deadline) -> None:
            controller = self._client.attempt_at_controller(deadline)
            request = UpdateFeaturesRequest(
                timeout_ms=controller.timeout_ms, feature_updates=updates, validate_only=validate_only
            )
            response = controller.send(request, UpdateFeaturesResponse)
            raise_error_in(response.error_code, response.error_message)
            for each in response.results:
                raise_error_in(each.error_code, each.error_message)

        self._client.retry(attempt)


class Partitions:
    """The requests about partitions."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def reassign(
        self,
        replicas: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> Outcomes[TopicPartition, None]:
        """Reassign partitions to these brokers, the preferred leader first. None cancels an ongoing reassignment.

        Returns None or an error for each: UnknownTopicOrPartitionError, INVALID_REPLICA_ASSIGNMENT,
        NO_REASSIGNMENT_IN_PROGRESS. To forbid a change of the number of replicas needs Kafka 4.1: UnsupportedError.

            >>> admin.partitions.reassign({TopicPartition("orders", 0): [0]})
            {TopicPartition(topic='orders', partition=0): None}
        """

        def wanted(key: TopicPartition) -> ReassignablePartition:
            brokers = replicas[key]
            return ReassignablePartition(
                partition_index=key.partition, replicas=None if brokers is None else [*brokers]
            )

        def ask(attempt: Attempt, keys: Sequence[TopicPartition]) -> Outcomes[TopicPartition, None]:
            request = AlterPartitionReassignmentsRequest(
                timeout_ms=attempt.timeout_ms,
                allow_replication_factor_change=allow_replication_factor_change,
                topics=[
                    ReassignableTopic(name=name, partitions=some) for name, some in by_topic(keys, wanted)
                ],
            )
            response = attempt.send(request, AlterPartitionReassignmentsResponse)
            raise_error_in(response.error_code, response.error_message)
            return {
                key: error_in(each.error_code, each.error_message)
                for key, each in partitions_in(response.responses)
            }

        return self._client.for_each(replicas, self._client.to_controller, ask, idempotent=False)

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
                for name, indexes in _checked_by_topic(partitions)
            ]

        def attempt(deadline: Deadline) -> ListPartitionReassignmentsResponse:
            controller = self._client.attempt_at_controller(deadline)
            request = ListPartitionReassignmentsRequest(timeout_ms=controller.timeout_ms, topics=topics)
            response = controller.send(request, ListPartitionReassignmentsResponse)
            raise_error_in(response.error_code, response.error_message)
            return response

        return {
            key: Reassignment(each.replicas, each.adding_replicas, each.removing_replicas)
            for key, each in partitions_in(self._client.retry(attempt).topics)
        }

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> Outcomes[TopicPartition, None]:
        """Elect the preferred leaders, of these partitions or of all. Returns None or an error for each.

        `unclean` elects any live replica if none is in sync: records are lost. Errors are ElectionNotNeededError,
        UnknownTopicOrPartitionError, PREFERRED_LEADER_NOT_AVAILABLE and ELIGIBLE_LEADERS_NOT_AVAILABLE. For all
        partitions, those that need no election are left out, and AdminError is raised if the request fails.

            >>> admin.partitions.elect_leaders([TopicPartition("orders", 0)])
            {TopicPartition(topic='orders', partition=0): ElectionNotNeededError(...)}
        """

        def ask(attempt: Attempt, keys: Sequence[TopicPartition] | None) -> Outcomes[TopicPartition, None]:
            topics = None
            if keys is not None:
                topics = [
                    elect_leaders.TopicPartitions(topic=name, partitions=indexes)
                    for name, indexes in indexes_by_topic(keys)
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
        return self._client.for_each(partitions, self._client.to_controller, ask, idempotent=False)

    def log_dirs(
        self, brokers: Iterable[int] | None = None, partitions: Iterable[TopicPartition] | None = None
    ) -> Outcomes[int, Sequence[LogDir]]:
        """Return the log directories of each broker, these or all, with these partitions or all, or an error.

        BROKER_NOT_AVAILABLE for an unknown broker. Raises AdminError if the brokers cannot be listed.

            >>> sizes = settled(admin.partitions.log_dirs())
        """
        ids = [*self._client.topology().brokers] if brokers is None else brokers
        topics = None
        if partitions is not None:
            topics = [
                describe_log_dirs.DescribableLogDirTopic(topic=name, partitions=indexes)
                for name, indexes in _checked_by_topic(partitions)
            ]

        def ask(attempt: Attempt, keys: Sequence[int]) -> Outcomes[int, Sequence[LogDir]]:
            request = describe_log_dirs.DescribeLogDirsRequest(topics=topics)
            response = attempt.send(request, describe_log_dirs.DescribeLogDirsResponse)
            raise_error_in(response.error_code)
            dirs = [_log_dir(each) for each in response.results]
            return dict.fromkeys(keys, dirs)

        return self._client.for_each(ids, self._client.to_brokers, ask)

    def producers(self, partitions: Iterable[TopicPartition]) -> Outcomes[TopicPartition, Sequence[Producer]]:
        """Return the idempotent producers of each partition, or an error.

        UnknownTopicOrPartitionError for an unknown partition; UnsupportedError before Kafka 2.8.

            >>> writing = settled(admin.partitions.producers([TopicPartition("orders", 0)]))
        """

        def ask(
            attempt: Attempt, keys: Sequence[TopicPartition]
        ) -> Outcomes[TopicPartition, Sequence[Producer]]:
            topics = [
                TopicRequest(name=name, partition_indexes=indexes) for name, indexes in indexes_by_topic(keys)
            ]
            response = attempt.send(DescribeProducersRequest(topics=topics), DescribeProducersResponse)
            return {key: _producers(each) for key, each in partitions_in(response.topics)}

        return self._client.for_each(partitions, self._client.to_leaders, ask)


def _node(broker: DescribeClusterBroker) -> BrokerNode:
    return BrokerNode(broker.broker_id, broker.host, broker.port, broker.rack, broker.is_fenced)


def _description(
    cluster_id: str | None, controller_id: int, brokers: Iterable[BrokerNode]
) -> ClusterDescription:
    nodes = sorted(brokers, key=lambda each: each.broker_id)
    controller = controller_id if controller_id in {each.broker_id for each in nodes} else None
    return ClusterDescription(cluster_id, controller, nodes)


def log_sizes(dirs: Iterable[LogDir]) -> dict[TopicPartition, int]:
    """Return the bytes of logs, without those that are being copied."""
    return {key: log.size_bytes for each in dirs for key, log in each.partitions.items() if not log.future}


def _checked_by_topic(partitions: Iterable[TopicPartition]) -> Iterator[tuple[str, list[int]]]:
    """Yield topics with their partitions, each once. Raises the error of one whose name cannot be sent."""
    checked = set(partitions)
    for error in map(name_error, checked):
        if error is not None:
            raise error
    return indexes_by_topic(checked)


def _log_dir(result: describe_log_dirs.DescribeLogDirsResult) -> LogDir:
    partitions = {
        key: LogSize(each.partition_size, each.offset_lag, each.is_future_key)
        for key, each in partitions_in(result.topics)
    }
    volume = known(result.total_bytes), known(result.usable_bytes)
    return LogDir(result.log_dir, error_in(result.error_code), partitions, *volume)


def _producers(partition: PartitionResponse) -> Sequence[Producer] | AdminError:
    return error_in(partition.error_code, partition.error_message) or [
        Producer(
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.last_timestamp,
            each.coordinator_epoch,
            known(each.current_txn_start_offset),
        )
        for each in partition.active_producers
    ]
