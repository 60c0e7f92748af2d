"""ShareGroupDescribe (key 77), versions 1-1, flexible from 0. The state of share groups, and their members (KIP-932).

Version 0 was that of a preview.
"""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part
from korvet.protocol.types import UNKNOWN_OPERATIONS
from korvet.protocol.wire import boolean, int16, int32, string, uuid


class ShareGroupDescribeRequest(Message, kw_only=True):
    api = Api(key=77, versions=(1, 1), flexible=0)

    group_ids: list[string]
    include_authorized_operations: boolean = False


class TopicPartitions(Part, kw_only=True):
    topic_id: uuid
    topic_name: string
    partitions: list[int32]


class Assignment(Part, kw_only=True):
    topic_partitions: list[TopicPartitions]


class Member(Part, kw_only=True):
    member_id: string
    rack_id: string | None = None
    member_epoch: int32
    client_id: string
    client_host: string
    subscribed_topic_names: list[string]
    assignment: Assignment


class DescribedGroup(Part, kw_only=True):
    error_code: int16 = 0
    error_message: string | None = None
    group_id: string
    group_state: string = ""
    group_epoch: int32 = 0
    assignment_epoch: int32 = 0
    assignor_name: string = ""
    members: list[Member] = []
    authorized_operations: int32 = UNKNOWN_OPERATIONS


class ShareGroupDescribeResponse(Message, kw_only=True):
    throttle_time_ms: int32 = 0
    groups: list[DescribedGroup] = []
