"""Requests about the cluster, its brokers and where partitions are. Reached as `AdminClient.cluster` and `.partitions`.

`Cluster` has brokers and what they support; `Partitions` has replicas, leaders, logs and producers of partitions. The
controller reassigns and elects; each broker describes its own log directories, and leaders describe producers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from korvet.admin.connection import API_VERSIONS_REQUEST, Address, Deadline
from korvet.admin.errors import AdminError, error_in, raise_error_in
from korvet.admin.routing import Attempt, Requests, Route
from korvet.admin.types import (
    Outcomes,
    TopicPartition,
    errors_in,
    known,
    name_error,
    partitions_in,
    topics_of,
)
from korvet.protocol.messages import (
    all_messages,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    elect_leaders,
    update_features,
)
from korvet.protocol.messages import alter_partition_reassignments as reassigning
from korvet.protocol.messages import list_partition_reassignments as reassigned
from korvet.protocol.messages.api_versions import ApiVersionsResponse
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


class FeatureLevels(NamedTuple):
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
    """An ongoing reassignment: the present replicas, the added ones, and the removed ones."""

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


class Cluster(Requests):
    """The requests about the cluster."""

    def describe(self, *, include_fenced: bool = False) -> ClusterDescription:
        """Return the cluster with its brokers by id. Raises AdminError.

        >>> [broker.broker_id for broker in admin.cluster.describe().brokers]
        [0]
        """
        request = describe_cluster.DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=include_fenced
        )
        response = self._client.call(request, describe_cluster.DescribeClusterResponse)
        nodes = [
            BrokerNode(broker.broker_id, broker.host, broker.port, broker.rack, broker.is_fenced)
            for broker in sorted(response.brokers, key=lambda broker: broker.broker_id)
        ]
        self._client.remember(Address(node.host, node.port) for node in nodes if not node.fenced)
        is_known = any(node.broker_id == response.controller_id for node in nodes)
        return ClusterDescription(response.cluster_id, response.controller_id if is_known else None, nodes)

    def builds(self, brokers: Iterable[BrokerNode]) -> dict[int, BrokerBuild]:
        """Return what each broker runs, by its id, from its configs `korvet.version` and `korvet.format`.

        Each is asked once, for at most two seconds: nothing is known of one that is away, of Kafka's, or without the
        right to its configs.

            >>> admin.cluster.builds(admin.cluster.describe().brokers)[0].format
            2
        """
        return {broker.broker_id: self._build(broker) for broker in brokers if not broker.fenced}

    def _build(self, broker: BrokerNode) -> BrokerBuild:
        deadline = Deadline(min(_BUILD_SECONDS_MAX, self._client.deadline().left()))
        resource = describe_configs.DescribeConfigsResource(
            resource_type=ResourceType.BROKER,
            resource_name=str(broker.broker_id),
            configuration_keys=[_VERSION, _FORMAT],
        )
        request = describe_configs.DescribeConfigsRequest(resources=[resource])
        address = Address(broker.host, broker.port)
        try:
            response = self._client.send(address, request, describe_configs.DescribeConfigsResponse, deadline)
        except AdminError:
            return BrokerBuild()
        configs = {config.name: config.value for result in response.results for config in result.configs}
        number = configs.get(_FORMAT) or ""
        return BrokerBuild(configs.get(_VERSION), int(number) if number.isdecimal() else None)

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
            response = attempt.send(API_VERSIONS_REQUEST, ApiVersionsResponse)
            served = {
                api.api_key: ApiVersions(
                    api.api_key, names.get(api.api_key, ""), api.min_version, api.max_version
                )
                for api in sorted(response.api_keys, key=lambda api: api.api_key)
            }
            return dict.fromkeys(keys, served)

        return self._client.for_each(ids, Route.BROKER, ask)

    def features(self) -> ClusterFeatures:
        """Return the features of the cluster, as the first reachable broker has them. Raises AdminError.

        >>> features = admin.cluster.features()
        """
        response = self._client.call(API_VERSIONS_REQUEST, ApiVersionsResponse)
        return ClusterFeatures(
            {
                feature.name: FeatureLevels(feature.min_version, feature.max_version)
                for feature in response.supported_features
            },
            {
                feature.name: FeatureLevels(feature.min_version_level, feature.max_version_level)
                for feature in response.finalized_features
            },
            response.finalized_features_epoch,
        )

    def update_features(
        self,
        levels: Mapping[str, int],
        kind: FeatureUpgradeType = FeatureUpgradeType.UPGRADE,
        *,
        validate_only: bool = False,
    ) -> None:
        """Set the levels of features, all or none, 0 to remove one; a lower level needs a downgrade as `kind`.

        Raises AdminError: INVALID_UPDATE_VERSION if a feature or level is not supported or the kind is wrong.

            >>> admin.cluster.update_features({"transaction.version": 2})
        """
        request = update_features.UpdateFeaturesRequest(
            timeout_ms=self._client.deadline().broker_ms(),
            feature_updates=[
                update_features.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
                for name, level in levels.items()
            ],
            validate_only=validate_only,
        )
        response = self._client.call(request, update_features.UpdateFeaturesResponse, Route.CONTROLLER)
        for result in response.results:
            raise_error_in(result.error_code, result.error_message)


class Partitions(Requests):
    """The requests about partitions."""

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
        parts = {
            key: reassigning.ReassignablePartition(
                partition_index=key.partition, replicas=None if brokers is None else [*brokers]
            )
            for key, brokers in replicas.items()
        }

        def ask(attempt: Attempt, keys: Sequence[TopicPartition]) -> Outcomes[TopicPartition, None]:
            request = reassigning.AlterPartitionReassignmentsRequest(
                timeout_ms=attempt.timeout_ms,
                allow_replication_factor_change=allow_replication_factor_change,
                topics=topics_of(reassigning.ReassignableTopic, keys, parts),
            )
            response = attempt.send(request, reassigning.AlterPartitionReassignmentsResponse)
            return errors_in(response.responses)

        return self._client.for_each(replicas, Route.CONTROLLER, ask, idempotent=False)

    def reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the ongoing reassignments, of these partitions or of all. Raises AdminError.

        >>> admin.partitions.reassignments()
        {}
        """
        topics = None
        if partitions is not None:
            topics = topics_of(reassigned.ListPartitionReassignmentsTopics, _checked(partitions))
        request = reassigned.ListPartitionReassignmentsRequest(
            timeout_ms=self._client.deadline().broker_ms(), topics=topics
        )
        answer = reassigned.ListPartitionReassignmentsResponse
        return {
            key: Reassignment(result.replicas, result.adding_replicas, result.removing_replicas)
            for key, result in partitions_in(self._client.call(request, answer, Route.CONTROLLER).topics)
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
        request = elect_leaders.ElectLeadersRequest(
            election_type=ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED,
            topic_partitions=None,
            timeout_ms=self._client.deadline().broker_ms(),
        )

        answer = elect_leaders.ElectLeadersResponse

        def ask(attempt: Attempt, keys: Sequence[TopicPartition]) -> Outcomes[TopicPartition, None]:
            request.topic_partitions = topics_of(elect_leaders.TopicPartitions, keys)
            return errors_in(attempt.send(request, answer).replica_election_results)

        if partitions is None:
            return errors_in(self._client.call(request, answer, Route.CONTROLLER).replica_election_results)
        return self._client.for_each(partitions, Route.CONTROLLER, ask, idempotent=False)

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
            topics = topics_of(describe_log_dirs.DescribableLogDirTopic, _checked(partitions))

        def ask(attempt: Attempt, keys: Sequence[int]) -> Outcomes[int, Sequence[LogDir]]:
            request = describe_log_dirs.DescribeLogDirsRequest(topics=topics)
            response = attempt.send(request, describe_log_dirs.DescribeLogDirsResponse)
            dirs = [_log_dir(result) for result in response.results]
            return dict.fromkeys(keys, dirs)

        return self._client.for_each(ids, Route.BROKER, ask)

    def producers(self, partitions: Iterable[TopicPartition]) -> Outcomes[TopicPartition, Sequence[Producer]]:
        """Return the idempotent producers of each partition, or an error.

        UnknownTopicOrPartitionError for an unknown partition.

            >>> writing = settled(admin.partitions.producers([TopicPartition("orders", 0)]))
        """

        def ask(
            attempt: Attempt, keys: Sequence[TopicPartition]
        ) -> Outcomes[TopicPartition, Sequence[Producer]]:
            topics = topics_of(describe_producers.TopicRequest, keys)
            request = describe_producers.DescribeProducersRequest(topics=topics)
            response = attempt.send(request, describe_producers.DescribeProducersResponse)
            return {key: _producers(result) for key, result in partitions_in(response.topics)}

        return self._client.for_each(partitions, Route.LEADER, ask)


def log_sizes(dirs: Iterable[LogDir]) -> dict[TopicPartition, int]:
    """Return the bytes of logs, without those that are being copied."""
    return {
        key: log.size_bytes
        for directory in dirs
        for key, log in directory.partitions.items()
        if not log.future
    }


def _checked(partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Return the partitions. Raises the error of one whose name cannot be sent."""
    checked = set(partitions)
    for error in filter(None, map(name_error, checked)):
        raise error
    return checked


def _log_dir(result: describe_log_dirs.DescribeLogDirsResult) -> LogDir:
    partitions = {
        key: LogSize(log.partition_size, log.offset_lag, log.is_future_key)
        for key, log in partitions_in(result.topics)
    }
    volume = known(result.total_bytes), known(result.usable_bytes)
    return LogDir(result.log_dir, error_in(result.error_code), partitions, *volume)


def _producers(partition: describe_producers.PartitionResponse) -> Sequence[Producer] | AdminError:
    return error_in(partition.error_code, partition.error_message) or [
        Producer(
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_timestamp,
            producer.coordinator_epoch,
            known(producer.current_txn_start_offset),
        )
        for producer in partition.active_producers
    ]
