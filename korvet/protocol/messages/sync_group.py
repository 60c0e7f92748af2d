"""SyncGroup (key 14), versions 0-5, flexible from 4. The leader hands in assignments; every member gets its own.

Version 3 adds static members (KIP-345). 5 names protocol type and protocol both ways, for comparison (KIP-559).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import bytestring, int16, int32, string


class SyncGroupRequestAssignment(Part, kw_only=True):
    member_id: string
    assignment: bytestring


class SyncGroupRequest(Message, kw_only=True):
    """Asks for the member's assignment; the leader brings those of all."""

    api = Api(key=14, versions=(0, 5), flexible=4)

    group_id: string
    generation_id: int32
    member_id: string
    group_instance_id: Annotated[string | None, since(3)] = None
    protocol_type: Annotated[string | None, since(5, ignorable=True)] = None
    protocol_name: Annotated[string | None, since(5, ignorable=True)] = None
    assignments: list[SyncGroupRequestAssignment]


class SyncGroupResponse(Message, kw_only=True):
    throttle_time_ms: Annotated[int32, since(1, ignorable=True)] = 0
    error_code: int16 = 0
    protocol_type: Annotated[string | None, since(5, ignorable=True)] = None
    protocol_name: Annotated[string | None, since(5, ignorable=True)] = None
    assignment: bytestring = b""
