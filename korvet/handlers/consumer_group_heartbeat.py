"""ConsumerGroupHeartbeat (key 68), versions 0-1: a member of a group joins, stays, or leaves (KIP-848).

The topics that it names must be ones that it may describe; a regular expression matches no other. In version 0 the
broker chooses the id of a new member (KIP-1082).

Errors: FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH, GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED, INVALID_REGULAR_EXPRESSION,
INVALID_REQUEST, UNKNOWN_MEMBER_ID, UNRELEASED_INSTANCE_ID, UNSUPPORTED_ASSIGNOR, UNSUPPORTED_VERSION.
"""

from __future__ import annotations

import uuid
from functools import partial

from korvet.errors import ErrorCode
from korvet.groups.consumer.types import JOIN_EPOCH, MemberReport, Owned
from korvet.groups.types import instance_text
from korvet.handlers.common import refuse_whole
from korvet.handlers.groups import (
    assignment,
    joins_or_leaves,
    require_consumer_groups,
    require_visible,
    take_heartbeat,
)
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, READ, TOPIC, by_handler, on_group
from korvet.protocol.messages import consumer_group_heartbeat as wire
from korvet.topics.registry import id_text

OWN_ID_VERSION_FIRST = 1
UNCHANGED = -1


def handle(
    request: wire.ConsumerGroupHeartbeatRequest, caller: Caller, services: Services
) -> wire.ConsumerGroupHeartbeatResponse:
    require_consumer_groups(services.features)
    names = request.subscribed_topic_names
    require_visible(names or (), caller)
    gets_id = caller.version < OWN_ID_VERSION_FIRST and request.member_epoch == JOIN_EPOCH
    unchanged = request.rebalance_timeout_ms == UNCHANGED
    report = MemberReport(
        group=request.group_id,
        member_id=request.member_id or (str(uuid.uuid4()) if gets_id else ""),
        epoch=request.member_epoch,
        client_id=caller.client_id or "",
        client_host=caller.client_host,
        instance=request.instance_id and instance_text(request.instance_id),
        rack=request.rack_id,
        rebalance_ms=None if unchanged else request.rebalance_timeout_ms,
        names=None if names is None else tuple(names),
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=_owned(request),
    )
    step = partial(services.groups.consumer.heartbeat, report, partial(caller.may, DESCRIBE, log=False))
    answer = take_heartbeat(request, partial(services.groups.consumer.renew, report), step, services.replicas)
    return wire.ConsumerGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.heartbeat_ms,
        assignment=assignment(answer.assigned),
    )


def _owned(request: wire.ConsumerGroupHeartbeatRequest) -> Owned | None:
    if request.topic_partitions is None:
        return None
    return frozenset(
        (id_text(topic.topic_id), index) for topic in request.topic_partitions for index in topic.partitions
    )


register(
    handle,
    refuse_whole(wire.ConsumerGroupHeartbeatResponse, of_group=True),
    rights=[on_group(READ), by_handler((DESCRIBE, TOPIC))],
    unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE,
    confirms=joins_or_leaves,
)
