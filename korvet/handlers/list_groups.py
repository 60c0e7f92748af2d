"""ListGroups (key 16), versions 0-5: lists the groups. Any broker lists all of them."""

from __future__ import annotations

from korvet.errors import KafkaError
from korvet.groups.listing import CLASSIC
from korvet.handlers.common import group_error_code
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


def handle(request: ListGroupsRequest, _caller: Caller, api: GroupApi) -> ListGroupsResponse:
    """List the groups in the states and of the types that are asked for."""
    found = api.admin.list_groups(request.states_filter, request.types_filter)
    groups = [
        ListedGroup(
            group_id=each.group,
            protocol_type=each.protocol_type,
            group_state=each.state,
            group_type=CLASSIC,
        )
        for each in found
    ]
    return ListGroupsResponse(groups=groups)


def refuse(_request: ListGroupsRequest, _caller: Caller, error: KafkaError) -> ListGroupsResponse:
    """Answer with the error."""
    return ListGroupsResponse(error_code=group_error_code(error))


register(ListGroupsRequest, GroupApi, handle, refuse)
