"""IncrementalAlterConfigs (key 44), versions 0-1: changes configs of topics and brokers (KIP-339).

The changes of one resource are made as a whole or not at all. When the response is sent the worker that sends it acts
on the new configs, and every other worker of the cluster once it is notified of them.

Errors: INVALID_CONFIG, INVALID_REQUEST, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.alter_configs import alter_each, configs_changed, refuse_each
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import ALTER_CONFIGS, on_configs
from korvet.protocol.messages import incremental_alter_configs as wire
from korvet.protocol.types import ConfigOperation
from korvet.topics.config_admin import ConfigChange, ConfigResource


def handle(
    request: wire.IncrementalAlterConfigsRequest, _caller: Caller, services: Services
) -> wire.IncrementalAlterConfigsResponse:
    """Alter each resource; the failure of one leaves the others unaffected."""

    def alter(resource: wire.AlterConfigsResource) -> None:
        services.configs.alter(
            ConfigResource(resource.resource_type, resource.resource_name),
            [_change(config) for config in resource.configs],
            validate_only=request.validate_only,
        )

    return wire.IncrementalAlterConfigsResponse(responses=alter_each(request.resources, alter))


def _change(config: wire.AlterableConfig) -> ConfigChange:
    try:
        operation = ConfigOperation(config.config_operation)
    except ValueError:
        message = f"Unknown operation type {config.config_operation}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message) from None
    return ConfigChange(config.name, operation, config.value)


register(
    handle,
    lambda request, _caller, error: wire.IncrementalAlterConfigsResponse(
        responses=refuse_each(request.resources, error)
    ),
    rights=[on_configs(ALTER_CONFIGS, "responses")],
    changes=configs_changed,
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
