"""Fetch (key 1), versions 4-18: reads partitions, waiting for records where there are too few.

Incremental sessions (version 7, KIP-227) are declined: every response says session 0, which keeps clients at naming
all their partitions, and a session that a request names cannot be one of this broker's. Versions up to 12 name
topics, later ones give ids. zstd batches need version 10 (KIP-110). There are no transactions, so the last stable
offset is the high watermark and no transaction was aborted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import repeat

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.context import Caller, LogApi
from korvet.handlers.registry import register
from korvet.log.fetch import Limits, check_leader_epoch
from korvet.log.reader import FetchPartitionSpec, FetchResult
from korvet.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from korvet.protocol.types import IsolationLevel
from korvet.telemetry.request_timer import DECODE
from korvet.topics.registry import Topic
from korvet.topics.types import Partition

TOPIC_ID_VERSION_FIRST = 13
ZSTD_VERSION_FIRST = 10
EPOCHS_WITHOUT_SESSION = (0, -1)
"""0 asks for a new session, -1 for none (KIP-227)."""


def handle(request: FetchRequest, caller: Caller, api: LogApi) -> FetchResponse:
    """Read what is asked for, within the limits of request and broker."""
    if request.session_epoch not in EPOCHS_WITHOUT_SESSION:
        raise KafkaError(
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {request.session_id} does not exist"
        )
    wait_ms_max = request.max_wait_ms
    if api.live.settings.connections_max_idle_ms >= 0:
        # That a peer has gone is noticed only when it is answered: it is kept no longer than one that says nothing.
        wait_ms_max = min(wait_ms_max, api.live.settings.connections_max_idle_ms)
    answers, read = _read(request, caller, api, wait_ms_max)
    fenced = [partition for partition, found in read if found.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    if fenced:
        # A topic was deleted, or made anew, since this worker last looked: what there is now is answered at once.
        api.topics.look_again(fenced)
        answers, read = _read(request, caller, api, 0)
    for partition, found in read:
        if found.chunks:
            api.traffic.sent(
                partition.topic, partition.topic_id, found.record_count, sum(map(len, found.chunks))
            )
    return FetchResponse(responses=_topics(request, iter(answers)))


def refuse(request: FetchRequest, _caller: Caller, error: KafkaError) -> FetchResponse:
    """Answer with the error, for the whole fetch and, since versions below 7 know no other, for every partition."""
    if error.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
        return FetchResponse(error_code=error.code)
    return FetchResponse(
        error_code=error.code, responses=_topics(request, repeat(FetchResult(error=error.code)))
    )


def _read(
    request: FetchRequest, caller: Caller, api: LogApi, wait_ms_max: int
) -> tuple[list[FetchResult], list[tuple[Partition, FetchResult]]]:
    """Read every partition, in the order of the request; returns also those that there are, with their answers."""
    places: list[FetchPartitionSpec | FetchResult] = []
    seen: set[tuple[str, bytes, int]] = set()
    for topic in request.topics:
        for partition in topic.partitions:
            place = (topic.topic, topic.topic_id, partition.partition)
            # No client asks so; it would be a way to have one large batch read and held ten thousand times.
            twice = place in seen
            seen.add(place)
            places.append(
                FetchResult(error=ErrorCode.INVALID_REQUEST)
                if twice
                else _wanted(topic, partition, caller, api)
            )
    wanted = [each for each in places if isinstance(each, FetchPartitionSpec)]
    limits = Limits(
        # An error is answered at once.
        wait_ms_max=wait_ms_max if len(wanted) == len(places) else 0,
        bytes_min=request.min_bytes,
        bytes_max=min(request.max_bytes, api.live.settings.fetch_max_bytes),
    )
    caller.timer.end_stage(DECODE)
    found = api.fetcher.fetch(wanted, limits, caller.timer)
    remaining = iter(found)
    answers = [each if isinstance(each, FetchResult) else next(remaining) for each in places]
    return answers, list(zip((each.partition for each in wanted), found, strict=True))


def _wanted(
    topic: FetchTopic, partition: FetchPartition, caller: Caller, api: LogApi
) -> FetchPartitionSpec | FetchResult:
    """Say what to read, or why it cannot be read."""
    try:
        found, found_partition = api.topics.partition(partial(_find, topic, caller, api), partition.partition)
        wanted = FetchPartitionSpec(
            topic=found,
            partition=found_partition,
            offset=partition.fetch_offset,
            bytes_max=partition.partition_max_bytes,
            zstd_known=caller.version >= ZSTD_VERSION_FIRST,
        )
        check_leader_epoch(partition.current_leader_epoch)
    except KafkaError as error:
        return FetchResult(error=error.code)
    return wanted


def _find(topic: FetchTopic, caller: Caller, api: LogApi) -> Topic:
    if caller.version >= TOPIC_ID_VERSION_FIRST:
        return api.topics.find_by_id(topic.topic_id)
    return api.topics.find(topic.topic)


def _topics(request: FetchRequest, answers: Iterator[FetchResult]) -> list[FetchableTopicResponse]:
    committed = request.isolation_level == IsolationLevel.READ_COMMITTED
    return [
        FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[
                _data(each.partition, next(answers), committed=committed) for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]


def _data(index: int, found: FetchResult, *, committed: bool) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=found.error,
        high_watermark=found.high_watermark,
        last_stable_offset=found.high_watermark,
        log_start_offset=found.log_start,
        aborted_transactions=[] if committed else None,
        records=found.chunks,
    )


register(FetchRequest, LogApi, handle, refuse, timed=True)
