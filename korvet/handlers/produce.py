"""Produce (key 0), versions 3-13: appends one record batch to each partition named.

acks 0 gets no response, and a closed connection if something went wrong; acks 1 waits for the append, and acks all
also for the replicas of Redis that `replicas` and `min.insync.replicas` ask for.
Versions up to 12 name topics, version 13 gives ids. zstd may be sent from version 7 on (KIP-110).

The first batch of a transaction in a partition is verified with the coordinator: up to version 11 the producer has
added the partition before, from version 12 on this adds it (KIP-890).

If the store is nearly full the response carries a throttle time, and the connection is then muted for as long; in every
version the response is sent before that, as by Kafka's broker since KIP-219. If the store is full nothing is written,
and the error is KAFKA_STORAGE_ERROR: clients (the Java client and librdkafka among them) know it as one after which
nothing was written, and retry, and it is what Redis' own refusal becomes. Some of them do not know
THROTTLING_QUOTA_EXCEEDED as an answer to Produce. In a cluster this goes for the partitions of a node that is full, and
the connection is not muted for a refusal: it may have partitions of other nodes.

A batch that was sent to Redis and got no reply may be written or not. Its producer, if it is idempotent, has to send it
again with all that came after it, so its connection is closed. An error would not do: the next batch, already on its
way, would be OUT_OF_ORDER_SEQUENCE_NUMBER, upon which librdkafka takes a new epoch and writes what is written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat

from korvet.errors import (
    AppendUnknownError,
    ErrorCode,
    KafkaError,
    ProtocolError,
    RecordsRefusedError,
    StorageUnavailableError,
    UnansweredError,
    partition_code,
)
from korvet.handlers.common import error_message
from korvet.handlers.context import Caller, LogApi
from korvet.handlers.registry import Reply, register_pipelined
from korvet.log.append import AppendResult
from korvet.pending import Done, Pending, Then
from korvet.protocol.messages import produce as wire
from korvet.protocol.types import ACKS_ALL
from korvet.protocol.wire import ZERO_UUID
from korvet.telemetry.request_timer import REDIS, WAIT
from korvet.topics.types import Partition, PartitionRef, TopicRef
from korvet.transactions.coordinator import TransactionCoordinator

TOPIC_ID_VERSION_FIRST = 13
ZSTD_VERSION_FIRST = 7
ABORTABLE_VERSION_FIRST = 11
"""From here on producers know TRANSACTION_ABORTABLE (KIP-890)."""
ADDING_VERSION_FIRST = 12
"""From here on they do not add partitions to their transactions (KIP-890)."""
ACKS = (0, 1, ACKS_ALL)


def handle(request: wire.ProduceRequest, caller: Caller, api: LogApi) -> Pending[Reply]:
    """Check, decode and send what is in the request; the reply waits for Redis."""
    throttle_ms, refusal = api.pressure.check()
    if refusal:
        return Done(_refuse_all(request, api, refusal, throttle_ms))
    by_id = caller.version >= TOPIC_ID_VERSION_FIRST
    batches = [
        PartitionRef(TopicRef(topic.name, topic.topic_id if by_id else None), each.index, each.records)
        for topic in request.topic_data
        for each in topic.partition_data
    ]
    zstd_known = caller.version >= ZSTD_VERSION_FIRST
    acks_all = request.acks == ACKS_ALL
    appends = api.appender.begin(
        batches,
        zstd_known=zstd_known,
        reserve_memory=caller.reserve_memory,
        check_acks=api.replicas.check_insync if acks_all else None if request.acks in ACKS else _refuse_acks,
        pressure=api.pressure.by_stream,
        version=caller.session.order_version,
        verify=None
        if request.transactional_id is None
        else partial(_verify, api.transactions, request.transactional_id, caller.version),
    )

    def reply(results: list[AppendResult]) -> Reply:
        caller.timer.end_stage(REDIS)
        # Asked again: batches may have been sent since.
        if acks_all and (api.replicas.least or appends.replicas):
            results = api.replicas.confirm(results)
            caller.timer.end_stage(WAIT)
        throttled_ms = max(throttle_ms, appends.throttle_ms)
        if api.failures.note(results):
            throttled_ms = max(throttled_ms, api.pressure.memory_full())
        return Reply(_response(request, results, throttled_ms), throttled_ms)

    return Then(appends, reply, waits=acks_all and (api.replicas.least or appends.replicas) > 0)


def _refuse_acks(_partition: Partition) -> None:
    raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, "acks is not 0, 1 or -1")


def _verify(
    coordinator: TransactionCoordinator,
    transactional_id: str,
    version: int,
    producer_id: int,
    epoch: int,
    partitions: Sequence[Partition],
) -> int:
    """Return the number of the transaction that the partitions are in; raises KafkaError with a code for producers."""
    verify_only = version < ADDING_VERSION_FIRST
    try:
        return coordinator.add_partitions(
            transactional_id, producer_id, epoch, partitions, verify_only=verify_only
        )
    except KafkaError as error:
        code = _code_for_producers(error.code, version)
        if code is error.code:
            raise
        raise KafkaError(code, error.message) from error


def _code_for_producers(code: ErrorCode, version: int) -> ErrorCode:
    """Return what a coordinator's error is for producers: that of Kafka's broker, as far as the version knows it."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code in {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}:
        knows = version >= ABORTABLE_VERSION_FIRST
        return ErrorCode.TRANSACTION_ABORTABLE if knows else ErrorCode.INVALID_TXN_STATE
    concurrent = code is ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDING_VERSION_FIRST
    if concurrent or code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
        # Producers do not retry them as an answer to Produce; this they do, without asking for metadata again.
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code


