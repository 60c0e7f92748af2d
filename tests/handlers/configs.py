"""Requests about configs for tests of handlers: one resource or several, and what is answered of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from korvet.protocol.messages import alter_configs, describe_configs, incremental_alter_configs
from tests.support.topic_client import Client

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT, GROUP_CONFIG = 1, 2, 3, 4, 5, 8


def wanted(kind: int, name: str, *keys: str) -> describe_configs.DescribeConfigsResource:
    """Ask for these configs of a resource, for all of them where none is named."""
    return describe_configs.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )


def describe(
    client: Client,
    *resources: describe_configs.DescribeConfigsResource,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> list[Any]:
    """Return the results for the resources."""
    request = describe_configs.DescribeConfigsRequest(
        resources=list(resources), include_synonyms=synonyms, include_documentation=documentation
    )
    results: list[Any] = client.call(request, version).results
    assert [(each.resource_type, each.resource_name) for each in results] == [
        (each.resource_type, each.resource_name) for each in resources
    ]
    return results


def configs_of(client: Client, kind: int, name: str, *keys: str, **asked: Any) -> dict[str, Any]:
    """Return the configs of one resource by name."""
    [result] = describe(client, wanted(kind, name, *keys), **asked)
    assert (result.error_code, result.error_message) == (0, None)
    return {each.name: each for each in result.configs}


def config(client: Client, kind: int, name: str, key: str, **asked: Any) -> Any:
    """Return one config of a resource."""
    return configs_of(client, kind, name, key, **asked)[key]


def value(client: Client, kind: int, name: str, key: str) -> str | None:
    """Return the value of one config of a resource."""
    found: str | None = config(client, kind, name, key).value
    return found


def chain(found: Any) -> list[tuple[str, str | None, int]]:
    """Return the synonyms of a config: name, value, source."""
    return [(each.name, each.value, each.source) for each in found.synonyms]


Operations = Mapping[str, str | tuple[int, str | None] | None]
"""The change of each config: a value to set, None to delete it, or an operation and its value."""


def altered(kind: int, name: str, operations: Operations) -> incremental_alter_configs.AlterConfigsResource:
    """Return the changes of a resource."""
    configs = []
    for key, what in operations.items():
        operation, given = what if isinstance(what, tuple) else (DELETE if what is None else SET, what)
        configs.append(
            incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=given)
        )
    return incremental_alter_configs.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )


def alter(
    client: Client,
    *resources: incremental_alter_configs.AlterConfigsResource,
    version: int = 1,
    validate_only: bool = False,
) -> list[Any]:
    """Change the resources and return the results."""
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=list(resources), validate_only=validate_only
    )
    responses: list[Any] = client.call(request, version).responses
    assert [(each.resource_type, each.resource_name) for each in responses] == [
        (each.resource_type, each.resource_name) for each in resources
    ]
    return responses


def change(client: Client, kind: int, name: str, operations: Operations, **options: Any) -> None:
    """Change one resource, and expect that to succeed."""
    [answer] = alter(client, altered(kind, name, operations), **options)
    assert (answer.error_code, answer.error_message) == (0, None)


def refused(client: Client, kind: int, name: str, operations: Operations, **options: Any) -> tuple[int, str]:
    """Change one resource, expect that to fail, and return the error's code and message."""
    [answer] = alter(client, altered(kind, name, operations), **options)
    assert answer.error_code != 0
    assert answer.error_message
    return answer.error_code, answer.error_message


def reset(kind: int, name: str, given: Mapping[str, str | None]) -> alter_configs.AlterConfigsResource:
    """Return all configs to set on a resource."""
    configs = [alter_configs.AlterableConfig(name=key, value=value) for key, value in given.items()]
    return alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


def replace(
    client: Client,
    *resources: alter_configs.AlterConfigsResource,
    version: int = 2,
    validate_only: bool = False,
) -> list[Any]:
    """Set all configs of the resources and return the results."""
    request = alter_configs.AlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    responses: list[Any] = client.call(request, version).responses
    return responses
