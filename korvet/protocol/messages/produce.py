"""Produce (key 0), versions 3-13, flexible from 9. A producer appends record batches to partitions.

Versions 0-2 carried older record formats and are gone since Kafka 4.0; they are still advertised, and refused, because
librdkafka before 2.11 turns compression off if they are missing (KAFKA-18659). Version 3 brought transactions and
record batches of format 2 (KIP-98). 4 allows KAFKA_STORAGE_ERROR in the answer. 5 answers the log's start (KIP-207). 7
allows zstd (KIP-110). 8 names the records that spoilt a batch (KIP-467). 10 may name the new leader (KIP-951). 11
allows TRANSACTION_ABORTABLE and 12 adds the partition to the transaction by itself (KIP-890). 13 names topics by id
(KIP-516).
"""

from __future__ import annotations

from typing import Annotated

from korvet.protocol import wire
from korvet.protocol.schema import Api, Message, Part, since
from korvet.protocol.wire import ZERO_UUID, int16, int32, int64, string, uuid


class PartitionProduceData(Part, kw_only=True):
    index: int32
    records: wire.records | None


class TopicProduceData(Part, kw_only=True):
    name: Annotated[string, since(0, until=12, ignorable=True)] = ""
    topic_id: Annotated[uuid, since(13, ignorable=True)] = ZERO_UUID
    partition_data: list[PartitionProduceData]


class ProduceRequest(Message, kw_only=True):
    """Appends records. With acks 0 the broker sends no response at all."""

    api = Api(key=0, versions=(3, 13), flexible=9, advertised_from=0)

    transactional_id: string | None = None
    acks: int16
    timeout_ms: int32
    topic_data: list[TopicProduceData]


class BatchIndexAndErrorMessage(Part, kw_only=True):
    """One record that spoilt its batch, by its index there."""

    batch_index: int32
    batch_index_error_message: string | None = None


class LeaderIdAndEpoch(Part, kw_only=True):
    """Who leads the partition now; -1 if that is not known."""

    leader_id: int32 = -1
    leader_epoch: int32 = -1


class PartitionProduceResponse(Part, kw_only=True):
    index: int32
    error_code: int16 = 0
    base_offset: int64
    log_append_time_ms: int64 = -1
    log_start_offset: Annotated[int64, since(5, ignorable=True)] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], since(8, ignorable=True)] = []
    error_message: Annotated[string | None, since(8, ignorable=True)] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, since(10, tag=0)] = None


class TopicProduceResponse(Part, kw_only=True):
    name: Annotated[string, since(0, until=12, ignorable=True)] = ""
    topic_id: Annotated[uuid, since(13, ignorable=True)] = ZERO_UUID
    partition_responses: list[PartitionProduceResponse]


class NodeEndpoint(Part, kw_only=True):
    """The address of a broker that a `current_leader` names."""

    node_id: int32
    host: string
    port: int32
    rack: string | None = None


class ProduceResponse(Message, kw_only=True):
    responses: list[TopicProduceResponse] = []
    throttle_time_ms: int32 = 0
    node_endpoints: Annotated[list[NodeEndpoint], since(10, tag=0)] = []
