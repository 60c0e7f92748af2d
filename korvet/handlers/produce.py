"""Produce (key 0), versions 3-13: appends one record batch to each partition named.

acks 0 gets no response, and a closed connection where something went wrong; acks 1 waits for the append, and acks all
also for the replicas of Redis that the setting `replicas` asks for.
Versions up to 12 name topics, version 13 gives ids. zstd may be sent from version 7 on (KIP-110). A transactional
producer is refused: transactions are not supported.
"""

from __future__ import annotations

from functools import partial

from korvet.domain.append import Delivering, Delivery, Result
from korvet.domain.replicas import Replicas
from korvet.errors import ErrorCode, KafkaError, ProtocolError
from korvet.handlers.handler import Broker, Caller
from korvet.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from korvet.protocol.wire import ZERO_UUID

REQUEST = ProduceRequest
TOPIC_ID_VERSION_FIRST = 13
ZSTD_VERSION_FIRST = 7
ACKS_ALL = -1
ACKS = (0, 1, ACKS_ALL)


def handle(request: ProduceRequest, caller: Caller, broker: Broker) -> ProduceResponse | None:
    """Append everything in the request, and answer for each partition; None for acks 0."""
    return begin(request, caller, broker).finish()


class _Producing:
    """A request whose records are on their way."""

    def __init__(self, request: ProduceRequest, delivering: Delivering, replicas: Replicas) -> None:
        self._request = request
        self._delivering = delivering
        self._replicas = replicas

    @property
    def in_order(self) -> bool:
        return self._delivering.in_order

    @property
    def ready(self) -> bool:
        return self._delivering.ready and not (self._request.acks == ACKS_ALL and self._replicas.awaited)

    def finish(self) -> ProduceResponse | None:
        results = self._delivering.finish()
        if self._request.acks == ACKS_ALL:
            results = self._replicas.confirm(results)
        return _respond(self._request, results)


def begin(request: ProduceRequest, caller: Caller, broker: Broker) -> _Producing:
    """Check, decode and send what is in the request; what is returned waits for Redis and makes the answer."""
    if request.acks not in ACKS:
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {request.acks} is not 0, 1 or -1")
    if request.transactional_id is not None:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not supported")
    deliveries = []
    for topic in request.topic_data:
        if caller.version >= TOPIC_ID_VERSION_FIRST:
            find = partial(broker.topics.find_by_id, topic.topic_id)
        else:
            find = partial(broker.topics.find, topic.name)
        deliveries += [Delivery(find, each.index, each.records) for each in topic.partition_data]
    zstd_known = caller.version >= ZSTD_VERSION_FIRST
    delivering = broker.appender.begin(deliveries, zstd_known=zstd_known, hold=caller.hold)
    return _Producing(request, delivering, broker.replicas)


def _respond(request: ProduceRequest, results: list[Result]) -> ProduceResponse | None:
    if request.acks == 0:
        _close_on_failure(results)
        return None
    remaining = iter(results)
    responses = [
        _topic_response(
            topic, [_partition_response(each.index, next(remaining)) for each in topic.partition_data]
        )
        for topic in request.topic_data
    ]
    return ProduceResponse(responses=responses)


def refuse(request: ProduceRequest, _caller: Caller, error: KafkaError) -> ProduceResponse | None:
    """Answer every partition with the error."""
    if request.acks == 0:
        _close_on_failure([error])
    responses = [
        _topic_response(topic, [_partition_response(each.index, error) for each in topic.partition_data])
        for topic in request.topic_data
    ]
    return ProduceResponse(responses=responses)


def _close_on_failure(results: list[Result]) -> None:
    """Without a response, closing is the only way to say that records were lost, as Kafka's broker does."""
    for result in results:
        if isinstance(result, KafkaError):
            message = f"a produce request with acks 0 failed: {result}"
            raise ProtocolError(message)


def _topic_response(
    topic: TopicProduceData, partitions: list[PartitionProduceResponse]
) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=topic.name, topic_id=topic.topic_id or ZERO_UUID, partition_responses=partitions
    )


def _partition_response(index: int, result: Result) -> PartitionProduceResponse:
    if isinstance(result, KafkaError):
        message = result.message or None
        return PartitionProduceResponse(
            index=index, error_code=result.code, base_offset=-1, error_message=message
        )
    return PartitionProduceResponse(
        index=index, base_offset=result.base_offset, log_start_offset=result.log_start
    )
