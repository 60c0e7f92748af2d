"""Metadata (key 3), versions 0-13, flexible from 9. Where topics are; asking may create them.

Version 0 means all topics by an empty list, later ones by null (KIP-4). Version 4 may forbid automatic creation.
Versions 10 to 13 carry topic ids (KIP-516); asking by id works from version 12. Version 13 adds a top-level error.
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.types import UNKNOWN_OPERATIONS
from korvet.protocol.wire import ZERO_UUID, boolean, int16, int32, string, uuid


class MetadataRequestTopic(Part, kw_only=True):
    """A topic by name, or by id with a null name (version 12)."""

    topic_id: Annotated[uuid, since(10, ignorable=True)] = ZERO_UUID
    name: Annotated[string | None, since(0, nullable=10)]


class MetadataRequest(Message, kw_only=True):
    api = Api(key=3, versions=(0, 13), flexible=9)

    topics: Annotated[list[MetadataRequestTopic] | None, since(0, nullable=1)]
    allow_auto_topic_creation: Annotated[boolean, since(4)] = True
    include_cluster_authorized_operations: Annotated[boolean, since(8, until=10)] = False
    include_topic_authorized_operations: Annotated[boolean, since(8)] = False


class MetadataResponseBroker(Part, kw_only=True):
    node_id: int32
    host: string
    port: int32
    rack: Annotated[string | None, since(1, ignorable=True)] = None


class MetadataResponsePartition(Part, kw_only=True):
    """A partition; its leader is advice for load, since every broker serves every partition."""

    error_code: int16 = 0
    partition_index: int32
    leader_id: int32
    leader_epoch: Annotated[int32, since(7, ignorable=True)] = -1
    replica_nodes: list[int32]
    isr_nodes: list[int32]
    offline_replicas: Annotated[list[int32], since(5, ignorable=True)] = []


class MetadataResponseTopic(Part, kw_only=True):
    error_code: int16 = 0
    name: Annotated[string | None, since(0, nullable=12)]
    topic_id: Annotated[uuid, since(10, ignorable=True)] = ZERO_UUID
    is_internal: Annotated[boolean, since(1, ignorable=True)] = False
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: Annotated[int32, since(8)] = UNKNOWN_OPERATIONS


class MetadataResponse(Message, kw_only=True):
    throttle_time_ms: Annotated[int32, since(3, ignorable=True)] = 0
    brokers: list[MetadataResponseBroker] = []
    cluster_id: Annotated[string | None, since(2, ignorable=True)] = None
    controller_id: Annotated[int32, since(1, ignorable=True)] = -1
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: Annotated[int32, since(8, until=10)] = UNKNOWN_OPERATIONS
    error_code: Annotated[int16, since(13, ignorable=True)] = 0
