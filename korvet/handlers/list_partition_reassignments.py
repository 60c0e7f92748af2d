"""ListPartitionReassignments (key 46), version 0: the partitions that are being moved, which are none (KIP-455).

A move is done when it is answered. Partitions that do not exist are left out, as in Kafka.
"""

from __future__ import annotations

from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, on_cluster
from korvet.protocol.messages import list_partition_reassignments as wire


def handle(
    _request: wire.ListPartitionReassignmentsRequest, _caller: Caller, _services: Services
) -> wire.ListPartitionReassignmentsResponse:
    return wire.ListPartitionReassignmentsResponse(error_message=None)


register(handle, refuse_whole(wire.ListPartitionReassignmentsResponse), rights=[on_cluster(DESCRIBE)])
