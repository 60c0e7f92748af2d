"""Produce (key 0), versions 3-13: appends one record batch to each partition named.

acks 0 gets no response, and a closed connection where something went wrong; acks 1 waits for the append, and acks all
also for the replicas of Redis that the setting `replicas` asks for.
Versions up to 12 name topics, version 13 gives ids. zstd may be sent from version 7 on (KIP-110). A transactional
producer is refused: transactions are not supported.

Where the store is nearly full the answer carries a throttle, and the connection is muted for as long; in every version
the answer goes out before that, as Kafka's broker sends it since KIP-219. Where it is as good as full nothing is
written, and the error is KAFKA_STORAGE_ERROR: the clients know it as one after which nothing was written and which they
are to try again (the Java client and librdkafka among them), and it is what Redis' own refusal becomes.
THROTTLING_QUOTA_EXCEEDED is unknown to some of them as an answer to Produce.
"""

from __future__ import annotations

from functools import partial

from korvet.errors import ErrorCode, KafkaError, ProtocolError, RecordsRefusedError
from korvet.handlers.context import Broker, Caller
from korvet.log.append import Delivering, Delivery, Result
from korvet.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from korvet.protocol.types import ACKS_ALL
from korvet.protocol.wire import ZERO_UUID
from korvet.telemetry.request_timer import REDIS, WAIT

REQUEST = ProduceRequest
TOPIC_ID_VERSION_FIRST = 13
ZSTD_VERSION_FIRST = 7
ACKS = (0, 1, ACKS_ALL)


def handle(request: ProduceRequest, caller: Caller, broker: Broker) -> ProduceResponse | None:
    """Append everything in the request, and answer for each partition; None for acks 0."""
    return begin(request, caller, broker).finish()


class _Producing:
    """A request whose records are on their way."""

    def __init__(
        self,
        request: ProduceRequest,
        caller: Caller,
        broker: Broker,
        delivering: Delivering,
        throttle_ms: int,
    ) -> None:
        self._request = request
        self._caller = caller
        self._broker = broker
        self._delivering = delivering
        self._throttle_ms = throttle_ms

    @property
    def in_order(self) -> bool:
        return self._delivering.in_order

    @property
    def ready(self) -> bool:
        return self._delivering.ready and not (
            self._request.acks == ACKS_ALL and self._broker.replicas.awaited
        )

    def finish(self) -> ProduceResponse | None:
        laps = self._caller.laps
        results = self._delivering.finish()
        laps.lap(REDIS)
        if self._request.acks == ACKS_ALL and self._broker.replicas.awaited:
            results = self._broker.replicas.confirm(results)
            laps.lap(WAIT)
        throttle_ms = self._throttle_ms
        if self._broker.failures.note(results):
            throttle_ms = self._broker.pressure.full()
        if throttle_ms:
            self._caller.mute(throttle_ms)
        return _respond(self._request, results, throttle_ms)


class _Refused:
    """A request of which nothing is written, since the store has no room."""

    in_order = True
    ready = True

    def __init__(
        self, request: ProduceRequest, caller: Caller, broker: Broker, refusal: KafkaError, throttle_ms: int
    ) -> None:
        self._request = request
        self._caller = caller
        self._broker = broker
        self._refusal = refusal
        self._throttle_ms = throttle_ms

    def finish(self) -> ProduceResponse | None:
        results: list[Result] = [
            self._refusal for topic in self._request.topic_data for _ in topic.partition_data
        ]
        self._broker.failures.refused(self._refusal, len(results))
        self._caller.mute(self._throttle_ms)
        return _respond(self._request, results, self._throttle_ms)


def begin(request: ProduceRequest, caller: Caller, broker: Broker) -> _Producing | _Refused:
    """Check, decode and send what is in the request; what is returned waits for Redis and makes the answer."""
    if request.acks not in ACKS:
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {request.acks} is not 0, 1 or -1")
    if request.transactional_id is not None:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not supported")
    throttle_ms, refusal = broker.pressure.felt()
    if refusal:
        error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, refusal)
        return _Refused(request, caller, broker, error, throttle_ms)
    deliveries = []
    for topic in request.topic_data:
        if caller.version >= TOPIC_ID_VERSION_FIRST:
            find = partial(broker.topics.find_by_id, topic.topic_id)
        else:
            find = partial(broker.topics.find, topic.name)
        deliveries += [Delivery(find, each.index, each.records) for each in topic.partition_data]
    zstd_known = caller.version >= ZSTD_VERSION_FIRST
    delivering = broker.appender.begin(deliveries, zstd_known=zstd_known, hold=caller.hold)
    return _Producing(request, caller, broker, delivering, throttle_ms)


def _respond(request: ProduceRequest, results: list[Result], throttle_ms: int) -> ProduceResponse | None:
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
    return ProduceResponse(responses=responses, throttle_time_ms=throttle_ms)


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
        wrong = result.records if isinstance(result, RecordsRefusedError) else ()
        return PartitionProduceResponse(
            index=index,
            error_code=result.code,
            base_offset=-1,
            record_errors=[
                BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=what)
                for at, what in wrong
            ],
            error_message=result.message or None,
        )
    return PartitionProduceResponse(
        index=index,
        base_offset=result.base_offset,
        log_append_time_ms=result.timestamp,
        log_start_offset=result.log_start,
    )
