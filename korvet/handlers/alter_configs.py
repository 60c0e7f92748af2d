"""AlterConfigs (key 33), versions 0-2: sets all configs of topics and brokers; those that are not named are deleted.

It serves clients older than IncrementalAlterConfigs. What is fixed when a topic is created stays, named or not.

Errors: INVALID_CONFIG, INVALID_REQUEST, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import each_done, error_fields
from korvet.handlers.registry import Caller, Outcome, Services, register
from korvet.handlers.rights import ALTER_CONFIGS, on_configs
from korvet.protocol.messages import alter_configs as wire
from korvet.protocol.messages import incremental_alter_configs as incremental
from korvet.protocol.types import ConfigOperation, ResourceType
from korvet.topics.config_admin import ConfigChange, ConfigResource

_Request: TypeAlias = wire.AlterConfigsRequest | incremental.IncrementalAlterConfigsRequest
_Resource: TypeAlias = wire.AlterConfigsResource | incremental.AlterConfigsResource


def handle(
    request: wire.AlterConfigsRequest, _caller: Caller, services: Services
) -> wire.AlterConfigsResponse:
    return wire.AlterConfigsResponse(responses=alter_each(request, services, reset=True))


def alter_each(
    request: _Request, services: Services, *, reset: bool
) -> list[wire.AlterConfigsResourceResponse]:
    """Alter each resource that is named once; the failure of one leaves the others unaffected.

    With `reset` configs that are not named are deleted.
    """
    resources: list[_Resource] = [*request.resources]
    times = Counter((resource.resource_type, resource.resource_name) for resource in resources)

    def alter(resource: _Resource) -> wire.AlterConfigsResourceResponse:
        key = (resource.resource_type, resource.resource_name)
        if times[key] > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        changes = [_change(config) for config in resource.configs]
        services.configs.alter(
            ConfigResource(*key), changes, reset=reset, validate_only=request.validate_only
        )
        return result(resource, None)

    return each_done(resources, alter, result)


def _change(config: wire.AlterableConfig | incremental.AlterableConfig) -> ConfigChange:
    if isinstance(config, wire.AlterableConfig):
        return ConfigChange(config.name, ConfigOperation.SET, config.value)
    try:
        operation = ConfigOperation(config.config_operation)
    except ValueError:
        message = f"Unknown operation type {config.config_operation}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message) from None
    return ConfigChange(config.name, operation, config.value)


def result(resource: _Resource, error: KafkaError | None) -> wire.AlterConfigsResourceResponse:
    return wire.AlterConfigsResourceResponse(
        **error_fields(error),
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def configs_changed(request: Any, response: Any) -> Iterator[Outcome]:  # noqa: ANN401 - of two APIs
    names = {
        (resource.resource_type, resource.resource_name): ", ".join(
            config.name for config in resource.configs
        )
        for resource in request.resources
    }
    kinds: Mapping[int, str] = {kind.value: kind.name.lower() for kind in ResourceType}
    for altered in response.responses:
        kind = kinds.get(altered.resource_type, str(altered.resource_type))
        configs = names.get((altered.resource_type, altered.resource_name), "")
        yield f"{kind} {altered.resource_name} ({configs})", altered.error_code


register(
    handle,
    lambda request, _caller, error: wire.AlterConfigsResponse(
        responses=[result(resource, error) for resource in request.resources]
    ),
    rights=[on_configs(ALTER_CONFIGS, "responses")],
    changes=configs_changed,
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
