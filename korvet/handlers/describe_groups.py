"""DescribeGroups (key 15), versions 0-6: the state of groups, and who their members are.

A group that does not exist is Dead, and an error from version 6 on; so is one of the consumer protocol, of which
ConsumerGroupDescribe is to be asked. As in Kafka metadata of members is shown of a stable group only; the assignment of
the last generation also while members join the next one.

Errors: GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.types import DEAD, STABLE, StoredGroup, StoredMember, instance_id_of
from korvet.handlers.common import error_message, group_error_code
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, GROUP, on_names
from korvet.protocol.messages import describe_groups as wire

NOT_FOUND_VERSION_FIRST = 6


def handle(
    request: wire.DescribeGroupsRequest, caller: Caller, services: Services
) -> wire.DescribeGroupsResponse:
    """Describe each group once, however often it is named: a name is short, and metadata of members may be large."""
    names = list(dict.fromkeys(request.groups))
    with_operations = request.include_authorized_operations
    return wire.DescribeGroupsResponse(
        groups=[
            _described(name, group, caller, with_operations=with_operations)
            for name, group in zip(names, services.groups.admin.describe(names), strict=True)
        ]
    )


def _described(
    name: str, group: StoredGroup | KafkaError, caller: Caller, *, with_operations: bool
) -> wire.DescribedGroup:
    if isinstance(group, KafkaError):
        return _refused(name, caller, group)
    if (group.kind or group.state == DEAD) and caller.version >= NOT_FOUND_VERSION_FIRST:
        what = "is not a classic group" if group.kind else "not found"
        return _refused(name, caller, KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} {what}."))
    if group.kind:
        return wire.DescribedGroup(group_id=name, group_state=DEAD)
    is_stable = group.state == STABLE
    return wire.DescribedGroup(
        group_id=name,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol if is_stable else "",
        members=[_member(member, is_stable=is_stable) for member in group.members],
        authorized_operations=caller.operations(GROUP, name, requested=with_operations),
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


def _refused(name: str, caller: Caller, error: KafkaError) -> wire.DescribedGroup:
    return wire.DescribedGroup(
        group_id=name,
        group_state=DEAD if error.code is ErrorCode.GROUP_ID_NOT_FOUND else "",
        error_code=group_error_code(error),
        error_message=error_message(error) if caller.version >= NOT_FOUND_VERSION_FIRST else None,
    )


register(
    handle,
    lambda request, caller, error: wire.DescribeGroupsResponse(
        groups=[_refused(name, caller, error) for name in request.groups]
    ),
    rights=[on_names(GROUP, DESCRIBE, "groups", "groups")],
)
