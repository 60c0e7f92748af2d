"""DescribeCluster (key 60), versions 0-2, flexible from 0. Who the brokers are, for administrators.

Since KIP-700. Version 1 can ask for the controllers instead (KIP-919). Version 2 can include fenced brokers (KIP-1073).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, ResponseWithMessage, since
from korvet.protocol.types import UNKNOWN_OPERATIONS
from korvet.protocol.wire import boolean, int8, int32, string

ENDPOINT_BROKERS = 1
ENDPOINT_CONTROLLERS = 2


class DescribeClusterRequest(Message, kw_only=True):
    api = Api(key=60, versions=(0, 2), flexible=0)

    include_cluster_authorized_operations: boolean
    endpoint_type: Annotated[int8, since(1)] = ENDPOINT_BROKERS
    include_fenced_brokers: Annotated[boolean, since(2)] = False


class DescribeClusterBroker(Part, kw_only=True):
    broker_id: int32
    host: string
    port: int32
    rack: string | None = None
    is_fenced: Annotated[boolean, since(2)] = False


class DescribeClusterResponse(ResponseWithMessage, kw_only=True):
    endpoint_type: Annotated[int8, since(1)] = ENDPOINT_BROKERS
    cluster_id: string
    controller_id: int32 = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: int32 = UNKNOWN_OPERATIONS