def _refuse_all(request: wire.ProduceRequest, api: LogApi, reason: str, throttle_ms: int) -> Reply:
    """Answer a request of which nothing is written, since the store has no room."""
    error = StorageUnavailableError(reason)
    api.appender.note_refusal(error)
    results: list[AppendResult] = [error for topic in request.topic_data for _ in topic.partition_data]
    api.failures.refused(error, len(results))
    return Reply(_response(request, results, throttle_ms), throttle_ms)


def _response(
    request: wire.ProduceRequest, results: Iterable[AppendResult], throttle_ms: int = 0
) -> wire.ProduceResponse | None:
    """Return the response, None for acks 0."""
    if request.acks == 0:
        _close_on_failure(results)
        return None
    remaining = iter(results)
    responses = [
        wire.TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id or ZERO_UUID,
            partition_responses=[
                _partition_response(each.index, next(remaining)) for each in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    return wire.ProduceResponse(responses=responses, throttle_time_ms=throttle_ms)


def refuse(request: wire.ProduceRequest, _caller: Caller, error: KafkaError) -> wire.ProduceResponse | None:
    """Answer every partition with the error."""
    return _response(request, repeat(error))


def _close_on_failure(results: Iterable[AppendResult]) -> None:
    """Without a response, closing is the only way to say that records were lost, as Kafka's broker does."""
    for result in results:
        if isinstance(result, KafkaError):
            raise ProtocolError(f"a produce request with acks 0 failed: {result}")


def _partition_response(index: int, result: AppendResult) -> wire.PartitionProduceResponse:
    if isinstance(result, AppendUnknownError) and result.idempotent:
        message = f"a batch of an idempotent producer may be written or not: {result.message}"
        raise UnansweredError(message)
    if isinstance(result, KafkaError):
        wrong = result.records if isinstance(result, RecordsRefusedError) else ()
        return wire.PartitionProduceResponse(
            index=index,
            error_code=partition_code(result),
            base_offset=-1,
            record_errors=[
                wire.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=what)
                for at, what in wrong
            ],
            error_message=error_message(result),
        )
    return wire.PartitionProduceResponse(
        index=index,
        base_offset=result.base_offset,
        log_append_time_ms=result.timestamp,
        log_start_offset=result.log_start,
    )


def _abandoned(request: wire.ProduceRequest) -> ErrorCode:
    """Return NONE for a producer that wants no answer: it may have closed as soon as it had sent."""
    return ErrorCode.NONE if request.acks == 0 else ErrorCode.KAFKA_STORAGE_ERROR


register_pipelined(
    wire.ProduceRequest,
    LogApi,
    handle,
    refuse,
    abandoned=_abandoned,
    errors={
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    },
)
