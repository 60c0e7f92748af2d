"""DescribeProducers (key 61), version 0: the idempotent producers that partitions remember (KIP-664).

Any broker describes any partition; one that is named twice is described once. The last timestamp is the time of the
producer's last batch by Redis' clock, from which producer.id.expiration.ms counts. Coordinators have no epochs: theirs
is 0 after the marker of a transaction, -1 without one.

Errors: INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat

from korvet.errors import KafkaError, partition_code
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import READ, on_topics
from korvet.log.producers import ActiveProducer
from korvet.protocol.messages import describe_producers as wire
from korvet.topics.registry import check_name

Asked = Mapping[str, Iterable[int]]
"""The partitions of each topic, each once: one takes 4 bytes of a request, its producers thousands of a response."""


def handle(
    request: wire.DescribeProducersRequest, _caller: Caller, services: Services
) -> wire.DescribeProducersResponse:
    """Describe the producers of each partition; the failure of one leaves the others unaffected."""
    asked = _asked(request)
    invalid: dict[str, KafkaError] = {}
    for name in asked:
        try:
            check_name(name)
        except KafkaError as error:
            invalid[name] = error.without_frames()
    partitions = [
        (name, index) for name, indexes in asked.items() if name not in invalid for index in indexes
    ]
    producers = iter(services.active_producers.read(partitions))
    return _response(
        asked, (invalid.get(name) or next(producers) for name, indexes in asked.items() for _ in indexes)
    )


def _asked(request: wire.DescribeProducersRequest) -> Asked:
    asked: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return asked


def _response(
    asked: Asked, answers: Iterator[list[ActiveProducer] | KafkaError]
) -> wire.DescribeProducersResponse:
    topics = [
        wire.TopicResponse(name=name, partitions=[_partition(index, next(answers)) for index in indexes])
        for name, indexes in asked.items()
    ]
    return wire.DescribeProducersResponse(topics=topics)


def _partition(index: int, answer: list[ActiveProducer] | KafkaError) -> wire.PartitionResponse:
    if isinstance(answer, KafkaError):
        return wire.PartitionResponse(
            partition_index=index, error_code=partition_code(answer), error_message=answer.message or None
        )
    return wire.PartitionResponse(
        partition_index=index,
        active_producers=[
            wire.ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_ms,
                coordinator_epoch=0 if producer.transaction >= 0 > producer.first_offset else -1,
                current_txn_start_offset=producer.first_offset,
            )
            for producer in answer
        ],
    )


register(
    handle,
    lambda request, _caller, error: _response(_asked(request), repeat(error)),
    rights=[on_topics(READ)],
)
