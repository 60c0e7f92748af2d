"""DescribeTopicPartitions (key 75), versions 0-0, flexible from 0. An administrator reads topics in pieces.

Since KIP-966.
"""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.types import UNKNOWN_OPERATIONS
from korvet.protocol.wire import ZERO_UUID, boolean, int16, int32, string, uuid


class TopicRequest(Part, kw_only=True):
    name: string


class Cursor(Part, kw_only=True):
    """The first partition that an answer is to hold, or that it has not held any more."""

    topic_name: string
    partition_index: int32


class DescribeTopicPartitionsRequest(Message, kw_only=True):
    """Asks for topics, an empty list for all, and for no more partitions than the limit, from the cursor on."""

    api = Api(key=75, versions=(0, 0), flexible=0)

    topics: list[TopicRequest]
    response_partition_limit: int32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Part, kw_only=True):
    """A partition, with the replicas that might lead it though they are not in sync."""

    error_code: int16 = 0
    partition_index: int32
    leader_id: int32
    leader_epoch: int32 = -1
    replica_nodes: list[int32]
    isr_nodes: list[int32]
    eligible_leader_replicas: list[int32] | None = None
    last_known_elr: list[int32] | None = None
    offline_replicas: list[int32] = []


class DescribeTopicPartitionsResponseTopic(Part, kw_only=True):
    error_code: int16 = 0
    name: string | None
    topic_id: uuid = ZERO_UUID
    is_internal: boolean = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    topic_authorized_operations: int32 = UNKNOWN_OPERATIONS


class DescribeTopicPartitionsResponse(Response, kw_only=True):
    """The topics by name; next_cursor is where to go on, null at the end."""

    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: Cursor | None = None
