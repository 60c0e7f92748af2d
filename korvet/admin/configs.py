"""Requests about the settings of topics, brokers and groups. Reached as `AdminClient.configs`.

A broker's own settings are described and changed by that broker. Any broker describes the others; the controller
changes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from korvet.admin.errors import error_in
from korvet.admin.routing import Attempt, Requests, Route
from korvet.admin.types import ConfigSource, ConfigType, Outcomes, Resource, ResourceType, enum_in
from korvet.protocol.messages import describe_configs, incremental_alter_configs, list_config_resources
from korvet.protocol.types import ConfigOperation

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


class Configs(Requests):
    """The requests about settings."""

    def describe(
        self,
        resources: Iterable[Resource],
        *,
        names: Iterable[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> Outcomes[Resource, dict[str, Config]]:
        """Return the settings of each resource by name, all or only those named, or an error.

        UnknownTopicOrPartitionError for an unknown topic, BROKER_NOT_AVAILABLE for an unknown broker.

            >>> orders = Resource.topic("orders")
            >>> settled(admin.configs.describe([orders], names=["cleanup.policy"]))[orders][
            ...     "cleanup.policy"
            ... ].value
            'delete'
        """
        named = None if names is None else [*names]

        def ask(attempt: Attempt, keys: Sequence[Resource]) -> Outcomes[Resource, dict[str, Config]]:
            request = describe_configs.DescribeConfigsRequest(
                resources=[
                    describe_configs.DescribeConfigsResource(
                        resource_type=key.type, resource_name=key.name, configuration_keys=named
                    )
                    for key in keys
                ],
                include_synonyms=synonyms,
                include_documentation=documentation,
            )
            response = attempt.send(request, describe_configs.DescribeConfigsResponse)
            return {
                key: error_in(result.error_code, result.error_message)
                or {config.name: _config(config) for config in result.configs}
                for result in response.results
                if (key := _resource(result.resource_type, result.resource_name))
            }

        return self._client.for_each(resources, Route.ANY, ask)

    def alter(
        self, changes: Mapping[Resource, Mapping[str, Change | str | None]], *, validate_only: bool = False
    ) -> Outcomes[Resource, None]:
        """Change settings, all of a resource or none, or only check whether they could be changed.

        A str is short for Set and None for Delete; a list is changed by Append and Subtract. Returns None or an error
        for each resource: UnknownTopicOrPartitionError, INVALID_CONFIG, BROKER_NOT_AVAILABLE, POLICY_VIOLATION.

            >>> admin.configs.alter(
            ...     {Resource.topic("orders"): {"retention.ms": "3600000", "segment.ms": None}}
            ... )
            {Resource(type=<ResourceType.TOPIC: 2>, name='orders'): None}
        """

        def ask(attempt: Attempt, keys: Sequence[Resource]) -> Outcomes[Resource, None]:
            request = incremental_alter_configs.IncrementalAlterConfigsRequest(
                resources=[
                    incremental_alter_configs.AlterConfigsResource(
                        resource_type=key.type,
                        resource_name=key.name,
                        configs=[_alterable(name, change) for name, change in changes[key].items()],
                    )
                    for key in keys
                ],
                validate_only=validate_only,
            )
            response = attempt.send(request, incremental_alter_configs.IncrementalAlterConfigsResponse)
            return {
                key: error_in(result.error_code, result.error_message)
                for result in response.responses
                if (key := _resource(result.resource_type, result.resource_name))
            }

        return self._client.for_each(changes, Route.CONTROLLER, ask)

    def resources(self, types: Iterable[ResourceType] = ()) -> list[Resource]:
        """Return the resources that have settings of their own, of these types or of all that the cluster lists.

        Raises AdminError: UnsupportedError before Kafka 4.1.

            >>> Resource.topic("orders") in admin.configs.resources([ResourceType.TOPIC])
            True
        """
        request = list_config_resources.ListConfigResourcesRequest(resource_types=[*types])
        answer = list_config_resources.ListConfigResourcesResponse
        listed = self._client.call(request, answer, versions=_ANY_TYPE).config_resources
        resources = [_resource(resource.resource_type, resource.resource_name) for resource in listed]
        return sorted(resource for resource in resources if resource is not None)


def _resource(number: int, name: str) -> Resource | None:
    """Return the resource in a response; None for an unknown type."""
    try:
        return Resource(ResourceType(number), name)
    except ValueError:
        return None


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
            ConfigSynonym(synonym.name, synonym.value, enum_in(ConfigSource, synonym.source))
            for synonym in config.synonyms
        ],
    )


def _alterable(name: str, given: Change | str | None) -> incremental_alter_configs.AlterableConfig:
    change = Delete() if given is None else Set(given) if isinstance(given, str) else given
    return incremental_alter_configs.AlterableConfig(
        name=name,
        config_operation=_OPERATIONS[type(change)],
        value=None if isinstance(change, Delete) else change.value,
    )
