"""Requests about the cluster: its brokers, and what they support. Reached as `AdminClient.cluster`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from korvet.admin.connection import Address, Deadline
from korvet.admin.errors import AdminError, UnsupportedError, raise_error_in
from korvet.admin.routing import Attempt, ClusterClient
from korvet.protocol.messages import MESSAGES
from korvet.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from korvet.protocol.messages.metadata import MetadataRequest, MetadataResponse

_NAMES = {cls.api.key: cls.__name__.removesuffix("Request") for cls in MESSAGES if cls.is_request()}


class BrokerNode(msgspec.Struct, frozen=True):
    """A broker by the address that clients use. A `fenced` one is registered but inactive."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


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


class Features(msgspec.Struct, frozen=True):
    """The features of a cluster (KIP-584): what a broker supports, and what the cluster has finalized.

    `epoch` rises with every change of the latter; -1 if there is none.
    """

    supported: dict[str, FeatureLevels]
    finalized: dict[str, FeatureLevels]
    epoch: int


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

    def apis(self, brokers: Iterable[int] | None = None) -> dict[int, dict[int, ApiVersions] | AdminError]:
        """Return for each broker, these or all, the APIs that it serves by key, or an error.

        BROKER_NOT_AVAILABLE for an unknown broker. Raises AdminError if the brokers cannot be listed.

            >>> settled(admin.cluster.apis())[0][0].name
            'Produce'
        """
        ids = [*self._client.topology().brokers] if brokers is None else brokers

        def ask(attempt: Attempt, keys: Sequence[int]) -> dict[int, dict[int, ApiVersions] | AdminError]:
            served = {
                each.api_key: ApiVersions(
                    each.api_key, _NAMES.get(each.api_key, ""), each.min_version, each.max_version
                )
                for each in sorted(attempt.api_versions().api_keys, key=lambda each: each.api_key)
            }
            return dict.fromkeys(keys, served)

        return self._client.for_each(ids, self._client.to_brokers, ask)

    def features(self) -> Features:
        """Return the features of the cluster, as the first reachable broker has them. Raises AdminError.

        A broker before Kafka 2.7 has none.

            >>> features = admin.cluster.features()
        """

        def attempt(deadline: Deadline) -> Features:
            response = Attempt(self._client, self._client.reachable(deadline), deadline).api_versions()
            return Features(
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


def _node(broker: DescribeClusterBroker) -> BrokerNode:
    return BrokerNode(broker.broker_id, broker.host, broker.port, broker.rack, broker.is_fenced)


def _description(
    cluster_id: str | None, controller_id: int, brokers: Iterable[BrokerNode]
) -> ClusterDescription:
    nodes = sorted(brokers, key=lambda each: each.broker_id)
    controller = controller_id if controller_id in {each.broker_id for each in nodes} else None
    return ClusterDescription(cluster_id, controller, nodes)
