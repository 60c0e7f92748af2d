"""LeaveGroup (key 13), versions 0-5: removes members; before version 3 one, whose error is the top-level one."""

from __future__ import annotations

from korvet.errors import KafkaError
from korvet.handlers.common import group_error_code
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

BATCH_VERSION_FIRST = 3


def handle(request: LeaveGroupRequest, caller: Caller, api: GroupApi) -> LeaveGroupResponse:
    """Remove the members."""
    if caller.version < BATCH_VERSION_FIRST:
        [outcome] = api.coordinator.leave(request.group_id, [(request.member_id, "")])
        return LeaveGroupResponse(error_code=outcome)
    names = [(each.member_id, each.group_instance_id or "") for each in request.members]
    outcomes = api.coordinator.leave(request.group_id, names)
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=outcome
            )
            for each, outcome in zip(request.members, outcomes, strict=True)
        ]
    )


def refuse(_request: LeaveGroupRequest, _caller: Caller, error: KafkaError) -> LeaveGroupResponse:
    """Answer with the error, for all members."""
    return LeaveGroupResponse(error_code=group_error_code(error))


register(LeaveGroupRequest, GroupApi, handle, refuse)
