"""ListConfigResources (key 74), versions 0-1, flexible from 0. An administrator asks what has settings.

Version 0 was ListClientMetricsResources (KIP-714), and lists those only. 1 lists what it is asked for (KIP-1142).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, ResponseWithCode, since
from korvet.protocol.types import ResourceType
from korvet.protocol.wire import int8, string


class ListConfigResourcesRequest(Message, kw_only=True):
    """Asks for resources of these types, an empty list for all."""

    api = Api(key=74, versions=(0, 1), flexible=0)

    resource_types: Annotated[list[int8], since(1)] = []


class ConfigResource(Part, kw_only=True):
    resource_name: string
    resource_type: Annotated[int8, since(1, ignorable=True)] = ResourceType.CLIENT_METRICS


class ListConfigResourcesResponse(ResponseWithCode, kw_only=True):
    config_resources: list[ConfigResource] = []
