"""AlterPartitionReassignments (key 45), versions 0-1, flexible from 0. An administrator moves partitions.

Since KIP-455. Version 1 may forbid that a move changes how many replicas there are (KIP-860).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, Response, since
from korvet.protocol.wire import boolean, int16, int32, string


class ReassignablePartition(Part, kw_only=True):
    """A partition and the brokers it is to lie on, the preferred leader first; null gives up a move under way."""

    partition_index: int32
    replicas: list[int32] | None = None


class ReassignableTopic(Part, kw_only=True):
    name: string
    partitions: list[ReassignablePartition]


class AlterPartitionReassignmentsRequest(Message, kw_only=True):
    api = Api(key=45, versions=(0, 1), flexible=0)

    timeout_ms: int32 = 60_000
    allow_replication_factor_change: Annotated[boolean, since(1)] = True
    topics: list[ReassignableTopic]


class ReassignablePartitionResponse(Part, kw_only=True):
    partition_index: int32
    error_code: int16 = 0
    error_message: string | None


class ReassignableTopicResponse(Part, kw_only=True):
    name: string
    partitions: list[ReassignablePartitionResponse]


class AlterPartitionReassignmentsResponse(Response, kw_only=True):
    """The result for every partition of the request, or the error of the whole."""

    allow_replication_factor_change: Annotated[boolean, since(1, ignorable=True)] = True
    error_code: int16 = 0
    error_message: string | None
    responses: list[ReassignableTopicResponse] = []
