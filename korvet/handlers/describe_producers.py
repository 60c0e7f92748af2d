"""DescribeProducers (key 61), version 0: the idempotent producers that partitions remember (KIP-664).

Any broker tells of any partition. The last timestamp is the time of the producer's last batch by Redis' clock, which is
also what producer.id.expiration.ms goes by; there are no transactions, hence neither coordinator nor open one (-1).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from korvet.errors import KafkaError
from korvet.handlers.handler import Broker, Caller
from korvet.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from korvet.storage.producer_rows import ActiveProducer

REQUEST = DescribeProducersRequest

NO_COORDINATOR = -1


def handle(request: DescribeProducersRequest, _caller: Caller, broker: Broker) -> DescribeProducersResponse:
    """Tell of each partition's producers; one that is not there does not keep the others from it."""
    places = [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    return _response(request, iter(broker.active_producers.read(places)))


def refuse(
    request: DescribeProducersRequest, _caller: Caller, error: KafkaError
) -> DescribeProducersResponse:
    """Answer every partition with the error."""
    return _response(request, repeat(error))


def _response(
    request: DescribeProducersRequest, answers: Iterator[list[ActiveProducer] | KafkaError]
) -> DescribeProducersResponse:
    topics = [
        TopicResponse(
            name=topic.name, partitions=[_partition(each, next(answers)) for each in topic.partition_indexes]
        )
        for topic in request.topics
    ]
    return DescribeProducersResponse(topics=topics)


def _partition(index: int, answer: list[ActiveProducer] | KafkaError) -> PartitionResponse:
    if isinstance(answer, KafkaError):
        return PartitionResponse(
            partition_index=index, error_code=answer.code, error_message=answer.message or None
        )
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=each.producer_id,
                producer_epoch=each.epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.last_ms,
                coordinator_epoch=NO_COORDINATOR,
            )
            for each in answer
        ],
    )
