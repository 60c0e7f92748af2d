"""AlterConfigs (key 33), versions 0-2: sets topics and brokers anew; what is not named is not set any more.

It is there for clients older than IncrementalAlterConfigs. What is fixed when a topic is created stays, whether it is
named or not.
"""

from __future__ import annotations

from collections import Counter

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
from korvet.topics.config_admin import Change, Resource


def handle(request: AlterConfigsRequest, _caller: Caller, api: ClusterApi) -> AlterConfigsResponse:
    """Set each resource anew; one that cannot be does not keep the others from it."""
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    responses = []
    for resource in request.resources:
        if times[resource.resource_type, resource.resource_name] > 1:
            error = KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            responses.append(_answer(resource, error))
        else:
            responses.append(_altered(resource, api, validate_only=request.validate_only))
    return AlterConfigsResponse(responses=responses)


def refuse(request: AlterConfigsRequest, _caller: Caller, error: KafkaError) -> AlterConfigsResponse:
    """Answer every resource with the error."""
    return AlterConfigsResponse(responses=[_answer(resource, error) for resource in request.resources])


def _altered(
    resource: AlterConfigsResource, api: ClusterApi, *, validate_only: bool
) -> AlterConfigsResourceResponse:
    try:
        api.configs.alter(
            Resource(resource.resource_type, resource.resource_name),
            [Change(config.name, ConfigOperation.SET, config.value) for config in resource.configs],
            anew=True,
            validate_only=validate_only,
        )
    except KafkaError as error:
        return _answer(resource, error)
    return _answer(resource)


def _answer(resource: AlterConfigsResource, error: KafkaError | None = None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message or None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


register(AlterConfigsRequest, ClusterApi, handle, refuse)
