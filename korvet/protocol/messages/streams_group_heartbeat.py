"""StreamsGroupHeartbeat (key 88), versions 0-0, flexible from 0. A member joins, stays or leaves (KIP-1071).

A task is a partition of a subtopology. A field that is null, or -1, has not changed since the last heartbeat.
"""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, ResponseWithMessage
from korvet.protocol.wire import boolean, int8, int16, int32, int64, string, uint16


class KeyValue(Part, kw_only=True):
    key: string
    value: string


class TopicInfo(Part, kw_only=True):
    """An internal topic: in a heartbeat 0 partitions, or a replication factor of 0, are the broker's to choose."""

    name: string
    partitions: int32
    replication_factor: int16
    topic_configs: list[KeyValue]


class CopartitionGroup(Part, kw_only=True):
    """Topics that need the same number of partitions, as indexes into the arrays of their subtopology."""

    source_topics: list[int16]
    source_topic_regex: list[int16]
    repartition_source_topics: list[int16]


class Subtopology(Part, kw_only=True):
    subtopology_id: string
    source_topics: list[string]
    source_topic_regex: list[string]
    state_changelog_topics: list[TopicInfo]
    repartition_sink_topics: list[string]
    repartition_source_topics: list[TopicInfo]
    copartition_groups: list[CopartitionGroup]


class Topology(Part, kw_only=True):
    epoch: int32
    subtopologies: list[Subtopology]


class TaskIds(Part, kw_only=True):
    subtopology_id: string
    partitions: list[int32]


class TaskOffset(Part, kw_only=True):
    subtopology_id: string
    partition: int32
    offset: int64


class Endpoint(Part, kw_only=True):
    """Where an instance answers interactive queries."""

    host: string
    port: uint16


class StreamsGroupHeartbeatRequest(Message, kw_only=True):
    """Member epoch 0 joins, and -1 leaves. The tasks are those that the member owns."""

    api = Api(key=88, versions=(0, 0), flexible=0)

    group_id: string
    member_id: string
    member_epoch: int32
    endpoint_information_epoch: int32
    instance_id: string | None = None
    rack_id: string | None = None
    rebalance_timeout_ms: int32 = -1
    topology: Topology | None = None
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    process_id: string | None = None
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] | None = None
    task_offsets: list[TaskOffset] | None = None
    task_end_offsets: list[TaskOffset] | None = None
    shutdown_application: boolean = False


class Status(Part, kw_only=True):
    """What the members are to know of the group: see korvet.groups.streams.types.GroupStatus."""

    status_code: int8
    status_detail: string


class TopicPartition(Part, kw_only=True):
    topic: string
    partitions: list[int32]


class EndpointToPartitions(Part, kw_only=True):
    user_endpoint: Endpoint
    active_partitions: list[TopicPartition]
    standby_partitions: list[TopicPartition]


class StreamsGroupHeartbeatResponse(ResponseWithMessage, kw_only=True):
    """The tasks are null if they have not changed."""

    member_id: string = ""
    member_epoch: int32 = 0
    heartbeat_interval_ms: int32 = 0
    acceptable_recovery_lag: int32 = 0
    task_offset_interval_ms: int32 = 0
    status: list[Status] | None = []
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    endpoint_information_epoch: int32 = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = None
