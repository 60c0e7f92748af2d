"""AlterConfigs (key 33), versions 0-2, flexible from 2. Replaces all configs of topics or brokers.

Since KIP-133. What the request does not name goes back to its default; IncrementalAlterConfigs changes only what it
names (KIP-339). Version 1 is the same as version 0.
"""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.wire import boolean, int8, int16, string


class AlterableConfig(Part, kw_only=True):
    name: string
    value: string | None


class AlterConfigsResource(Part, kw_only=True):
    resource_type: int8
    resource_name: string
    configs: list[AlterableConfig]


class AlterConfigsRequest(Message, kw_only=True):
    """Replaces settings, or (validate_only) only says whether they could be."""

    api = Api(key=33, versions=(0, 2), flexible=2)

    resources: list[AlterConfigsResource]
    validate_only: boolean


class AlterConfigsResourceResponse(Part, kw_only=True):
    error_code: int16 = 0
    error_message: string | None
    resource_type: int8
    resource_name: string


class AlterConfigsResponse(Response, kw_only=True):
    responses: list[AlterConfigsResourceResponse] = []
