"""ListGroups (key 16), versions 0-5, flexible from 3. Which groups there are.

Version 4 adds states and a filter on them (KIP-518), 5 types and a filter on them (KIP-848).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import int16, int32, string


class ListGroupsRequest(Message, kw_only=True):
    """Asks for all groups, or those in one of the states and of one of the types; none named is all."""

    api = Api(key=16, versions=(0, 5), flexible=3)

    states_filter: Annotated[list[string], since(4)] = []
    types_filter: Annotated[list[string], since(5)] = []


class ListedGroup(Part, kw_only=True):
    """One group; the protocol type is empty if it never had members."""

    group_id: string
    protocol_type: string
    group_state: Annotated[string, since(4, ignorable=True)] = ""
    group_type: Annotated[string, since(5, ignorable=True)] = ""


class ListGroupsResponse(Message, kw_only=True):
    throttle_time_ms: Annotated[int32, since(1, ignorable=True)] = 0
    error_code: int16 = 0
    groups: list[ListedGroup] = []
