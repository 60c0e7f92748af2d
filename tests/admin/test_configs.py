"""Settings through the admin client: of topics, of one broker, of all brokers."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from korvet.admin.client import AdminClient
from korvet.admin.configs import Config
from korvet.admin.types import ConfigSource, Resource, ResourceType, settled
from korvet.errors import ErrorCode
from tests.admin.outcomes import code_of
from tests.support.broker import korvet_cluster
from tests.support.processes import wait_until
from tests.support.topic_client import Client


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
    assert [code_of(each) for each in outcomes.values()] == [code for _, code in changes.values()]
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
            found = settled(admin.configs.describe(wanted, names=["log.retention.ms"]))
            return {key: each["log.retention.ms"].value for key, each in found.items()} == wanted

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
