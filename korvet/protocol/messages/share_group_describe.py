"""ShareGroupDescribe (key 77), versions 1-1, flexible from 0. The state of share groups, and their members (KIP-932).

Version 0 was that of a preview.
"""

from __future__ import annotations

from korvet.protocol.messages.consumer_group_describe import Assignment, GroupState
from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.types import UNKNOWN_OPERATIONS
from korvet.protocol.wire import boolean, int32, string


class ShareGroupDescribeRequest(Message, kw_only=True):
    api = Api(key=77, versions=(1, 1), flexible=0)

    group_ids: list[string]
    include_authorized_operations: boolean = False


class Member(Part, kw_only=True):
    member_id: string
    rack_id: string | None = None
    member_epoch: int32
    client_id: string
    client_host: string
    subscribed_topic_names: list[string]
    assignment: Assignment


class DescribedGroup(GroupState, kw_only=True):
    assignor_name: string = ""
    members: list[Member] = []
    authorized_operations: int32 = UNKNOWN_OPERATIONS


class ShareGroupDescribeResponse(Response, kw_only=True):
    groups: list[DescribedGroup] = []
