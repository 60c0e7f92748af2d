"""ListConfigResources by bytes: topics and brokers, by type or all."""

from __future__ import annotations

from typing import Any

from korvet.errors import ErrorCode
from korvet.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.handlers.configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from tests.support.topic_client import Client


def listed(client: Client, *types: int, version: int = 1) -> Any:
    return client.call(ListConfigResourcesRequest(resource_types=list(types)), version)


def pairs(client: Client, *types: int) -> set[tuple[int, str]]:
    response = listed(client, *types)
    assert response.error_code == 0
    found = [(each.resource_type, each.resource_name) for each in response.config_resources]
    assert len(set(found)) == len(found)
    return set(found)


def test_topics_and_brokers_are_listed_by_type(client: Client, topic: str) -> None:
    client.create(topic)
    assert pairs(client, BROKER) == {(BROKER, "0")}
    topics = pairs(client, TOPIC)
    assert (TOPIC, topic) in topics
    assert {kind for kind, _ in topics} == {TOPIC}
    assert pairs(client, TOPIC, BROKER) == topics | {(BROKER, "0")}


def test_no_type_is_all_types(client: Client, topic: str) -> None:
    client.create(topic)
    assert {(BROKER, "0"), (TOPIC, topic)} <= pairs(client)


def test_what_has_no_configs_here_is_not_listed(client: Client) -> None:
    assert pairs(client, BROKER_LOGGER, CLIENT_METRICS) == set()
    # Only groups with configs are, as those of other tests of this broker may be.
    assert (GROUP, "orders") not in pairs(client, GROUP)


def test_an_unknown_type_is_refused(client: Client) -> None:
    for response in (listed(client, 0), listed(client, TOPIC, 3)):
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert response.config_resources == []


def test_version_0_lists_subscriptions_to_metrics_and_there_are_none(client: Client, topic: str) -> None:
    client.create(topic)
    response = listed(client, version=0)
    assert (response.error_code, response.config_resources) == (0, [])
