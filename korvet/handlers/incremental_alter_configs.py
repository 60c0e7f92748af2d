"""IncrementalAlterConfigs (key 44), versions 0-1: changes configs of topics and brokers (KIP-339).

The changes of one resource are made as a whole or not at all. When the response is sent the worker that sends it acts
on the new configs, and every other worker of the cluster once it is notified of them.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.alter_configs import alter_each
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
from korvet.topics.config_admin import ConfigChange, ConfigResource


def handle(
    request: IncrementalAlterConfigsRequest, _caller: Caller, api: ClusterApi
) -> IncrementalAlterConfigsResponse:
    """Alter each resource; the failure of one leaves the others unaffected."""

    def alter(resource: AlterConfigsResource) -> None:
        api.configs.alter(
            ConfigResource(resource.resource_type, resource.resource_name),
            [_change(each) for each in resource.configs],
            validate_only=request.validate_only,
        )

    return IncrementalAlterConfigsResponse(
        responses=[_result(resource, error) for resource, error in alter_each(request.resources, alter)]
    )


def refuse(
    request: IncrementalAlterConfigsRequest, _caller: Caller, error: KafkaError
) -> IncrementalAlterConfigsResponse:
    """Answer every resource with the error."""
    return IncrementalAlterConfigsResponse(
        responses=[_result(resource, error) for resource in request.resources]
    )


def _change(config: AlterableConfig) -> ConfigChange:
    try:
        operation = ConfigOperation(config.config_operation)
    except ValueError:
        message = f"Unknown operation type {config.config_operation}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message) from None
    return ConfigChange(config.name, operation, config.value)


def _result(resource: AlterConfigsResource, error: KafkaError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message or None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


register(IncrementalAlterConfigsRequest, ClusterApi, handle, refuse)
