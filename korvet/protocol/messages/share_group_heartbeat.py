"""ShareGroupHeartbeat (key 76), versions 1-1, flexible from 0. A member joins, stays or leaves (KIP-932).

A field that is null has not changed since the last heartbeat. Version 0 was that of a preview.
"""

from __future__ import annotations

from korvet.protocol.messages.consumer_group_heartbeat import Assignment
from korvet.protocol.schema import Api, Message, ResponseWithMessage
from korvet.protocol.wire import int32, string


class ShareGroupHeartbeatRequest(Message, kw_only=True):
    """Member epoch 0 joins, -1 leaves."""

    api = Api(key=76, versions=(1, 1), flexible=0)

    group_id: string
    member_id: string
    member_epoch: int32
    rack_id: string | None = None
    subscribed_topic_names: list[string] | None = None


class ShareGroupHeartbeatResponse(ResponseWithMessage, kw_only=True):
    """The assignment is null if it has not changed."""

    member_id: string | None = None
    member_epoch: int32 = 0
    heartbeat_interval_ms: int32 = 0
    assignment: Assignment | None = None
