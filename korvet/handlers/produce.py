"""Produce (key 0), versions 3-13: appends one record batch to each partition named.

korvet_core.DataPath serves it, from the frame to the response, and asks server/decisions.py what it cannot know. Of
the requests themselves only those come here that are refused before a client has logged in, or after its session has
ended.

acks 0 gets no response, and a closed connection if something went wrong; acks 1 waits for the append, and acks all
also for the replicas of Redis that `replicas` and `min.insync.replicas` ask for.
Versions up to 12 name topics, version 13 gives ids. zstd may be sent from version 7 on (KIP-110).

The first batch of a transaction in a partition is verified with the coordinator: up to version 11 the producer has
added the partition before, from version 12 on this adds it (KIP-890).

If the store is nearly full the response carries a throttle time, and the connection is then muted for as long; in every
version the response is sent before that, as by Kafka's broker since KIP-219. If the store is full nothing is written,
and the error is KAFKA_STORAGE_ERROR: clients (the Java client and librdkafka among them) know it as one after which
nothing was written, and retry, and it is what Redis' own refusal becomes. Some of them do not know
THROTTLING_QUOTA_EXCEEDED as an answer to Produce. In a cluster this goes for the partitions of a node that is full.

Errors: CORRUPT_MESSAGE, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_RECORD, INVALID_REQUIRED_ACKS,
INVALID_TIMESTAMP, INVALID_TXN_STATE, MESSAGE_TOO_LARGE, NOT_ENOUGH_REPLICAS, OUT_OF_ORDER_SEQUENCE_NUMBER,
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TRANSACTION_ABORTABLE, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION,
UNSUPPORTED_COMPRESSION_TYPE.
"""

from __future__ import annotations

from typing import NoReturn

from korvet.errors import KafkaError, ProtocolError, partition_code
from korvet.handlers.common import error_message
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import WRITE, on_topics_then_ids, on_transactional_id
from korvet.protocol.messages import produce as wire
from korvet.protocol.wire import ZERO_UUID


def handle(_request: wire.ProduceRequest, _caller: Caller, _services: Services) -> NoReturn:
    """Raise ProtocolError: a client that may produce is served by the core."""
    raise ProtocolError("a Produce request of a client that has no session")


def _refuse(request: wire.ProduceRequest, _caller: Caller, error: KafkaError) -> wire.ProduceResponse:
    """Answer every partition with the error; raises ProtocolError for acks 0, which gets no response."""
    if request.acks == 0:
        raise ProtocolError(f"a produce request with acks 0 failed: {error}")
    code, message = partition_code(error), error_message(error)
    responses = [
        wire.TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id or ZERO_UUID,
            partition_responses=[
                wire.PartitionProduceResponse(
                    index=partition.index, error_code=code, base_offset=-1, error_message=message
                )
                for partition in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    return wire.ProduceResponse(responses=responses)


register(
    handle,
    _refuse,
    rights=[on_transactional_id(), *on_topics_then_ids(WRITE, "topic_data", "responses", ids_since=13)],
)
