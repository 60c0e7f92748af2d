"""AlterConfigs (key 33), versions 0-2: sets all configs of topics and brokers; those that are not named are deleted.

It serves clients older than IncrementalAlterConfigs. What is fixed when a topic is created stays, named or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.context import Caller, ClusterApi
from korvet.handlers.registry import register
from korvet.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from korvet.protocol.types import ConfigOperation
from korvet.topics.config_admin import ConfigChange, ConfigResource


class _AlteredResource(Protocol):
    resource_type: int
    resource_name: str


_R = TypeVar("_R", bound=_AlteredResource)


def handle(request: AlterConfigsRequest, _caller: Caller, api: ClusterApi) -> AlterConfigsResponse:
    """Set the configs of each resource; the failure of one leaves the others unaffected."""

    def alter(resource: AlterConfigsResource) -> None:
        api.configs.alter(
            ConfigResource(resource.resource_type, resource.resource_name),
            [ConfigChange(each.name, ConfigOperation.SET, each.value) for each in resource.configs],
            reset=True,
            validate_only=request.validate_only,
        )

    return AlterConfigsResponse(
        responses=[_result(resource, error) for resource, error in alter_each(request.resources, alter)]
    )


def refuse(request: AlterConfigsRequest, _caller: Caller, error: KafkaError) -> AlterConfigsResponse:
    """Answer every resource with the error."""
    return AlterConfigsResponse(responses=[_result(resource, error) for resource in request.resources])


def alter_each(
    resources: Sequence[_R], alter: Callable[[_R], None]
) -> Iterator[tuple[_R, KafkaError | None]]:
    """Alter each resource that is named once; yield it with the reason for which it was refused, if it was."""
    times = Counter((each.resource_type, each.resource_name) for each in resources)
    for resource in resources:
        refusal: KafkaError | None = None
        if times[resource.resource_type, resource.resource_name] > 1:
            refusal = KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        else:
            try:
                alter(resource)
            except KafkaError as error:
                refusal = error
        yield resource, refusal


def _result(resource: AlterConfigsResource, error: KafkaError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message or None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


register(AlterConfigsRequest, ClusterApi, handle, refuse)
