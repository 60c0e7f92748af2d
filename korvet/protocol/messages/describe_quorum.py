"""DescribeQuorum (key 55), versions 0-2, flexible from 0. Who keeps the cluster's metadata, and how far each has it.

Since KIP-595. Version 1 adds times of the replicas (KIP-836), 2 their directories, addresses and messages (KIP-853).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import ZERO_UUID, int16, int32, int64, string, uint16, uuid


class AskedPartition(Part, kw_only=True):
    partition_index: int32


class AskedTopic(Part, kw_only=True):
    topic_name: string
    partitions: list[AskedPartition]


class DescribeQuorumRequest(Message, kw_only=True):
    """Asks about partition 0 of `__cluster_metadata`, the only one that has a quorum."""

    api = Api(key=55, versions=(0, 2), flexible=0)

    topics: list[AskedTopic]


class ReplicaState(Part, kw_only=True):
    """A replica; its times are ms of the leader's clock, -1 if they are not known."""

    replica_id: int32
    replica_directory_id: Annotated[uuid, since(2)] = ZERO_UUID
    log_end_offset: int64
    last_fetch_timestamp: Annotated[int64, since(1, ignorable=True)] = -1
    last_caught_up_timestamp: Annotated[int64, since(1, ignorable=True)] = -1


class PartitionData(Part, kw_only=True):
    partition_index: int32
    error_code: int16 = 0
    error_message: Annotated[string | None, since(2, ignorable=True)] = ""
    leader_id: int32 = 0
    leader_epoch: int32 = 0
    high_watermark: int64 = 0
    current_voters: list[ReplicaState] = []
    observers: list[ReplicaState] = []


class TopicData(Part, kw_only=True):
    topic_name: string
    partitions: list[PartitionData]


class Listener(Part, kw_only=True):
    name: string
    host: string
    port: uint16


class Node(Part, kw_only=True):
    node_id: int32
    listeners: list[Listener]


class DescribeQuorumResponse(Message, kw_only=True):
    error_code: int16 = 0
    error_message: Annotated[string | None, since(2, ignorable=True)] = ""
    topics: list[TopicData] = []
    nodes: Annotated[list[Node], since(2)] = []
