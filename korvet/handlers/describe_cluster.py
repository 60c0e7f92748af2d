"""DescribeCluster (key 60), versions 0-2: the brokers, for administration clients (KIP-700).

There are no separate controllers to ask for (KIP-919), and no broker is ever fenced (version 2).

Errors: MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import CLUSTER, DESCRIBE, by_handler
from korvet.protocol.messages import describe_cluster as wire


def handle(
    request: wire.DescribeClusterRequest, caller: Caller, services: Services
) -> wire.DescribeClusterResponse:
    """Answer with the live brokers that have the caller's listener."""
    if request.endpoint_type == wire.ENDPOINT_CONTROLLERS:
        raise KafkaError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker, not a controller")
    if request.endpoint_type != wire.ENDPOINT_BROKERS:
        message = f"endpoint type {request.endpoint_type} is unknown"
        raise KafkaError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, message)
    live = services.cluster.refresh().on(caller.session.listener)
    return wire.DescribeClusterResponse(
        cluster_id=services.cluster.cluster_id,
        controller_id=live.controller_id,
        brokers=[
            wire.DescribeClusterBroker(broker_id=broker.broker_id, host=broker.host, port=broker.port)
            for broker in live.all
        ],
        cluster_authorized_operations=caller.cluster_operations(
            requested=request.include_cluster_authorized_operations
        ),
    )


register(
    handle,
    refuse_whole(wire.DescribeClusterResponse, cluster_id=""),
    rights=[by_handler((DESCRIBE, CLUSTER))],
)
