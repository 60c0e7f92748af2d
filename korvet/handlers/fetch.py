"""Fetch (key 1), versions 4-18: reads partitions, waiting for records where there are too few.

Incremental sessions (version 7, KIP-227) are declined: every response says session 0, which keeps clients at naming
all their partitions, and a session that a request names cannot be one of this broker's. Versions up to 12 name
topics, later ones give ids. zstd batches need version 10 (KIP-110). There are no transactions, so the last stable
offset is the high watermark and no transaction was aborted.
"""

from __future__ import annotations

from korvet.domain.fetch import Found, Limits, Wanted, check_leader_epoch
from korvet.domain.topics import Topic
from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.handler import Broker, Caller
from korvet.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from korvet.protocol.records.compression import Codec

REQUEST = FetchRequest
TOPIC_ID_VERSION_FIRST = 13
ZSTD_VERSION_FIRST = 10
READ_COMMITTED = 1
EPOCHS_WITHOUT_SESSION = (0, -1)
"""0 asks for a new session, -1 for none (KIP-227)."""


def handle(request: FetchRequest, caller: Caller, broker: Broker) -> FetchResponse:
    """Read what is asked for, within the limits of request and broker."""
    if request.session_epoch not in EPOCHS_WITHOUT_SESSION:
        raise KafkaError(
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {request.session_id} does not exist"
        )
    places: list[Wanted | Found] = [
        _wanted(topic, partition, caller, broker)
        for topic in request.topics
        for partition in topic.partitions
    ]
    wanted = [each for each in places if isinstance(each, Wanted)]
    limits = Limits(
        # An error is answered at once.
        wait_ms_max=request.max_wait_ms if len(wanted) == len(places) else 0,
        bytes_min=request.min_bytes,
        bytes_max=min(request.max_bytes, broker.settings.fetch_max_bytes),
    )
    found = iter(broker.fetcher.fetch(wanted, limits))
    answers = iter([each if isinstance(each, Found) else next(found) for each in places])
    by_id = caller.version >= TOPIC_ID_VERSION_FIRST
    committed = request.isolation_level == READ_COMMITTED
    responses = []
    for topic in request.topics:
        partitions = [
            _partition_data(partition.partition, next(answers), by_id=by_id, committed=committed)
            for partition in topic.partitions
        ]
        responses.append(
            FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions)
        )
    if any(each.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for each in places if isinstance(each, Found)):
        broker.topics.refresh()
    return FetchResponse(responses=responses)


def refuse(_request: FetchRequest, error: KafkaError) -> FetchResponse:
    """Answer with the error for the whole fetch."""
    return FetchResponse(error_code=error.code)


def _wanted(topic: FetchTopic, partition: FetchPartition, caller: Caller, broker: Broker) -> Wanted | Found:
    """Say what to read, or why it cannot be read."""
    try:
        found = _find(topic, caller, broker)
        wanted = Wanted(
            topic=found,
            partition=found.partition(partition.partition),
            offset=partition.fetch_offset,
            bytes_max=partition.partition_max_bytes,
        )
        check_leader_epoch(partition.current_leader_epoch)
    except KafkaError as error:
        return Found(error=error.code)
    if found.config.codec is Codec.zstd and caller.version < ZSTD_VERSION_FIRST:
        return Found(error=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    return wanted


def _find(topic: FetchTopic, caller: Caller, broker: Broker) -> Topic:
    if caller.version >= TOPIC_ID_VERSION_FIRST:
        return broker.topics.find_by_id(topic.topic_id)
    return broker.topics.find(topic.topic)


def _partition_data(index: int, found: Found, *, by_id: bool, committed: bool) -> PartitionData:
    error = found.error
    if by_id and error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and found.high_watermark < 0:
        error = ErrorCode.UNKNOWN_TOPIC_ID
    batches = found.batches
    return PartitionData(
        partition_index=index,
        error_code=error,
        high_watermark=found.high_watermark,
        last_stable_offset=found.high_watermark,
        log_start_offset=found.log_start,
        aborted_transactions=[] if committed else None,
        records=batches[0] if len(batches) == 1 else b"".join(batches),
    )
