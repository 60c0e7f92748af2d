"""Requests of the admin client about brokers, partitions, settings and ACLs."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import pytest

from korvet.admin.acls import AclBinding
from korvet.admin.client import AdminClient
from korvet.admin.cluster import ApiVersions, BrokerNode, LogDir, LogSize
from korvet.admin.configs import Config
from korvet.admin.errors import BrokerError
from korvet.admin.types import ConfigSource, Resource, ResourceType, TopicPartition, settled
from korvet.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.types import AclOperation, AclPermissionType, AclResourceType, PatternType
from tests.admin.outcomes import code_of
from tests.support.broker import korvet_cluster
from tests.support.processes import wait_until
from tests.support.topic_client import Client


@pytest.mark.slow
def test_the_cluster_is_described_with_its_brokers(redis_server: str, tmp_path: Path) -> None:
    apart = ("--set", "namespace=described")
    with korvet_cluster(tmp_path, redis_server, *apart) as (zero, one), AdminClient(one.bootstrap) as admin:
        described = admin.cluster.describe()
        assert described.brokers == [
            BrokerNode(broker_id, *broker.address, rack=None, fenced=False)
            for broker_id, broker in enumerate((zero, one))
        ]
        assert described.controller in {0, 1}
        assert described.cluster_id == admin.topology().cluster_id != ""
        assert admin.cluster.describe(include_fenced=True) == described


def test_each_broker_reports_what_it_serves(admin: AdminClient) -> None:
    outcomes = admin.cluster.apis([0, 4711])
    assert code_of(outcomes[4711]) is ErrorCode.BROKER_NOT_AVAILABLE
    served = settled({0: outcomes[0]})[0]
    assert list(served) == sorted(served)
    assert served[18] == ApiVersions(18, "ApiVersions", *ApiVersionsRequest.api.advertised)
    assert admin.cluster.apis() == {0: served}


def test_the_number_of_replicas_can_be_held(admin: AdminClient, topic: str) -> None:
    place = TopicPartition(topic, 0)
    assert admin.partitions.reassign({place: [0]}, allow_replication_factor_change=False) == {place: None}


def held(directories: Iterable[LogDir]) -> dict[TopicPartition, LogSize]:
    """Return the partitions of all log directories: each node of Redis is one."""
    assert all(directory.error is None for directory in directories)
    return {item: size for directory in directories for item, size in directory.partitions.items()}


def test_logs_are_weighed(admin: AdminClient, client: Client, name: str) -> None:
    client.create(name, partitions=2)
    client.append(name, bytes(5000), partition=1)
    empty, full = TopicPartition(name, 0), TopicPartition(name, 1)
    outcomes = admin.partitions.log_dirs([0, 4711], [empty, full])
    assert code_of(outcomes[4711]) is ErrorCode.BROKER_NOT_AVAILABLE
    sizes = held(settled({0: outcomes[0]})[0])
    assert sizes.keys() == {empty, full}
    assert sizes[empty] == LogSize(0, 0, future=False)
    assert sizes[full].size_bytes > 0
    assert {empty, full} <= held(settled(admin.partitions.log_dirs())[0]).keys()


def test_partitions_that_cannot_be_asked_about_are_refused(admin: AdminClient, topic: str) -> None:
    unsendable, there = TopicPartition("x" * 40_000, 0), TopicPartition(topic, 0)
    outcomes = admin.partitions.reassign({unsendable: [0], there: [0]})
    assert list(map(code_of, outcomes.values())) == [ErrorCode.INVALID_TOPIC_EXCEPTION, None]
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        admin.partitions.reassignments([unsendable])
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        admin.partitions.log_dirs([0], [unsendable])
    assert (
        code_of(admin.partitions.elect_leaders([unsendable])[unsendable]) is ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    assert code_of(admin.partitions.producers([unsendable])[unsendable]) is ErrorCode.INVALID_TOPIC_EXCEPTION


def config(admin: AdminClient, resource: Resource, name: str) -> Config:
    return settled(admin.configs.describe([resource], names=[name]))[resource][name]


def value(admin: AdminClient, resource: Resource, name: str) -> str | None:
    return config(admin, resource, name).value


def test_what_cannot_be_changed_keeps_nothing_else_from_it(
    admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name)
    client.create(f"{name}-unknown")
    changes: dict[Resource, tuple[dict[str, str], ErrorCode | None]] = {
        Resource.topic(f"{name}-unknown"): ({"no.such.setting": "1"}, ErrorCode.INVALID_CONFIG),
        Resource.topic(f"{name}-gone"): ({"retention.ms": "1000"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        Resource.topic(name): ({"retention.ms": "1000"}, None),
        Resource.broker(4711): ({"num.partitions": "1"}, ErrorCode.BROKER_NOT_AVAILABLE),
        Resource.topic("x" * 40_000): ({"retention.ms": "1"}, ErrorCode.INVALID_REQUEST),
    }
    outcomes = admin.configs.alter({resource: change for resource, (change, _) in changes.items()})
    assert [code_of(outcome) for outcome in outcomes.values()] == [code for _, code in changes.values()]
    assert "no.such.setting" in str(outcomes[Resource.topic(f"{name}-unknown")])
    assert value(admin, Resource.topic(name), "retention.ms") == "1000"


@pytest.mark.slow
def test_a_broker_is_asked_about_itself_and_all_follow_what_is_set_for_all(
    redis_server: str, tmp_path: Path
) -> None:
    everybody, zero, one = Resource.cluster(), Resource.broker(0), Resource.broker(1)
    apart = ("--set", "namespace=apart")  # the broker of this process has id 0 in the other one
    with korvet_cluster(tmp_path, redis_server, *apart) as (first, _), AdminClient(first.bootstrap) as admin:

        def described_as(wanted: dict[Resource, str]) -> bool:
            result = settled(admin.configs.describe(wanted, names=["log.retention.ms"]))
            return {key: item["log.retention.ms"].value for key, item in result.items()} == wanted

        changes: dict[Resource, dict[str, str]] = {
            everybody: {"log.retention.ms": "5000000"},
            one: {"log.retention.ms": "6000000"},
        }
        assert admin.configs.alter(changes) == {everybody: None, one: None}
        wait_until(functools.partial(described_as, {zero: "5000000", one: "6000000"}), "each broker's own")
        assert config(admin, zero, "log.retention.ms").source == ConfigSource.CLUSTER
        assert config(admin, one, "log.retention.ms").source == ConfigSource.BROKER
        assert value(admin, everybody, "log.retention.ms") == "5000000"
        settled(admin.configs.alter({one: {"log.retention.ms": None}}))
        wait_until(functools.partial(described_as, {zero: "5000000", one: "5000000"}), "what is set for all")


@pytest.mark.parametrize(
    ("resource", "text"),
    [
        (Resource.topic("orders"), "topic orders"),
        (Resource.broker(3), "broker 3"),
        (Resource.cluster(), "broker default"),
        (Resource(ResourceType.BROKER_LOGGER, "3"), "broker-logger 3"),
        (Resource.group("billing"), "group billing"),
    ],
)
def test_a_resource_is_shown_as_what_it_is(resource: Resource, text: str) -> None:
    assert str(resource) == text


READ_ORDERS = AclBinding(
    AclResourceType.TOPIC,
    PatternType.LITERAL,
    "orders",
    "User:alice",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)


def test_without_an_authorizer_there_are_no_acls(admin: AdminClient) -> None:
    with pytest.raises(BrokerError, match="SECURITY_DISABLED"):
        admin.acls.describe()
    outcome = admin.acls.create([READ_ORDERS])[READ_ORDERS]
    assert isinstance(outcome, BrokerError)
    assert outcome.code is ErrorCode.SECURITY_DISABLED
