"""ShareGroupHeartbeat (key 76), version 1: a member of a share group joins, stays, or leaves (KIP-932).

The topics that it names must be ones that it may describe.

Errors: FENCED_MEMBER_EPOCH, GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED, INVALID_REQUEST, UNKNOWN_MEMBER_ID,
UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from functools import partial

from korvet.errors import ErrorCode
from korvet.groups.consumer.types import JOIN_EPOCH, MemberReport, text_of
from korvet.handlers.common import group_error_code, refuse_whole, require_share_groups
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.handlers.rights import DESCRIBE, READ, TOPIC, by_handler, on_group
from korvet.protocol.messages import share_group_heartbeat as wire
from korvet.security.authorizer import refusal
from korvet.topics.registry import id_bytes


def handle(
    request: wire.ShareGroupHeartbeatRequest, caller: Caller, api: GroupApi
) -> wire.ShareGroupHeartbeatResponse:
    """Take the heartbeat."""
    require_share_groups(api.features)
    names = request.subscribed_topic_names
    if not all(caller.rights.allows(DESCRIBE, TOPIC, name) for name in names or ()):
        raise refusal(TOPIC)
    report = MemberReport(
        group=request.group_id,
        member_id=request.member_id,
        epoch=request.member_epoch,
        client_id=caller.client_id or "",
        client_host=f"/{caller.peer.rpartition(':')[0]}",
        rack=request.rack_id,
        names=None if names is None else tuple(names),
    )
    heartbeat = partial(api.share_groups.heartbeat, report)
    if _joins_or_leaves(request):
        answer = heartbeat()
    else:
        # What a step has given the member no failover may take back; its session is renewed in any case.
        answer = api.share_groups.renew(report) or api.replicas.confirm_call(
            heartbeat, ErrorCode.COORDINATOR_NOT_AVAILABLE, refuses=False
        )
    assignment = None
    if answer.assigned is not None:
        topics = [
            wire.TopicPartitions(topic_id=id_bytes(topic_id), partitions=indexes)
            for topic_id, indexes in text_of(answer.assigned).items()
        ]
        assignment = wire.Assignment(topic_partitions=topics)
    return wire.ShareGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.heartbeat_ms,
        assignment=assignment,
    )


def _joins_or_leaves(request: wire.ShareGroupHeartbeatRequest) -> bool:
    return request.member_epoch <= JOIN_EPOCH


register(
    handle,
    refuse_whole(wire.ShareGroupHeartbeatResponse, group_error_code),
    rights=[on_group(READ), by_handler((DESCRIBE, TOPIC))],
    unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE,
    # Of others `handle` knows whether they change anything.
    confirms=_joins_or_leaves,
)
