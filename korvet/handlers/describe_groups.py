"""DescribeGroups (key 15), versions 0-6: the state of groups, and who their members are.

A group that does not exist is Dead, and an error from version 6 on; so is one of the consumer protocol, of which
ConsumerGroupDescribe is to be asked. As in Kafka metadata of members is shown of a stable group only; the assignment of
the last generation also while members join the next one.

Errors: GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.types import DEAD, STABLE, StoredGroup, StoredMember, instance_id_of
from korvet.handlers.common import authorized, error_message, group_error_code
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.handlers.rights import DESCRIBE, GROUP, on_names
from korvet.protocol.messages import describe_groups as wire

NOT_FOUND_VERSION_FIRST = 6


def handle(request: wire.DescribeGroupsRequest, caller: Caller, api: GroupApi) -> wire.DescribeGroupsResponse:
    """Describe each group once, however often it is named: a name is short, and metadata of members may be large."""
    names = list(dict.fromkeys(request.groups))
    outcomes = api.admin.describe(names)
    groups = []
    for group, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, KafkaError):
            groups.append(_refused(group, caller, outcome))
        elif outcome.kind and caller.version >= NOT_FOUND_VERSION_FIRST:
            error = KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group} is not a classic group.")
            groups.append(_refused(group, caller, error))
        elif outcome.kind:
            groups.append(wire.DescribedGroup(group_id=group, group_state=DEAD))
        elif outcome.state == DEAD and caller.version >= NOT_FOUND_VERSION_FIRST:
            error = KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group} not found.")
            groups.append(_refused(group, caller, error))
        else:
            operations = authorized(caller, GROUP, group, requested=request.include_authorized_operations)
            groups.append(_described(group, outcome, operations))
    return wire.DescribeGroupsResponse(groups=groups)


def refuse(
    request: wire.DescribeGroupsRequest, caller: Caller, error: KafkaError
) -> wire.DescribeGroupsResponse:
    """Answer every group with the error."""
    return wire.DescribeGroupsResponse(groups=[_refused(group, caller, error) for group in request.groups])


def _described(group: str, found: StoredGroup, operations: int) -> wire.DescribedGroup:
    is_stable = found.state == STABLE
    return wire.DescribedGroup(
        group_id=group,
        group_state=found.state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol if is_stable else "",
        members=[_member(each, is_stable=is_stable) for each in found.members],
        authorized_operations=operations,
    )


def _member(member: StoredMember, *, is_stable: bool) -> wire.DescribedGroupMember:
    return wire.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=instance_id_of(member.instance),
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata if is_stable else b"",
        member_assignment=member.assignment,
    )


def _refused(group: str, caller: Caller, error: KafkaError) -> wire.DescribedGroup:
    has_message = caller.version >= NOT_FOUND_VERSION_FIRST
    not_found = error.code is ErrorCode.GROUP_ID_NOT_FOUND
    return wire.DescribedGroup(
        group_id=group,
        group_state=DEAD if not_found else "",
        error_code=group_error_code(error),
        error_message=error_message(error) if has_message else None,
    )


register(
    handle,
    refuse,
    rights=[on_names(GROUP, DESCRIBE, "groups", "groups")],
)
