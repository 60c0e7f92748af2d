"""ConsumerGroupDescribe (key 69), versions 0-1, flexible from 0. The state of groups of KIP-848, and their members.

Version 1 says by which protocol a member takes part (KIP-1099).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, Response, since
from korvet.protocol.types import UNKNOWN_OPERATIONS
from korvet.protocol.wire import boolean, int8, int16, int32, string, uuid


class ConsumerGroupDescribeRequest(Message, kw_only=True):
    api = Api(key=69, versions=(0, 1), flexible=0)

    group_ids: list[string]
    include_authorized_operations: boolean = False


class TopicPartitions(Part, kw_only=True):
    topic_id: uuid
    topic_name: string
    partitions: list[int32]


class Assignment(Part, kw_only=True):
    topic_partitions: list[TopicPartitions]


class Member(Part, kw_only=True):
    """One member; its type is 0 for the classic protocol, and 1 for the consumer protocol."""

    member_id: string
    instance_id: string | None = None
    rack_id: string | None = None
    member_epoch: int32
    client_id: string
    client_host: string
    subscribed_topic_names: list[string]
    subscribed_topic_regex: string | None = None
    assignment: Assignment
    target_assignment: Assignment
    member_type: Annotated[int8, since(1, ignorable=True)] = -1


class GroupState(Part, kw_only=True):
    """What is said of a group of any protocol but the classic one."""

    error_code: int16 = 0
    error_message: string | None = None
    group_id: string
    group_state: string = ""
    group_epoch: int32 = 0
    assignment_epoch: int32 = 0


class DescribedGroup(GroupState, kw_only=True):
    assignor_name: string = ""
    members: list[Member] = []
    authorized_operations: int32 = UNKNOWN_OPERATIONS


class ConsumerGroupDescribeResponse(Response, kw_only=True):
    groups: list[DescribedGroup] = []
