"""DeleteGroups (key 42), versions 0-2: deletes groups that have no members, each by one atomic script."""

from __future__ import annotations

from korvet.errors import KafkaError
from korvet.handlers.common import code_of
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


def handle(request: DeleteGroupsRequest, _caller: Caller, api: GroupApi) -> DeleteGroupsResponse:
    """Delete each group; one that cannot be does not keep the others from it. One named twice is deleted once."""
    results = []
    for group in dict.fromkeys(request.groups_names):
        try:
            api.listing.delete(group)
        except KafkaError as error:
            results.append(DeletableGroupResult(group_id=group, error_code=code_of(error)))
        else:
            results.append(DeletableGroupResult(group_id=group))
    return DeleteGroupsResponse(results=results)


def refuse(request: DeleteGroupsRequest, _caller: Caller, error: KafkaError) -> DeleteGroupsResponse:
    """Answer every group with the error."""
    names = dict.fromkeys(request.groups_names)
    results = [DeletableGroupResult(group_id=group, error_code=code_of(error)) for group in names]
    return DeleteGroupsResponse(results=results)


register(DeleteGroupsRequest, GroupApi, handle, refuse)
