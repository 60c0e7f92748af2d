"""LeaveGroup (key 13), versions 0-5: removes members; before version 3 one, whose error is the top-level one.

Errors: FENCED_INSTANCE_ID, INVALID_GROUP_ID, UNKNOWN_MEMBER_ID.
"""

from __future__ import annotations

from korvet.errors import ErrorCode
from korvet.groups.types import instance_text
from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import READ, on_group
from korvet.protocol.messages import leave_group as wire

BATCH_VERSION_FIRST = 3


def handle(request: wire.LeaveGroupRequest, caller: Caller, services: Services) -> wire.LeaveGroupResponse:
    if caller.version < BATCH_VERSION_FIRST:
        [outcome] = services.groups.coordinator.leave(request.group_id, [(request.member_id, "")])
        return wire.LeaveGroupResponse(error_code=outcome)
    names = [(member.member_id, instance_text(member.group_instance_id)) for member in request.members]
    outcomes = services.groups.coordinator.leave(request.group_id, names)
    return wire.LeaveGroupResponse(
        members=[
            wire.MemberResponse(
                member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=outcome
            )
            for member, outcome in zip(request.members, outcomes, strict=True)
        ]
    )


register(
    handle,
    refuse_whole(wire.LeaveGroupResponse, of_group=True),
    rights=[on_group(READ)],
    unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE,
    abandoned=ErrorCode.NONE,  # clients close the connection right after it
)
