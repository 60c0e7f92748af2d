"""ShareGroupDescribe (key 77), version 1: the state of share groups, and their members (KIP-932).

If the caller may not describe all topics that members have, or are to have, the group is refused, as in Kafka.

Errors: GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from korvet.errors import KafkaError
from korvet.groups.listing import DescribedConsumerGroup, DescribedMember
from korvet.handlers.common import (
    authorized,
    error_message,
    group_error_code,
    hidden_topics,
    require_share_groups,
)
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.handlers.rights import DESCRIBE, GROUP, TOPIC, by_handler, on_names
from korvet.protocol.messages import share_group_describe as wire
from korvet.topics.registry import id_bytes


def handle(
    request: wire.ShareGroupDescribeRequest, caller: Caller, api: GroupApi
) -> wire.ShareGroupDescribeResponse:
    """Describe each group once."""
    require_share_groups(api.features)
    names = list(dict.fromkeys(request.group_ids))
    groups = []
    for group, outcome in zip(names, api.admin.describe_share_groups(names), strict=True):
        error = outcome if isinstance(outcome, KafkaError) else hidden_topics(outcome, caller)
        if error is not None or isinstance(outcome, KafkaError):
            groups.append(_refused(group, error))
            continue
        operations = authorized(caller, GROUP, group, requested=request.include_authorized_operations)
        groups.append(_described(group, outcome, operations))
    return wire.ShareGroupDescribeResponse(groups=groups)


def refuse(
    request: wire.ShareGroupDescribeRequest, _caller: Caller, error: KafkaError
) -> wire.ShareGroupDescribeResponse:
    """Answer every group with the error."""
    return wire.ShareGroupDescribeResponse(groups=[_refused(each, error) for each in request.group_ids])


def _described(group: str, found: DescribedConsumerGroup, operations: int) -> wire.DescribedGroup:
    return wire.DescribedGroup(
        group_id=group,
        group_state=found.state,
        group_epoch=found.epoch,
        assignment_epoch=found.assignment_epoch,
        assignor_name=found.assignor,
        members=[_member(each, found) for each in found.members],
        authorized_operations=operations,
    )


def _member(member: DescribedMember, found: DescribedConsumerGroup) -> wire.Member:
    topics = [
        wire.TopicPartitions(topic_id=id_bytes(found.topic_ids[name]), topic_name=name, partitions=indexes)
        for name, indexes in sorted(member.assigned.items())
    ]
    return wire.Member(
        member_id=member.member_id,
        rack_id=member.rack or None,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.names),
        assignment=wire.Assignment(topic_partitions=topics),
    )


def _refused(group: str, error: KafkaError | None) -> wire.DescribedGroup:
    return wire.DescribedGroup(
        group_id=group, error_code=group_error_code(error), error_message=error_message(error)
    )


register(
    handle,
    refuse,
    rights=[on_names(GROUP, DESCRIBE, "group_ids", "groups"), by_handler((DESCRIBE, TOPIC))],
)
