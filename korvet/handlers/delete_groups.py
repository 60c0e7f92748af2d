"""DeleteGroups (key 42), versions 0-2: deletes groups that have no members, each by one atomic script.

What a share group has of partitions is deleted before it.

Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import each_done, group_error_code
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DELETE, GROUP, on_names
from korvet.protocol.messages import delete_groups as wire


def handle(
    request: wire.DeleteGroupsRequest, _caller: Caller, services: Services
) -> wire.DeleteGroupsResponse:
    """Delete each group; the failure of one leaves the others unaffected. One named twice is deleted once."""

    def delete(group: str) -> wire.DeletableGroupResult:
        if services.groups.admin.is_empty_share_group(group):
            services.share.offsets.delete_all(group)
        services.groups.admin.delete(group)
        return _result(group, None)

    groups = dict.fromkeys(request.groups_names)
    return wire.DeleteGroupsResponse(results=each_done(groups, delete, _result))


def _result(group: str, error: KafkaError | None) -> wire.DeletableGroupResult:
    return wire.DeletableGroupResult(group_id=group, error_code=group_error_code(error))


register(
    handle,
    lambda request, _caller, error: wire.DeleteGroupsResponse(
        results=[_result(group, error) for group in dict.fromkeys(request.groups_names)]
    ),
    rights=[on_names(GROUP, DELETE, "groups_names", "results")],
    changes=lambda _request, response: (
        (f"group {result.group_id}", result.error_code) for result in response.results
    ),
    unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
