"""LeaveGroup (key 13), versions 0-5, flexible from 4. Members go, and the group need not wait for their timeouts.

From version 3 on many may be named, static ones by their instance (KIP-345). 5 adds the reason (KIP-800).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import int16, int32, string


class MemberIdentity(Part, kw_only=True):
    """A member that leaves; an empty member id names the holder of the instance id."""

    member_id: string
    group_instance_id: string | None = None
    reason: Annotated[string | None, since(5, ignorable=True)] = None


class LeaveGroupRequest(Message, kw_only=True):
    api = Api(key=13, versions=(0, 5), flexible=4)

    group_id: string
    member_id: Annotated[string, since(0, until=2)] = ""
    members: Annotated[list[MemberIdentity], since(3)] = []


class MemberResponse(Part, kw_only=True):
    member_id: string
    group_instance_id: string | None
    error_code: int16 = 0


class LeaveGroupResponse(Message, kw_only=True):
    throttle_time_ms: Annotated[int32, since(1, ignorable=True)] = 0
    error_code: int16 = 0
    members: Annotated[list[MemberResponse], since(3)] = []
