"""ListGroups (key 16), versions 0-5: lists the groups. Any broker lists all of them.

Who may not describe the cluster gets those groups that it may describe, and no error.
"""

from __future__ import annotations

from korvet.handlers.common import refuse_whole
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import CLUSTER, DESCRIBE, GROUP, by_handler
from korvet.protocol.messages import list_groups as wire


def handle(request: wire.ListGroupsRequest, caller: Caller, services: Services) -> wire.ListGroupsResponse:
    sees_all = caller.rights.allows_cluster(DESCRIBE, log=False)
    groups = [
        wire.ListedGroup(
            group_id=group.group,
            protocol_type=group.protocol_type,
            group_state=group.state,
            group_type=group.kind,
        )
        for group in services.groups.admin.list_groups(request.states_filter, request.types_filter)
        if sees_all or caller.rights.allows(DESCRIBE, GROUP, group.group, log=False)
    ]
    return wire.ListGroupsResponse(groups=groups)


register(
    handle,
    refuse_whole(wire.ListGroupsResponse, of_group=True),
    rights=[by_handler((DESCRIBE, CLUSTER), (DESCRIBE, GROUP))],
)
