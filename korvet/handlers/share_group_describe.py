"""ShareGroupDescribe (key 77), version 1: the state of share groups, and their members (KIP-932).

If the caller may not describe all topics that members have, or are to have, the group is refused, as in Kafka.

Errors: GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from korvet.groups.consumer.subscriptions import names_of
from korvet.groups.consumer.types import ConsumerMember
from korvet.groups.listing import DescribedConsumerGroup
from korvet.handlers.groups import (
    describe_each,
    described_assignment,
    refused,
    require_share_groups,
    require_visible_members,
)
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, GROUP, TOPIC, by_handler, on_names
from korvet.protocol.messages import share_group_describe as wire


def handle(
    request: wire.ShareGroupDescribeRequest, caller: Caller, services: Services
) -> wire.ShareGroupDescribeResponse:
    require_share_groups(services.features)

    def describe(group_id: str, group: DescribedConsumerGroup) -> wire.DescribedGroup:
        require_visible_members(group, caller)
        return wire.DescribedGroup(
            group_id=group_id,
            group_state=group.fields.state,
            group_epoch=group.fields.epoch,
            assignment_epoch=group.fields.assignment_epoch,
            assignor_name=group.assignor,
            members=[_member(member, group) for member in group.members],
            authorized_operations=caller.operations(
                GROUP, group_id, requested=request.include_authorized_operations
            ),
        )

    groups = describe_each(
        wire.DescribedGroup, request.group_ids, services.groups.admin.describe_share_groups, describe
    )
    return wire.ShareGroupDescribeResponse(groups=groups)


def _member(member: ConsumerMember, group: DescribedConsumerGroup) -> wire.Member:
    return wire.Member(
        member_id=member.member_id,
        rack_id=member.row.rack or None,
        member_epoch=member.progress.epoch,
        client_id=member.row.client_id,
        client_host=member.row.client_host,
        subscribed_topic_names=list(names_of(member)),
        assignment=described_assignment(member.progress.assigned, group),
    )


register(
    handle,
    lambda request, _caller, error: wire.ShareGroupDescribeResponse(
        groups=[refused(wire.DescribedGroup, group, error) for group in request.group_ids]
    ),
    rights=[on_names(GROUP, DESCRIBE, "group_ids", "groups"), by_handler((DESCRIBE, TOPIC))],
)
