"""ShareGroupHeartbeat (key 76), version 1: a member of a share group joins, stays, or leaves (KIP-932).

The topics that it names must be ones that it may describe.

Errors: FENCED_MEMBER_EPOCH, GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED, INVALID_REQUEST, UNKNOWN_MEMBER_ID,
UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from functools import partial

from korvet.errors import ErrorCode
from korvet.groups.consumer.types import MemberReport
from korvet.handlers.common import refuse_whole
from korvet.handlers.groups import (
    assignment,
    joins_or_leaves,
    require_share_groups,
    require_visible,
    take_heartbeat,
)
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, READ, TOPIC, by_handler, on_group
from korvet.protocol.messages import share_group_heartbeat as wire


def handle(
    request: wire.ShareGroupHeartbeatRequest, caller: Caller, services: Services
) -> wire.ShareGroupHeartbeatResponse:
    require_share_groups(services.features)
    names = request.subscribed_topic_names
    require_visible(names or (), caller)
    report = MemberReport(
        group=request.group_id,
        member_id=request.member_id,
        epoch=request.member_epoch,
        client_id=caller.client_id or "",
        client_host=caller.client_host,
        rack=request.rack_id,
        names=None if names is None else tuple(names),
    )
    groups = services.groups.share
    answer = take_heartbeat(
        request, partial(groups.renew, report), partial(groups.heartbeat, report), services.replicas
    )
    return wire.ShareGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.heartbeat_ms,
        assignment=assignment(answer.assigned),
    )


register(
    handle,
    refuse_whole(wire.ShareGroupHeartbeatResponse, of_group=True),
    rights=[on_group(READ), by_handler((DESCRIBE, TOPIC))],
    unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE,
    confirms=joins_or_leaves,
)
