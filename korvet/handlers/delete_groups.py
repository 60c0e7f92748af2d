"""DeleteGroups (key 42), versions 0-2: deletes groups that have no members, each by one atomic script."""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import group_error_code
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.protocol.messages import delete_groups as wire


def handle(request: wire.DeleteGroupsRequest, _caller: Caller, api: GroupApi) -> wire.DeleteGroupsResponse:
    """Delete each group; the failure of one leaves the others unaffected. One named twice is deleted once."""
    results = []
    for group in dict.fromkeys(request.groups_names):
        try:
            api.admin.delete(group)
        except KafkaError as error:
            results.append(wire.DeletableGroupResult(group_id=group, error_code=group_error_code(error)))
        else:
            results.append(wire.DeletableGroupResult(group_id=group))
    return wire.DeleteGroupsResponse(results=results)


def refuse(
    request: wire.DeleteGroupsRequest, _caller: Caller, error: KafkaError
) -> wire.DeleteGroupsResponse:
    """Answer every group with the error."""
    names = dict.fromkeys(request.groups_names)
    results = [
        wire.DeletableGroupResult(group_id=group, error_code=group_error_code(error)) for group in names
    ]
    return wire.DeleteGroupsResponse(results=results)


register(wire.DeleteGroupsRequest, GroupApi, handle, refuse, unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE)
