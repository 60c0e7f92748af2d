"""IncrementalAlterConfigs (key 44), versions 0-1: changes configs of topics and brokers (KIP-339).

The changes of one resource are made as a whole or not at all. When the response is sent the worker that sends it acts
on the new configs, and every other worker of the cluster once it is notified of them.

Errors: INVALID_CONFIG, INVALID_REQUEST, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from korvet.errors import ErrorCode
from korvet.handlers.alter_configs import alter_each, configs_changed, result
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import ALTER_CONFIGS, on_configs
from korvet.protocol.messages import incremental_alter_configs as wire


def handle(
    request: wire.IncrementalAlterConfigsRequest, _caller: Caller, services: Services
) -> wire.IncrementalAlterConfigsResponse:
    return wire.IncrementalAlterConfigsResponse(responses=alter_each(request, services, reset=False))


register(
    handle,
    lambda request, _caller, error: wire.IncrementalAlterConfigsResponse(
        responses=[result(resource, error) for resource in request.resources]
    ),
    rights=[on_configs(ALTER_CONFIGS, "responses")],
    changes=configs_changed,
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
