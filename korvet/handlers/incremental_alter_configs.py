"""IncrementalAlterConfigs (key 44), versions 0-1: changes configs of topics and brokers (KIP-339).

What concerns one resource is done as a whole or not at all. When the answer is sent the worker that sends it acts on
the new configs, and every other one of the cluster as soon as it has heard of them.
"""

from __future__ import annotations

from collections import Counter

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.context import Caller, ClusterApi
from korvet.handlers.registry import register
from korvet.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from korvet.protocol.types import ConfigOperation
from korvet.topics.config_admin import Change, Resource


def handle(
    request: IncrementalAlterConfigsRequest, _caller: Caller, api: ClusterApi
) -> IncrementalAlterConfigsResponse:
    """Alter each resource; one that cannot be does not keep the others from it."""
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    responses = []
    for resource in request.resources:
        if times[resource.resource_type, resource.resource_name] > 1:
            error = KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            responses.append(_answer(resource, error))
        else:
            responses.append(_altered(resource, api, validate_only=request.validate_only))
    return IncrementalAlterConfigsResponse(responses=responses)


def refuse(
    request: IncrementalAlterConfigsRequest, _caller: Caller, error: KafkaError
) -> IncrementalAlterConfigsResponse:
    """Answer every resource with the error."""
    return IncrementalAlterConfigsResponse(
        responses=[_answer(resource, error) for resource in request.resources]
    )


def _altered(
    resource: AlterConfigsResource, api: ClusterApi, *, validate_only: bool
) -> AlterConfigsResourceResponse:
    try:
        api.configs.alter(
            Resource(resource.resource_type, resource.resource_name),
            [_change(config) for config in resource.configs],
            validate_only=validate_only,
        )
    except KafkaError as error:
        return _answer(resource, error)
    return _answer(resource)


def _change(config: AlterableConfig) -> Change:
    try:
        operation = ConfigOperation(config.config_operation)
    except ValueError:
        message = f"Unknown operation type {config.config_operation}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message) from None
    return Change(config.name, operation, config.value)


def _answer(resource: AlterConfigsResource, error: KafkaError | None = None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message or None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


register(IncrementalAlterConfigsRequest, ClusterApi, handle, refuse)
