"""StreamsGroupDescribe (key 89), versions 0-0, flexible from 0. Streams groups and their members (KIP-1071)."""

from __future__ import annotations

from korvet.protocol.messages.consumer_group_describe import GroupState
from korvet.protocol.messages.streams_group_heartbeat import (
    Endpoint,
    KeyValue,
    TaskIds,
    TaskOffset,
    TopicInfo,
)
from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.types import UNKNOWN_OPERATIONS
from korvet.protocol.wire import boolean, int32, string


class StreamsGroupDescribeRequest(Message, kw_only=True):
    api = Api(key=89, versions=(0, 0), flexible=0)

    group_ids: list[string]
    include_authorized_operations: boolean = False


class Subtopology(Part, kw_only=True):
    subtopology_id: string
    source_topics: list[string]
    repartition_sink_topics: list[string]
    state_changelog_topics: list[TopicInfo]
    repartition_source_topics: list[TopicInfo]


class Topology(Part, kw_only=True):
    epoch: int32
    subtopologies: list[Subtopology] | None = None


class Assignment(Part, kw_only=True):
    active_tasks: list[TaskIds]
    standby_tasks: list[TaskIds]
    warmup_tasks: list[TaskIds]


class Member(Part, kw_only=True):
    member_id: string
    member_epoch: int32
    instance_id: string | None = None
    rack_id: string | None = None
    client_id: string
    client_host: string
    topology_epoch: int32
    process_id: string
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue]
    task_offsets: list[TaskOffset]
    task_end_offsets: list[TaskOffset]
    assignment: Assignment
    target_assignment: Assignment
    is_classic: boolean


class DescribedGroup(GroupState, kw_only=True):
    topology: Topology | None = None
    members: list[Member] = []
    authorized_operations: int32 = UNKNOWN_OPERATIONS


class StreamsGroupDescribeResponse(Response, kw_only=True):
    groups: list[DescribedGroup] = []
