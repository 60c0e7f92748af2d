"""Requests about configs over a connection: of one resource, and what is answered of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from korvet.protocol.messages import alter_configs, describe_configs, incremental_alter_configs
from tests.support.topic_client import Client

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND = 0, 1, 2
DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC = 2, 3, 4


def configs_of(client: Client, kind: int, name: str, *keys: str, synonyms: bool = False) -> dict[str, Any]:
    """Return configs of a resource by name: these, or all of them if none is named."""
    resource = describe_configs.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    request = describe_configs.DescribeConfigsRequest(
        resources=[resource], include_synonyms=synonyms, include_documentation=False
    )
    [result] = client.call(request, 4).results
    assert (result.error_code, result.error_message) == (0, None)
    return {item.name: item for item in result.configs}


def config(client: Client, kind: int, name: str, key: str, *, synonyms: bool = False) -> Any:
    return configs_of(client, kind, name, key, synonyms=synonyms)[key]


def value(client: Client, kind: int, name: str, key: str) -> str | None:
    result: str | None = config(client, kind, name, key).value
    return result


def chain(result: Any) -> list[tuple[str, str | None, int]]:
    """Return the synonyms of a config: name, value, source."""
    return [(synonym.name, synonym.value, synonym.source) for synonym in result.synonyms]


Operations = Mapping[str, str | tuple[int, str | None] | None]
"""The change of each config: a value to set, None to delete it, or an operation and its value."""


def altered(kind: int, name: str, operations: Operations) -> incremental_alter_configs.AlterConfigsResource:
    configs = []
    for key, what in operations.items():
        operation, given = what if isinstance(what, tuple) else (DELETE if what is None else SET, what)
        configs.append(
            incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=given)
        )
    return incremental_alter_configs.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )


def _answer(
    client: Client, kind: int, name: str, operations: Operations, *, validate_only: bool = False
) -> Any:
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[altered(kind, name, operations)], validate_only=validate_only
    )
    [answer] = client.call(request, 1).responses
    return answer


def change(
    client: Client, kind: int, name: str, operations: Operations, *, validate_only: bool = False
) -> None:
    """Change a resource, and expect that to succeed."""
    answer = _answer(client, kind, name, operations, validate_only=validate_only)
    assert (answer.error_code, answer.error_message) == (0, None)


def refused(client: Client, kind: int, name: str, operations: Operations) -> tuple[int, str]:
    """Change a resource, expect that to fail, and return the error's code and message."""
    answer = _answer(client, kind, name, operations)
    assert answer.error_code != 0
    assert answer.error_message
    return answer.error_code, answer.error_message


def reset(kind: int, name: str, given: Mapping[str, str | None]) -> alter_configs.AlterConfigsResource:
    configs = [alter_configs.AlterableConfig(name=key, value=value) for key, value in given.items()]
    return alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
