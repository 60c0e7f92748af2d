"""ListPartitionReassignments (key 46), version 0: the partitions that are being moved, which are none (KIP-455).

A move is done when it is answered. Partitions that do not exist are left out, as in Kafka.
"""

from __future__ import annotations

from korvet.errors import KafkaError
from korvet.handlers.context import Caller, TopicApi
from korvet.handlers.registry import register
from korvet.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    _request: ListPartitionReassignmentsRequest, _caller: Caller, _api: TopicApi
) -> ListPartitionReassignmentsResponse:
    """Answer that no partition is being moved."""
    return ListPartitionReassignmentsResponse(error_message=None)


def refuse(
    _request: ListPartitionReassignmentsRequest, _caller: Caller, error: KafkaError
) -> ListPartitionReassignmentsResponse:
    """Answer with the error."""
    return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message or None)


register(ListPartitionReassignmentsRequest, TopicApi, handle, refuse)
