"""StreamsGroupDescribe (key 89), versions 0-0, flexible from 0. Streams groups and their members (KIP-1071)."""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part
from korvet.protocol.types import UNKNOWN_OPERATIONS
from korvet.protocol.wire import boolean, int16, int32, int64, string, uint16


class StreamsGroupDescribeRequest(Message, kw_only=True):
    api = Api(key=89, versions=(0, 0), flexible=0)

    group_ids: list[string]
    include_authorized_operations: boolean = False


class KeyValue(Part, kw_only=True):
    key: string
    value: string


class TopicInfo(Part, kw_only=True):
    """An internal topic, with the partitions that it has, or is to have."""

    name: string
    partitions: int32
    replication_factor: int16
    topic_configs: list[KeyValue]


class Subtopology(Part, kw_only=True):
    subtopology_id: string
    source_topics: list[string]
    repartition_sink_topics: list[string]
    state_changelog_topics: list[TopicInfo]
    repartition_source_topics: list[TopicInfo]


class Topology(Part, kw_only=True):
    epoch: int32
    subtopologies: list[Subtopology] | None = None


class TaskIds(Part, kw_only=True):
    subtopology_id: string
    partitions: list[int32]


class TaskOffset(Part, kw_only=True):
    subtopology_id: string
    partition: int32
    offset: int64


class Assignment(Part, kw_only=True):
    active_tasks: list[TaskIds]
    standby_tasks: list[TaskIds]
    warmup_tasks: list[TaskIds]


class Endpoint(Part, kw_only=True):
    host: string
    port: uint16


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


class DescribedGroup(Part, kw_only=True):
    error_code: int16 = 0
    error_message: string | None = None
    group_id: string
    group_state: string = ""
    group_epoch: int32 = 0
    assignment_epoch: int32 = 0
    topology: Topology | None = None
    members: list[Member] = []
    authorized_operations: int32 = UNKNOWN_OPERATIONS


class StreamsGroupDescribeResponse(Message, kw_only=True):
    throttle_time_ms: int32 = 0
    groups: list[DescribedGroup] = []
