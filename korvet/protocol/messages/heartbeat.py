"""Heartbeat (key 12), versions 0-4, flexible from 4. A member is still there, and asks whether it must join again.

Version 3 knows static members (KIP-345).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, since
from korvet.protocol.wire import int16, int32, string


class HeartbeatRequest(Message, kw_only=True):
    api = Api(key=12, versions=(0, 4), flexible=4)

    group_id: string
    generation_id: int32
    member_id: string
    group_instance_id: Annotated[string | None, since(3)] = None


class HeartbeatResponse(Message, kw_only=True):
    throttle_time_ms: Annotated[int32, since(1, ignorable=True)] = 0
    error_code: int16 = 0
