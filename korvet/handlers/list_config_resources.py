"""ListConfigResources (key 74), versions 0-1: which topics and brokers have configs (KIP-1142).

Version 0 asks for subscriptions to clients' metrics (KIP-714), of which there are none. Kafka lists groups that have
configs, which they cannot have here; loggers are a setting of the broker, and no resources.
"""

from __future__ import annotations

from collections.abc import Iterator

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.context import Caller, ClusterApi
from korvet.handlers.registry import register
from korvet.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from korvet.protocol.types import ResourceType

_VERSION_OF_ALL_TYPES = 1


def handle(
    request: ListConfigResourcesRequest, caller: Caller, api: ClusterApi
) -> ListConfigResourcesResponse:
    """List the resources of the types that are asked for, of every type if none is named."""
    asked = (
        request.resource_types if caller.version >= _VERSION_OF_ALL_TYPES else [ResourceType.CLIENT_METRICS]
    )
    types = set(asked) or set(ResourceType)
    if unknown := sorted(types - set(ResourceType)):
        message = f"resource types {unknown} are unknown"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
    return ListConfigResourcesResponse(config_resources=list(_resources(types, caller, api)))


def refuse(
    _request: ListConfigResourcesRequest, _caller: Caller, error: KafkaError
) -> ListConfigResourcesResponse:
    """Answer with the error."""
    return ListConfigResourcesResponse(error_code=error.code)


def _resources(types: set[int], caller: Caller, api: ClusterApi) -> Iterator[ConfigResource]:
    if ResourceType.TOPIC in types:
        for topic in api.topics.list_all():
            yield ConfigResource(resource_name=topic.name, resource_type=ResourceType.TOPIC)
    if ResourceType.BROKER in types:
        for each in api.cluster.refresh().on(caller.listener).all:
            yield ConfigResource(resource_name=str(each.broker_id), resource_type=ResourceType.BROKER)


register(ListConfigResourcesRequest, ClusterApi, handle, refuse)
