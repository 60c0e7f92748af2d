"""DeleteGroups (key 42), versions 0-2: deletes groups that have no members, each by one atomic script."""

from __future__ import annotations

from korvet.errors import KafkaError
from korvet.handlers.common import group_error_code
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


def handle(request: DeleteGroupsRequest, _caller: Caller, api: GroupApi) -> DeleteGroupsResponse:
    """Delete each group; the failure of one leaves the others unaffected. One named twice is deleted once."""
    results = []
    for group in dict.fromkeys(request.groups_names):
        try:
            api.admin.delete(group)
        except KafkaError as error:
            results.append(DeletableGroupResult(group_id=group, error_code=group_error_code(error)))
        else:
            results.append(DeletableGroupResult(group_id=group))
    return DeleteGroupsResponse(results=results)


def refuse(request: DeleteGroupsRequest, _caller: Caller, error: KafkaError) -> DeleteGroupsResponse:
    """Answer every group with the error."""
    names = dict.fromkeys(request.groups_names)
    results = [DeletableGroupResult(group_id=group, error_code=group_error_code(error)) for group in names]
    return DeleteGroupsResponse(results=results)


register(DeleteGroupsRequest, GroupApi, handle, refuse)
