"""Requests about the settings of topics, brokers and groups. Reached as `AdminClient.configs`.

A broker's own settings are described and changed by that broker. Any broker describes the others; the controller
changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from korvet.admin.connection import Deadline
from korvet.admin.errors import AdminError, UnsupportedError, error_in, raise_error_in
from korvet.admin.routing import Attempt, ClusterClient, Routes
from korvet.admin.types import ConfigSource, ConfigType, Outcomes, Resource, ResourceType
from korvet.protocol.messages import alter_configs, describe_configs, incremental_alter_configs
from korvet.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from korvet.protocol.types import ConfigOperation

_OF_ONE_BROKER = (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
# The sources of values that a resource itself has: these AlterConfigs replaces.
_OWN_SOURCES = (ConfigSource.TOPIC, ConfigSource.BROKER, ConfigSource.GROUP, ConfigSource.CLIENT_METRICS)
E = TypeVar("E", ConfigSource, ConfigType)
# Version 0 of ListConfigResources ignores the types of the request.
_ANY_TYPE = (1, 1)


class ConfigSynonym(msgspec.Struct, frozen=True):
    """A place where the value of a setting may come from, with the name of the setting there."""

    name: str
    value: str | None
    source: ConfigSource


class Config(msgspec.Struct, frozen=True):
    """A setting. `value` is None if it is sensitive.

    `synonyms` are the places that have a value, the effective one first. They and `documentation` are returned on
    request.
    """

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: ConfigType = ConfigType.UNKNOWN
    documentation: str | None = None
    synonyms: list[ConfigSynonym] = []

    @property
    def is_default(self) -> bool:
        """Whether the value is the default."""
        return self.source is ConfigSource.DEFAULT


class Set(msgspec.Struct, frozen=True):
    """Sets a setting to this value."""

    value: str


class Delete(msgspec.Struct, frozen=True):
    """Removes the value of a setting: it falls back to its next synonym or its default."""


class Append(msgspec.Struct, frozen=True):
    """Adds elements, separated by commas, to a setting that is a list. Elements that it has stay once."""

    value: str


class Subtract(msgspec.Struct, frozen=True):
    """Removes elements, separated by commas, from a setting that is a list."""

    value: str


Change = Set | Delete | Append | Subtract

_OPERATIONS: dict[type[Change], int] = {
    Set: ConfigOperation.SET,
    Delete: ConfigOperation.DELETE,
    Append: ConfigOperation.APPEND,
    Subtract: ConfigOperation.SUBTRACT,
}


class Configs:
    """The requests about settings."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def describe(
        self,
        resources: Iterable[Resource],
        *,
        names: Iterable[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> Outcomes[Resource, dict[str, Config]]:
        """Return the settings of each resource by name, all or only those named, or an error.

        UnknownTopicOrPartitionError for an unknown topic, BROKER_NOT_AVAILABLE for an unknown broker; UnsupportedError
        for documentation if the broker is older than Kafka 2.6.

            >>> orders = Resource.topic("orders")
            >>> settled(admin.configs.describe([orders], names=["cleanup.policy"]))[orders][
            ...     "cleanup.policy"
            ... ].value
            'delete'
        """
        named = None if names is None else [*names]

        def ask(attempt: Attempt, keys: Sequence[Resource]) -> Outcomes[Resource, dict[str, Config]]:
            return _describe(attempt, keys, named, synonyms=synonyms, documentation=documentation)

        return self._client.for_each(resources, self._route(self._client.to_any), ask)

    def alter(
        self, changes: Mapping[Resource, Mapping[str, Change | str | None]], *, validate_only: bool = False
    ) -> Outcomes[Resource, None]:
        """Change settings, all of a resource or none, or only check whether they could be changed.

        A str is short for Set and None for Delete; a list is changed by Append and Subtract. Returns None or an error
        for each resource: UnknownTopicOrPartitionError, INVALID_CONFIG, BROKER_NOT_AVAILABLE, POLICY_VIOLATION.

        A broker before Kafka 2.3 can only replace all values. Then the present ones are read first, and a change that
        another client makes in between is lost.

            >>> admin.configs.alter(
            ...     {Resource.topic("orders"): {"retention.ms": "3600000", "segment.ms": None}}
            ... )
            {Resource(type=<ResourceType.TOPIC: 2>, name='orders'): None}
        """

        def ask(attempt: Attempt, keys: Sequence[Resource]) -> Outcomes[Resource, None]:
            some = {key: {name: _change(each) for name, each in changes[key].items()} for key in keys}
            if attempt.serves(incremental_alter_configs.IncrementalAlterConfigsRequest):
                return _alter(attempt, some, validate_only=validate_only)
            return _replace(attempt, some, validate_only=validate_only)

        return self._client.for_each(changes, self._route(self._client.to_controller), ask)

    def resources(self, types: Iterable[ResourceType] = ()) -> list[Resource]:
        """Return the resources that have settings of their own, of these types or of all that the cluster lists.

        Raises AdminError: UnsupportedError before Kafka 4.1.

            >>> Resource.topic("orders") in admin.configs.resources([ResourceType.TOPIC])
            True
        """
        request = ListConfigResourcesRequest(resource_types=[*types])
        response = self._client.call_any(request, ListConfigResourcesResponse, _ANY_TYPE)
        raise_error_in(response.error_code)
        found = [_resource(each.resource_type, each.resource_name) for each in response.config_resources]
        return sorted(each for each in found if each is not None)

    def _route(
        self, others: Callable[[list[Resource], Deadline], Routes[Resource]]
    ) -> Callable[[list[Resource], Deadline], Routes[Resource]]:
        """Return the route to each broker for its own settings, and by `others` for the rest."""

        def route(keys: list[Resource], deadline: Deadline) -> Routes[Resource]:
            ids = {key: number for key in keys if (number := _broker_id(key)) is not None}
            rest = [key for key in keys if key not in ids]
            routes = dict(others(rest, deadline)) if rest else {}
            brokers = self._client.to_brokers([*ids.values()], deadline) if ids else {}
            return routes | {key: brokers[number] for key, number in ids.items()}

        return route


def enum_in(kind: type[E], number: int) -> E:
    """Return the member in a response; UNKNOWN for one of a later Kafka."""
    try:
        return kind(number)
    except ValueError:
        return kind.UNKNOWN


def _resource(number: int, name: str) -> Resource | None:
    """Return the resource in a response; None for an unknown type."""
    try:
        return Resource(ResourceType(number), name)
    except ValueError:
        return None


def _broker_id(resource: Resource) -> int | None:
    """Return the only broker that can answer; None if any can."""
    own = resource.type in _OF_ONE_BROKER and resource.name.isascii() and resource.name.isdigit()
    return int(resource.name) if own else None


def _describe(
    attempt: Attempt,
    keys: Iterable[Resource],
    names: list[str] | None = None,
    *,
    synonyms: bool = False,
    documentation: bool = False,
) -> Outcomes[Resource, dict[str, Config]]:
    request = describe_configs.DescribeConfigsRequest(
        resources=[
            describe_configs.DescribeConfigsResource(
                resource_type=key.type, resource_name=key.name, configuration_keys=names
            )
            for key in keys
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    response = attempt.send(request, describe_configs.DescribeConfigsResponse)
    return {
        key: error_in(each.error_code, each.error_message)
        or {config.name: _config(config) for config in each.configs}
        for each in response.results
        if (key := _resource(each.resource_type, each.resource_name))
    }


def _config(config: describe_configs.DescribeConfigsResourceResult) -> Config:
    return Config(
        config.name,
        config.value,
        enum_in(ConfigSource, config.config_source),
        config.read_only,
        config.is_sensitive,
        enum_in(ConfigType, config.config_type),
        config.documentation or None,
        [
            ConfigSynonym(each.name, each.value, enum_in(ConfigSource, each.source))
            for each in config.synonyms
        ],
    )


def _change(given: Change | str | None) -> Change:
    if given is None:
        return Delete()
    return Set(given) if isinstance(given, str) else given


def _alter(
    attempt: Attempt, changes: Mapping[Resource, Mapping[str, Change]], *, validate_only: bool
) -> dict[Resource, AdminError | None]:
    resources = [
        incremental_alter_configs.AlterConfigsResource(
            resource_type=key.type,
            resource_name=key.name,
            configs=[
                incremental_alter_configs.AlterableConfig(
                    name=name,
                    config_operation=_OPERATIONS[type(change)],
                    value=None if isinstance(change, Delete) else change.value,
                )
                for name, change in some.items()
            ],
        )
        for key, some in changes.items()
    ]
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=resources, validate_only=validate_only
    )
    return _altered(attempt.send(request, incremental_alter_configs.IncrementalAlterConfigsResponse))


def _replace(
    attempt: Attempt, changes: Mapping[Resource, Mapping[str, Change]], *, validate_only: bool
) -> dict[Resource, AdminError | None]:
    """Change settings as before KIP-339: send all values that a resource is to have, at once."""
    outcomes: dict[Resource, AdminError | None] = {}
    resources = []
    for key, present in _describe(attempt, changes).items():
        if isinstance(present, AdminError):
            outcomes[key] = present
            continue
        try:
            resources.append(_replacement(key, present, changes[key]))
        except UnsupportedError as error:
            outcomes[key] = error
    if resources:
        request = alter_configs.AlterConfigsRequest(resources=resources, validate_only=validate_only)
        outcomes |= _altered(attempt.send(request, alter_configs.AlterConfigsResponse))
    return outcomes


def _altered(
    response: incremental_alter_configs.IncrementalAlterConfigsResponse | alter_configs.AlterConfigsResponse,
) -> dict[Resource, AdminError | None]:
    return {
        key: error_in(each.error_code, each.error_message)
        for each in response.responses
        if (key := _resource(each.resource_type, each.resource_name))
    }


def _replacement(
    key: Resource, present: Mapping[str, Config], changes: Mapping[str, Change]
) -> alter_configs.AlterConfigsResource:
    """Return all values that a resource is to have. Raises UnsupportedError for a sensitive value that is to stay."""
    own = (ConfigSource.CLUSTER,) if key == Resource.cluster() else _OWN_SOURCES
    values = {name: config.value for name, config in present.items() if config.source in own}
    for name, change in changes.items():
        value = _changed(present[name].value if name in present else None, change)
        if value is None:
            values.pop(name, None)
        else:
            values[name] = value
    for name, value in values.items():
        if value is None:
            raise UnsupportedError(
                f"the broker can only replace all settings of {key}, and does not return the value of {name}"
            )
    configs = [alter_configs.AlterableConfig(name=name, value=value) for name, value in values.items()]
    return alter_configs.AlterConfigsResource(resource_type=key.type, resource_name=key.name, configs=configs)


def _changed(value: str | None, change: Change) -> str | None:
    """Return a value after a change; None if it is deleted or absent."""
    if isinstance(change, Set):
        return change.value
    if isinstance(change, Delete):
        return None
    present = _elements(value or "")
    if isinstance(change, Append):
        return ",".join(dict.fromkeys([*present, *_elements(change.value)]))
    return ",".join(each for each in present if each not in _elements(change.value))


def _elements(value: str) -> list[str]:
    return [element for each in value.split(",") if (element := each.strip())]
