"""DescribeProducers (key 61), version 0: the idempotent producers that partitions remember (KIP-664).

Any broker describes any partition; one that is named twice is described once. The last timestamp is the time of the
producer's last batch by Redis' clock, from which producer.id.expiration.ms counts. There are no transactions, hence
neither a coordinator nor an open one (-1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat

from korvet.errors import KafkaError
from korvet.handlers.context import Caller, LogApi
from korvet.handlers.registry import register
from korvet.log.producers import ActiveProducer
from korvet.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

NO_COORDINATOR = -1

Asked = Mapping[str, Iterable[int]]
"""The partitions of each topic, each once: one takes 4 bytes of a request, its producers thousands of a response."""


def handle(request: DescribeProducersRequest, _caller: Caller, api: LogApi) -> DescribeProducersResponse:
    """Describe the producers of each partition; the failure of one leaves the others unaffected."""
    asked = _asked(request)
    places = [(name, index) for name, indexes in asked.items() for index in indexes]
    return _response(asked, iter(api.active_producers.read(places)))


def refuse(
    request: DescribeProducersRequest, _caller: Caller, error: KafkaError
) -> DescribeProducersResponse:
    """Answer every partition with the error."""
    return _response(_asked(request), repeat(error))


def _asked(request: DescribeProducersRequest) -> Asked:
    asked: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return asked


def _response(
    asked: Asked, answers: Iterator[list[ActiveProducer] | KafkaError]
) -> DescribeProducersResponse:
    topics = [
        TopicResponse(name=name, partitions=[_partition(each, next(answers)) for each in indexes])
        for name, indexes in asked.items()
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


register(DescribeProducersRequest, LogApi, handle, refuse)
