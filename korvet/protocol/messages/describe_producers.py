"""DescribeProducers (key 61), versions 0-0, flexible from 0. An administrator asks who writes (KIP-664)."""

from __future__ import annotations

from korvet.protocol.schema import Api, Message, Part, Response
from korvet.protocol.wire import int16, int32, int64, string


class TopicRequest(Part, kw_only=True):
    name: string
    partition_indexes: list[int32]


class DescribeProducersRequest(Message, kw_only=True):
    api = Api(key=61, versions=(0, 0), flexible=0)

    topics: list[TopicRequest]


class ProducerState(Part, kw_only=True):
    """An idempotent producer; current_txn_start_offset is -1 if it has no transaction open."""

    producer_id: int64
    producer_epoch: int32
    last_sequence: int32 = -1
    last_timestamp: int64 = -1
    coordinator_epoch: int32
    current_txn_start_offset: int64 = -1


class PartitionResponse(Part, kw_only=True):
    partition_index: int32
    error_code: int16 = 0
    error_message: string | None = None
    active_producers: list[ProducerState] = []


class TopicResponse(Part, kw_only=True):
    name: string
    partitions: list[PartitionResponse]


class DescribeProducersResponse(Response, kw_only=True):
    topics: list[TopicResponse] = []
