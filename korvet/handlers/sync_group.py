"""SyncGroup (key 14), versions 0-5: a member waits for its assignment, the leader brings those of all members.

From version 5 on it names the protocol that it takes part in, and its type (KIP-559).

Errors: FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL, INVALID_GROUP_ID, REBALANCE_IN_PROGRESS,
UNKNOWN_MEMBER_ID.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.types import SyncRequest, instance_text
from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import READ, on_group
from korvet.protocol.messages import sync_group as wire

PROTOCOL_VERSION_FIRST = 5


def handle(request: wire.SyncGroupRequest, caller: Caller, services: Services) -> wire.SyncGroupResponse:
    if caller.version >= PROTOCOL_VERSION_FIRST and None in (request.protocol_type, request.protocol_name):
        message = "the request has no protocol type or no protocol name"
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
    synced = services.groups.coordinator.sync(
        SyncRequest(
            group=request.group_id,
            member_id=request.member_id,
            instance=instance_text(request.group_instance_id),
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            assignments=tuple((assigned.member_id, assigned.assignment) for assigned in request.assignments),
        )
    )
    return wire.SyncGroupResponse(
        protocol_type=synced.protocol_type, protocol_name=synced.protocol, assignment=synced.assignment
    )


register(
    handle,
    refuse_whole(wire.SyncGroupResponse, of_group=True),
    rights=[on_group(READ)],
    unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
