"""Questions about settings of topics, brokers and groups. Reached as `AdminClient.configs`.

Knows DescribeConfigs, IncrementalAlterConfigs, AlterConfigs and ListConfigResources, and that a broker's own settings
are asked of that broker and changed there. The rest is changed by the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from korvet.admin.errors import AdminError, BrokerError, UnsupportedError
from korvet.admin.types import (
    Append,
    Change,
    Config,
    ConfigSource,
    ConfigSynonym,
    Delete,
    Resource,
    ResourceType,
    Set,
    Subtract,
    bad_resource,
    changed,
    for_each,
    source_of,
    type_of,
)
from korvet.protocol.messages import alter_configs, incremental_alter_configs
from korvet.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from korvet.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from korvet.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from korvet.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from korvet.protocol.types import ConfigOperation

if TYPE_CHECKING:
    from korvet.admin.client import AdminClient
    from korvet.admin.connection import Address, Deadline

    Route = Callable[[list[Resource], Deadline], Mapping[Resource, Address | AdminError]]

_OPERATIONS: dict[type[Change], int] = {
    Set: ConfigOperation.SET,
    Delete: ConfigOperation.DELETE,
    Append: ConfigOperation.APPEND,
    Subtract: ConfigOperation.SUBTRACT,
}

_OF_ONE_BROKER = (ResourceType.BROKER, ResourceType.BROKER_LOGGER)

# Where the values lie that were given to a resource itself: what AlterConfigs replaces.
_OWN = (ConfigSource.TOPIC, ConfigSource.BROKER, ConfigSource.GROUP, ConfigSource.CLIENT_METRICS)

# The version before lists one type, whatever is asked for.
_ANY_TYPE = (1, 1)


class Configs:
    """The questions about settings."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def describe(
        self,
        resources: Iterable[Resource],
        *,
        names: Iterable[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> dict[Resource, dict[str, Config] | AdminError]:
        """Return the settings of each by name, all or only those named, or why they are not told.

        UnknownTopicOrPartitionError for a topic that is not there, BrokerNotAvailableError for such a broker;
        UnsupportedError for documentation where the broker is older than Kafka 2.6.

            >>> orders = Resource.topic("orders")
            >>> settled(admin.configs.describe([orders], names=["cleanup.policy"]))[orders][
            ...     "cleanup.policy"
            ... ].value
            'delete'
        """
        wanted = None if names is None else [*names]

        def ask(
            address: Address, keys: Sequence[Resource], deadline: Deadline
        ) -> dict[Resource, dict[str, Config] | AdminError]:
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=key.type, resource_name=key.name, configuration_keys=wanted
                    )
                    for key in keys
                ],
                include_synonyms=synonyms,
                include_documentation=documentation,
            )
            response = self._client.ask(address, request, DescribeConfigsResponse, deadline)
            found = {_resource(each.resource_type, each.resource_name): each for each in response.results}
            return for_each(address, keys, {key: _configs(each) for key, each in found.items() if key})

        return self._client.settle(resources, self._route(self._client.anywhere), ask, refuse=bad_resource)

    def alter(
        self, changes: Mapping[Resource, Mapping[str, Change | str | None]], *, validate_only: bool = False
    ) -> dict[Resource, AdminError | None]:
        """Change settings, all of a resource or none, or only tell whether they could be changed.

        A str sets a value and None deletes it, which are short for Set and Delete; a list is changed by Append and
        Subtract. Returns for each resource what kept it from being changed: InvalidConfigError,
        UnknownTopicOrPartitionError, BrokerNotAvailableError, PolicyViolationError.

        A broker before Kafka 2.3 can only have all values replaced. There those that are there are read first: what
        somebody else changes in between is lost.

            >>> admin.configs.alter(
            ...     {Resource.topic("orders"): {"retention.ms": "3600000", "segment.ms": None}}
            ... )
            {Resource(type=<ResourceType.TOPIC: 2>, name='orders'): None}
        """

        def ask(
            address: Address, keys: Sequence[Resource], deadline: Deadline
        ) -> dict[Resource, AdminError | None]:
            some = {key: {name: _change(each) for name, each in changes[key].items()} for key in keys}
            if self._client.serves(address, IncrementalAlterConfigsRequest, deadline):
                return self._alter(address, some, deadline, validate_only=validate_only)
            return self._replace(address, some, deadline, validate_only=validate_only)

        return self._client.settle(changes, self._route(self._client.controller), ask, refuse=bad_resource)

    def resources(self, types: Iterable[ResourceType] = ()) -> list[Resource]:
        """Return what has settings of its own, of these types or of all that the cluster lists.

        Raises AdminError: UnsupportedError before Kafka 4.1.

            >>> Resource.topic("orders") in admin.configs.resources([ResourceType.TOPIC])
            True
        """
        request = ListConfigResourcesRequest(resource_types=[*types])
        response = self._client.question(
            lambda deadline: self._client.ask_any(request, ListConfigResourcesResponse, deadline, _ANY_TYPE)
        )
        error = BrokerError.of(response.error_code)
        if error is not None:
            raise error
        found = [_resource(each.resource_type, each.resource_name) for each in response.config_resources]
        return sorted(each for each in found if each is not None)

    def _route(self, others: Route) -> Route:
        """Return the route by which a broker answers for itself, and for the rest the one that is given."""

        def route(keys: Sequence[Resource], deadline: Deadline) -> dict[Resource, Address | AdminError]:
            ids = {key: number for key in keys if (number := _broker_id(key)) is not None}
            rest = [key for key in keys if key not in ids]
            places = dict(others(rest, deadline)) if rest else {}
            brokers = self._client.brokers([*ids.values()], deadline) if ids else {}
            return places | {key: brokers[number] for key, number in ids.items()}

        return route

    def _alter(
        self,
        address: Address,
        changes: Mapping[Resource, Mapping[str, Change]],
        deadline: Deadline,
        *,
        validate_only: bool,
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
        request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
        response = self._client.ask(address, request, IncrementalAlterConfigsResponse, deadline)
        return for_each(address, changes, _altered(response))

    def _replace(
        self,
        address: Address,
        changes: Mapping[Resource, Mapping[str, Change]],
        deadline: Deadline,
        *,
        validate_only: bool,
    ) -> dict[Resource, AdminError | None]:
        """Change settings as Kafka did before KIP-339: all that a resource is to have, at once."""
        resources = [
            DescribeConfigsResource(resource_type=key.type, resource_name=key.name, configuration_keys=None)
            for key in changes
        ]
        told = self._client.ask(
            address, DescribeConfigsRequest(resources=resources), DescribeConfigsResponse, deadline
        )
        now = {_resource(each.resource_type, each.resource_name): _configs(each) for each in told.results}
        outcomes: dict[Resource, AdminError | None] = {}
        new = []
        for key, some in changes.items():
            present = now.get(key)
            if isinstance(present, dict):
                try:
                    new.append(_whole(key, present, some))
                except UnsupportedError as error:
                    outcomes[key] = error
            elif present is not None:
                outcomes[key] = present
        if new:
            request = AlterConfigsRequest(resources=new, validate_only=validate_only)
            outcomes |= _altered(self._client.ask(address, request, AlterConfigsResponse, deadline))
        return for_each(address, changes, outcomes)


def _resource(number: int, name: str) -> Resource | None:
    """Return a resource as it came over the wire; None for one of a type that is not known here."""
    try:
        return Resource(ResourceType(number), name)
    except ValueError:
        return None


def _broker_id(resource: Resource) -> int | None:
    """Return which broker alone can answer; None where any can."""
    own = resource.type in _OF_ONE_BROKER and resource.name.isascii() and resource.name.isdigit()
    return int(resource.name) if own else None


def _change(given: Change | str | None) -> Change:
    if given is None:
        return Delete()
    return Set(given) if isinstance(given, str) else given


def _configs(result: DescribeConfigsResult) -> dict[str, Config] | AdminError:
    error = BrokerError.of(result.error_code, result.error_message)
    return error or {each.name: _config(each) for each in result.configs}


def _config(config: DescribeConfigsResourceResult) -> Config:
    return Config(
        config.name,
        config.value,
        source_of(config.config_source),
        config.read_only,
        config.is_sensitive,
        type_of(config.config_type),
        config.documentation or None,
        [ConfigSynonym(each.name, each.value, source_of(each.source)) for each in config.synonyms],
    )


def _altered(
    response: IncrementalAlterConfigsResponse | AlterConfigsResponse,
) -> dict[Resource, AdminError | None]:
    found = {_resource(each.resource_type, each.resource_name): each for each in response.responses}
    return {key: BrokerError.of(each.error_code, each.error_message) for key, each in found.items() if key}


def _whole(
    key: Resource, present: Mapping[str, Config], changes: Mapping[str, Change]
) -> alter_configs.AlterConfigsResource:
    """Return all that a resource is to have. Raises UnsupportedError where a value is not told that is to stay."""
    own = (ConfigSource.CLUSTER,) if key == Resource.cluster() else _OWN
    values = {name: config.value for name, config in present.items() if config.source in own}
    for name, change in changes.items():
        value = changed(present[name].value if name in present else None, change)
        if value is None:
            values.pop(name, None)
        else:
            values[name] = value
    for name, value in values.items():
        if value is None:
            raise UnsupportedError(
                f"the broker can only replace all settings of {key}, and does not tell the value of {name}"
            )
    configs = [alter_configs.AlterableConfig(name=name, value=value) for name, value in values.items()]
    return alter_configs.AlterConfigsResource(resource_type=key.type, resource_name=key.name, configs=configs)
