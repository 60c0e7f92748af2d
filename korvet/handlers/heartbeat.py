"""Heartbeat (key 12), versions 0-4: renews a member's session; an error asks it to join again.

Errors: FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INVALID_GROUP_ID, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID.
"""

from __future__ import annotations

from korvet.errors import ErrorCode
from korvet.groups.types import instance_text
from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import READ, on_group
from korvet.protocol.messages import heartbeat as wire


def handle(request: wire.HeartbeatRequest, _caller: Caller, services: Services) -> wire.HeartbeatResponse:
    instance = instance_text(request.group_instance_id)
    services.groups.coordinator.heartbeat(
        request.group_id, request.member_id, instance, request.generation_id
    )
    return wire.HeartbeatResponse()


register(
    handle,
    refuse_whole(wire.HeartbeatResponse, of_group=True),
    rights=[on_group(READ)],
    abandoned=ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
