"""IncrementalAlterConfigs (key 44), versions 0-1, flexible from 1. An administrator changes settings (KIP-339)."""

from __future__ import annotations

from korvet.protocol.messages.alter_configs import AlterConfigsResourceResponse
from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.wire import boolean, int8, string


class AlterableConfig(Part, kw_only=True):
    """A setting and the operation on it; the value is null for DELETE."""

    name: string
    config_operation: int8
    value: string | None


class AlterConfigsResource(Part, kw_only=True):
    resource_type: int8
    resource_name: string
    configs: list[AlterableConfig]


class IncrementalAlterConfigsRequest(Message, kw_only=True):
    """Changes settings, or (validate_only) only says whether they could be."""

    api = Api(key=44, versions=(0, 1), flexible=1)

    resources: list[AlterConfigsResource]
    validate_only: boolean


class IncrementalAlterConfigsResponse(Response, kw_only=True):
    responses: list[AlterConfigsResourceResponse] = []
