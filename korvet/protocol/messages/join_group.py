"""JoinGroup (key 11), versions 0-9, flexible from 6. A member joins a group's next generation.

Version 1 adds the rebalance timeout. From 4 on a new member gets its id first, and joins with it (KIP-394). 5 adds
static members (KIP-345). 7 answers the protocol type (KIP-559). 8 adds the reason (KIP-800). 9 lets a leader skip the
assignment (KIP-814).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import boolean, bytestring, int16, int32, string


class JoinGroupRequestProtocol(Part, kw_only=True):
    """An assignment protocol that the member supports, with the metadata that its leader needs."""

    name: string
    metadata: bytestring


class JoinGroupRequest(Message, kw_only=True):
    """Joins a group; an empty member id is a member that has none yet. Protocols are in order of preference."""

    api = Api(key=11, versions=(0, 9), flexible=6)

    group_id: string
    session_timeout_ms: int32
    rebalance_timeout_ms: Annotated[int32, since(1, ignorable=True)] = -1
    member_id: string
    group_instance_id: Annotated[string | None, since(5)] = None
    protocol_type: string
    protocols: list[JoinGroupRequestProtocol]
    reason: Annotated[string | None, since(8, ignorable=True)] = None


class JoinGroupResponseMember(Part, kw_only=True):
    member_id: string
    group_instance_id: Annotated[string | None, since(5, ignorable=True)] = None
    metadata: bytestring


class JoinGroupResponse(Message, kw_only=True):
    """The generation that the member is part of; only the leader gets the members."""

    throttle_time_ms: Annotated[int32, since(2, ignorable=True)] = 0
    error_code: int16 = 0
    generation_id: int32 = -1
    protocol_type: Annotated[string | None, since(7, ignorable=True)] = None
    protocol_name: Annotated[string | None, since(0, nullable=7)] = ""
    leader: string = ""
    skip_assignment: Annotated[boolean, since(9)] = False
    member_id: string = ""
    members: list[JoinGroupResponseMember] = []
