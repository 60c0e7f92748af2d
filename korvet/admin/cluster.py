"""Questions about the cluster: its brokers, and what they speak. Reached as `AdminClient.cluster`.

Knows DescribeCluster, Metadata in its place where a broker is too old, and ApiVersions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from korvet.admin.connection import Address
from korvet.admin.errors import AdminError, BrokerError, UnsupportedError
from korvet.protocol.messages import MESSAGES
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.messages.metadata import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from korvet.admin.client import AdminClient
    from korvet.admin.connection import Deadline

_NAMES = {cls.api.key: cls.__name__.removesuffix("Request") for cls in MESSAGES if cls.is_request()}


class BrokerNode(msgspec.Struct, frozen=True):
    """A broker by the address that clients are to use; a `fenced` one is known and takes no part now."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool


class ClusterDescription(msgspec.Struct, frozen=True):
    """A cluster; `controller` is the broker that takes changes, None where there is none now."""

    cluster_id: str | None
    controller: int | None
    brokers: list[BrokerNode]


class ApiVersions(msgspec.Struct, frozen=True):
    """An API and the versions of it that a broker serves, both included; no name where it is not known here."""

    key: int
    name: str
    first: int
    last: int


class FeatureLevels(msgspec.Struct, frozen=True):
    """The levels of a feature, both included."""

    first: int
    last: int


class Features(msgspec.Struct, frozen=True):
    """The features of a cluster (KIP-584): what a broker could do, and what all have settled on.

    `epoch` rises with every change of the latter; -1 where there is none.
    """

    supported: dict[str, FeatureLevels]
    finalized: dict[str, FeatureLevels]
    epoch: int


class Cluster:
    """The questions about the cluster."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def describe(self, *, include_fenced: bool = False) -> ClusterDescription:
        """Return the cluster with its brokers by id. Raises AdminError.

        That is UnsupportedError where fenced brokers are asked for before Kafka 4.0.

            >>> [broker.broker_id for broker in admin.cluster.describe().brokers]
            [0]
        """

        def ask(deadline: Deadline) -> ClusterDescription:
            request = DescribeClusterRequest(
                include_cluster_authorized_operations=False, include_fenced_brokers=include_fenced
            )
            try:
                return _described(self._client.ask_any(request, DescribeClusterResponse, deadline))
            except UnsupportedError:
                if include_fenced:
                    raise
            return _told(self._client.ask_any(MetadataRequest(topics=[]), MetadataResponse, deadline))

        described = self._client.question(ask)
        self._client.learn(Address(each.host, each.port) for each in described.brokers if not each.fenced)
        return described

    def apis(self, brokers: Iterable[int] | None = None) -> dict[int, dict[int, ApiVersions] | AdminError]:
        """Return for each broker, these or all, the APIs that it serves by key, or why it does not tell.

        BrokerNotAvailableError for a broker that is not there. Raises AdminError where the brokers are not told.

            >>> settled(admin.cluster.apis())[0][0].name
            'Produce'
        """
        wanted = [*self._client.topology().brokers] if brokers is None else brokers

        def ask(
            address: Address, keys: Sequence[int], deadline: Deadline
        ) -> dict[int, dict[int, ApiVersions] | AdminError]:
            response = self._client.api_versions(address, deadline)
            served = {
                each.api_key: ApiVersions(
                    each.api_key, _NAMES.get(each.api_key, ""), each.min_version, each.max_version
                )
                for each in sorted(response.api_keys, key=lambda each: each.api_key)
            }
            return dict.fromkeys(keys, served)

        return self._client.settle(wanted, self._client.brokers, ask)

    def features(self) -> Features:
        """Return the features of the cluster, as a broker that can be reached tells them. Raises AdminError.

        A broker before Kafka 2.7 tells none.

            >>> features = admin.cluster.features()
        """

        def ask(deadline: Deadline) -> Features:
            response = self._client.api_versions(self._client.reachable(deadline), deadline)
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

        return self._client.question(ask)


def _described(response: DescribeClusterResponse) -> ClusterDescription:
    error = BrokerError.of(response.error_code, response.error_message)
    if error is not None:
        raise error
    brokers = [
        BrokerNode(each.broker_id, each.host, each.port, each.rack, each.is_fenced)
        for each in response.brokers
    ]
    return _cluster(response.cluster_id, response.controller_id, brokers)


def _told(response: MetadataResponse) -> ClusterDescription:
    brokers = [
        BrokerNode(each.node_id, each.host, each.port, each.rack, fenced=False) for each in response.brokers
    ]
    return _cluster(response.cluster_id, response.controller_id, brokers)


def _cluster(cluster_id: str | None, controller_id: int, brokers: list[BrokerNode]) -> ClusterDescription:
    controller = controller_id if controller_id in {each.broker_id for each in brokers} else None
    return ClusterDescription(cluster_id, controller, sorted(brokers, key=lambda each: each.broker_id))
