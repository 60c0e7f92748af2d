"""Kafka's messages, one file per API. Knows which there are; `MESSAGES` is the whole list.

What a handler needs it imports from the message's own file.
"""

from __future__ import annotations

from korvet.protocol.compile import compile_served
from korvet.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from korvet.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from korvet.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from korvet.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from korvet.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from korvet.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from korvet.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from korvet.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from korvet.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from korvet.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from korvet.protocol.messages.fetch import FetchRequest, FetchResponse
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from korvet.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from korvet.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from korvet.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from korvet.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from korvet.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from korvet.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from korvet.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from korvet.protocol.messages.metadata import MetadataRequest, MetadataResponse
from korvet.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from korvet.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from korvet.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from korvet.protocol.messages.produce import ProduceRequest, ProduceResponse
from korvet.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from korvet.protocol.schema import Message

MESSAGES: tuple[type[Message], ...] = (
    ProduceRequest,
    ProduceResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
"""Every request and response, by API key."""


def compile_all() -> int:
    """Compile what a broker uses of all messages; returns how many codecs that made.

    Called before the fork: a mistake in a declaration ends the start (TypeError), and the workers share the
    memory.
    """
    return compile_served(MESSAGES)
