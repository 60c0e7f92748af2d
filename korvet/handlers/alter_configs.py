"""AlterConfigs (key 33), versions 0-2: sets all configs of topics and brokers; those that are not named are deleted.

It serves clients older than IncrementalAlterConfigs. What is fixed when a topic is created stays, named or not.

Errors: INVALID_CONFIG, INVALID_REQUEST, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import each_done, error_code, error_message
from korvet.handlers.registry import Caller, Outcome, Services, register
from korvet.handlers.rights import ALTER_CONFIGS, on_configs
from korvet.protocol.messages import alter_configs as wire
from korvet.protocol.types import ConfigOperation, ResourceType
from korvet.topics.config_admin import ConfigChange, ConfigResource


class _AlteredResource(Protocol):
    resource_type: int
    resource_name: str


_R = TypeVar("_R", bound=_AlteredResource)


def handle(
    request: wire.AlterConfigsRequest, _caller: Caller, services: Services
) -> wire.AlterConfigsResponse:
    """Set the configs of each resource; the failure of one leaves the others unaffected."""

    def alter(resource: wire.AlterConfigsResource) -> None:
        services.configs.alter(
            ConfigResource(resource.resource_type, resource.resource_name),
            [ConfigChange(config.name, ConfigOperation.SET, config.value) for config in resource.configs],
            reset=True,
            validate_only=request.validate_only,
        )

    return wire.AlterConfigsResponse(responses=alter_each(request.resources, alter))


def alter_each(
    resources: Sequence[_R], alter: Callable[[_R], None]
) -> list[wire.AlterConfigsResourceResponse]:
    """Alter each resource that is named once; returns for each whether it was altered, and if not, why."""
    times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    twice = KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")

    def altered(resource: _R) -> wire.AlterConfigsResourceResponse:
        if times[resource.resource_type, resource.resource_name] > 1:
            raise twice
        alter(resource)
        return _result(resource, None)

    return each_done(resources, altered, _result)


def refuse_each(
    resources: Sequence[_AlteredResource], error: KafkaError
) -> list[wire.AlterConfigsResourceResponse]:
    return [_result(resource, error) for resource in resources]


def _result(resource: _AlteredResource, error: KafkaError | None) -> wire.AlterConfigsResourceResponse:
    return wire.AlterConfigsResourceResponse(
        error_code=error_code(error),
        error_message=error_message(error),
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def configs_changed(request: Any, response: Any) -> Iterator[Outcome]:  # noqa: ANN401 - of two APIs
    """Yield the outcome of each resource, with the names of its configs."""
    names = {
        (resource.resource_type, resource.resource_name): ", ".join(
            config.name for config in resource.configs
        )
        for resource in request.resources
    }
    kinds: Mapping[int, str] = {kind.value: kind.name.lower() for kind in ResourceType}
    for result in response.responses:
        kind = kinds.get(result.resource_type, str(result.resource_type))
        configs = names.get((result.resource_type, result.resource_name), "")
        yield f"{kind} {result.resource_name} ({configs})", result.error_code


register(
    handle,
    lambda request, _caller, error: wire.AlterConfigsResponse(
        responses=refuse_each(request.resources, error)
    ),
    rights=[on_configs(ALTER_CONFIGS, "responses")],
    changes=configs_changed,
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
