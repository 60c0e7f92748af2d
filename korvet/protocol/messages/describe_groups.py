"""DescribeGroups (key 15), versions 0-6, flexible from 5. The state of groups, and who their members are.

Version 3 may ask what the client is allowed to do (KIP-430). 4 adds instance ids of static members (KIP-345). 6 has an
error for a group that is not there (KIP-1043).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.types import UNKNOWN_OPERATIONS
from korvet.protocol.wire import boolean, bytestring, int16, int32, string


class DescribeGroupsRequest(Message, kw_only=True):
    api = Api(key=15, versions=(0, 6), flexible=5)

    groups: list[string]
    include_authorized_operations: Annotated[boolean, since(3)] = False


class DescribedGroupMember(Part, kw_only=True):
    """One member. Its metadata for the group's protocol and its assignment are given for a stable group only."""

    member_id: string
    group_instance_id: Annotated[string | None, since(4, ignorable=True)] = None
    client_id: string
    client_host: string
    member_metadata: bytestring
    member_assignment: bytestring


class DescribedGroup(Part, kw_only=True):
    error_code: int16 = 0
    error_message: Annotated[string | None, since(6)] = None
    group_id: string
    group_state: string = ""
    protocol_type: string = ""
    protocol_data: string = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: Annotated[int32, since(3)] = UNKNOWN_OPERATIONS


class DescribeGroupsResponse(Message, kw_only=True):
    throttle_time_ms: Annotated[int32, since(1, ignorable=True)] = 0
    groups: list[DescribedGroup] = []
