"""Heartbeat (key 12), versions 0-4: renews a member's session; an error asks it to join again."""

from __future__ import annotations

from korvet.errors import KafkaError
from korvet.handlers.common import group_error_code
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(request: HeartbeatRequest, _caller: Caller, api: GroupApi) -> HeartbeatResponse:
    """Renew the member's session."""
    instance = request.group_instance_id or ""
    api.coordinator.heartbeat(request.group_id, request.member_id, instance, request.generation_id)
    return HeartbeatResponse()


def refuse(_request: HeartbeatRequest, _caller: Caller, error: KafkaError) -> HeartbeatResponse:
    """Answer with the error."""
    return HeartbeatResponse(error_code=group_error_code(error))


register(HeartbeatRequest, GroupApi, handle, refuse)
