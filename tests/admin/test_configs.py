"""Settings through the admin client: of topics, of one broker, of all brokers."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from korvet.admin.client import AdminClient
from korvet.admin.configs import Append, Change, Config, Delete, Set, Subtract
from korvet.admin.errors import (
    UnknownTopicOrPartitionError,
)
from korvet.admin.types import ConfigSource, ConfigType, Resource, ResourceType, settled
from korvet.errors import ErrorCode
from tests.admin.outcomes import code_of
from tests.support.broker import korvet_cluster
from tests.support.processes import wait_until
from tests.support.topic_client import Client


def config(admin: AdminClient, resource: Resource, name: str) -> Config:
    """Return one setting as it is now."""
    return settled(admin.configs.describe([resource], names=[name]))[resource][name]


def value(admin: AdminClient, resource: Resource, name: str) -> str | None:
    """Return its value."""
    return config(admin, resource, name).value


def test_a_setting_has_the_source_of_its_value(admin: AdminClient, client: Client, name: str) -> None:
    client.create(name, retention_ms="60000")
    orders = Resource.topic(name)
    every = settled(admin.configs.describe([orders], synonyms=True, documentation=True))[orders]
    assert [each.name for each in every.values()] == list(every)
    retention = every["retention.ms"]
    assert (retention.value, retention.source, retention.type) == (
        "60000",
        ConfigSource.TOPIC,
        ConfigType.LONG,
    )
    assert not retention.read_only
    assert not retention.sensitive
    assert not retention.is_default
    assert retention.documentation
    first = retention.synonyms[0]
    assert (first.name, first.value, first.source) == ("retention.ms", "60000", ConfigSource.TOPIC)
    assert every["cleanup.policy"].is_default
    assert every["cleanup.policy"].type == ConfigType.LIST
    bare = config(admin, orders, "retention.ms")
    assert (bare.value, bare.documentation, bare.synonyms) == ("60000", None, [])


def test_settings_are_set_deleted_and_lists_changed(admin: AdminClient, client: Client, name: str) -> None:
    client.create(name, retention_ms="60000")
    orders = Resource.topic(name)
    steps: list[tuple[dict[str, Change | str | None], str, str]] = [
        ({"cleanup.policy": Append("compact"), "retention.ms": "1000"}, "delete,compact", "1000"),
        ({"cleanup.policy": Append("compact"), "retention.ms": Set("2000")}, "delete,compact", "2000"),
        ({"cleanup.policy": Subtract("delete"), "segment.ms": "1000"}, "compact", "2000"),
        ({"cleanup.policy": Delete(), "retention.ms": "3000"}, "delete", "3000"),
    ]
    for changes, policy, retention in steps:
        assert admin.configs.alter({orders: changes}) == {orders: None}
        assert value(admin, orders, "cleanup.policy") == policy
        assert value(admin, orders, "retention.ms") == retention
    assert admin.configs.alter({orders: {"retention.ms": None}}) == {orders: None}
    assert config(admin, orders, "retention.ms").source != ConfigSource.TOPIC


def test_validation_changes_nothing(admin: AdminClient, client: Client, name: str) -> None:
    client.create(name, retention_ms="60000")
    orders = Resource.topic(name)
    assert admin.configs.alter({orders: {"retention.ms": "1"}}, validate_only=True) == {orders: None}
    outcome = admin.configs.alter({orders: {"retention.ms": "soon"}}, validate_only=True)[orders]
    assert code_of(outcome) is ErrorCode.INVALID_CONFIG
    assert value(admin, orders, "retention.ms") == "60000"


def test_what_cannot_be_changed_keeps_nothing_else_from_it(
    admin: AdminClient, client: Client, name: str
) -> None:
    for each in ("unknown", "value", "half", "list", "good"):
        client.create(f"{name}-{each}", retention_ms="60000")
    topics = {
        each: Resource.topic(f"{name}-{each}")
        for each in ("unknown", "value", "half", "list", "gone", "good")
    }
    outcomes = admin.configs.alter(
        {
            topics["unknown"]: {"no.such.setting": "1"},
            topics["value"]: {"retention.ms": "soon"},
            topics["half"]: {"retention.ms": "1000", "segment.ms": "soon"},
            topics["list"]: {"retention.ms": Append("1")},
            topics["gone"]: {"retention.ms": "1000"},
            topics["good"]: {"retention.ms": "1000"},
            Resource.broker(4711): {"num.partitions": "1"},
            Resource.topic("x" * 40_000): {"retention.ms": "1"},
        }
    )
    assert [code_of(each) for each in outcomes.values()] == [
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        None,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert "no.such.setting" in str(outcomes[topics["unknown"]])
    assert value(admin, topics["half"], "retention.ms") == "60000"
    assert value(admin, topics["good"], "retention.ms") == "1000"


def test_what_is_not_there_keeps_nothing_else_from_being_described(admin: AdminClient, topic: str) -> None:
    there, gone, away = Resource.topic(topic), Resource.topic(f"{topic}-gone"), Resource.broker(4711)
    outcomes = admin.configs.describe(
        [gone, there, away, Resource.broker(0)], names=["retention.ms", "log.level"]
    )
    assert isinstance(outcomes[gone], UnknownTopicOrPartitionError)
    assert code_of(outcomes[away]) is ErrorCode.BROKER_NOT_AVAILABLE
    assert list(settled({there: outcomes[there]})[there]) == ["retention.ms"]


@pytest.mark.slow
def test_a_broker_is_asked_about_itself_and_all_follow_what_is_set_for_all(
    redis_url: str, tmp_path: Path
) -> None:
    everybody, zero, one = Resource.cluster(), Resource.broker(0), Resource.broker(1)
    with (
        korvet_cluster(tmp_path, redis_url) as (first, _),
        AdminClient(first.bootstrap) as admin,
    ):

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


def test_what_has_settings_is_listed(admin: AdminClient, topic: str) -> None:
    every = admin.configs.resources()
    assert every == sorted(every)
    assert {Resource.topic(topic), Resource.broker(0)} <= set(every)
    topics = admin.configs.resources([ResourceType.TOPIC])
    assert {each.type for each in topics} == {ResourceType.TOPIC}


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
