"""ListConfigResources (key 74), versions 0-1: which topics, brokers and groups have configs (KIP-1142).

Version 0 asks for subscriptions to clients' metrics (KIP-714), of which there are none. Of groups those are listed on
which a config is set, as in Kafka.

Errors: UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Iterator

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE_CONFIGS, on_cluster
from korvet.protocol.messages import list_config_resources as wire
from korvet.protocol.types import ResourceType

_VERSION_OF_ALL_TYPES = 1


def handle(
    request: wire.ListConfigResourcesRequest, caller: Caller, services: Services
) -> wire.ListConfigResourcesResponse:
    """List the resources of the types that are asked for, of every type if none is named."""
    asked = (
        request.resource_types if caller.version >= _VERSION_OF_ALL_TYPES else [ResourceType.CLIENT_METRICS]
    )
    types = set(asked) or set(ResourceType)
    if unknown := sorted(types - set(ResourceType)):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"resource types {unknown} are unknown")
    return wire.ListConfigResourcesResponse(config_resources=list(_resources(types, caller, services)))


def _resources(types: set[int], caller: Caller, services: Services) -> Iterator[wire.ConfigResource]:
    if ResourceType.TOPIC in types:
        for topic in services.topics.list_all():
            yield wire.ConfigResource(resource_name=topic.name, resource_type=ResourceType.TOPIC)
    for kind in sorted({ResourceType.BROKER, ResourceType.BROKER_LOGGER} & types):
        for broker in services.cluster.refresh().on(caller.session.listener).all:
            yield wire.ConfigResource(resource_name=str(broker.broker_id), resource_type=kind)
    if ResourceType.GROUP in types:
        for name in services.configs.groups():
            yield wire.ConfigResource(resource_name=name, resource_type=ResourceType.GROUP)


register(handle, refuse_whole(wire.ListConfigResourcesResponse), rights=[on_cluster(DESCRIBE_CONFIGS)])
