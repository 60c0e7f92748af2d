"""Fetch (key 1), versions 4-18: reads partitions, and waits for records if there are too few.

Incremental sessions (version 7, KIP-227) are declined: every response says session 0, which keeps clients at naming
all their partitions, and a session that a request names cannot be one of this broker's. Versions up to 12 name
topics, later ones give ids. Leader epochs are checked since version 9, and since version 12 the epoch of the last
record that a client has (KIP-320, KIP-595). zstd batches need version 10 (KIP-110). There are no transactions, so the
last stable offset is the high watermark and no transaction was aborted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat

from korvet.errors import ErrorCode, KafkaError, partition_code
from korvet.handlers.context import Caller, LogApi
from korvet.handlers.registry import register
from korvet.log.collect import FetchPartitionSpec
from korvet.log.fetch import FetchResult
from korvet.log.types import FetchLimits
from korvet.protocol.messages import fetch as wire
from korvet.protocol.types import IsolationLevel
from korvet.telemetry.request_timer import DECODE
from korvet.topics.registry import Topic
from korvet.topics.types import Partition, PartitionRef, TopicRef
from korvet.turns import in_turns

TOPIC_ID_VERSION_FIRST = 13
ZSTD_VERSION_FIRST = 10
EPOCHS_WITHOUT_SESSION = (0, -1)
"""0 asks for a new session, -1 for none (KIP-227)."""


def handle(request: wire.FetchRequest, caller: Caller, api: LogApi) -> wire.FetchResponse:
    """Read what is asked for, within the limits of request and broker."""
    if request.session_epoch not in EPOCHS_WITHOUT_SESSION:
        raise KafkaError(
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {request.session_id} does not exist"
        )
    settings = api.live.settings
    wait_ms = request.max_wait_ms
    bytes_left = min(request.max_bytes, settings.fetch_max_bytes, caller.fetch_max_bytes)
    min_bytes = min(request.min_bytes, bytes_left)
    if settings.connections_max_idle_ms >= 0:
        # That a peer has gone is noticed only when it is answered: it is kept no longer than one that says nothing.
        wait_ms = min(wait_ms, settings.connections_max_idle_ms)
    zstd_known = caller.version >= ZSTD_VERSION_FIRST
    refs = _refs(request, caller)

    def spec(asked: wire.FetchPartition, topic: Topic, partition: Partition) -> FetchPartitionSpec:
        return FetchPartitionSpec(
            topic,
            partition,
            asked.fetch_offset,
            asked.partition_max_bytes,
            zstd_known=zstd_known,
            leader_epoch=asked.current_leader_epoch,
            last_fetched_epoch=asked.last_fetched_epoch,
        )

    def read(specs: Sequence[FetchPartitionSpec]) -> list[FetchResult | KafkaError]:
        nonlocal wait_ms, bytes_left
        # An error is answered at once.
        limits = FetchLimits(wait_ms if len(specs) == len(refs) else 0, min_bytes, bytes_left, caller.fetched)
        caller.timer.end_stage(DECODE)
        found = api.fetcher.fetch(specs, limits, caller.timer)
        for each, result in in_turns(zip(specs, found, strict=True)):
            if result.chunks:
                size_bytes = sum(map(len, result.chunks))
                api.traffic.sent(
                    each.partition.topic, each.partition.topic_id, result.record_count, size_bytes
                )
                bytes_left -= result.size_bytes
        wait_ms = 0  # a topic that was stale is answered at once, with what there is
        return [
            KafkaError(each.error) if each.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else each
            for each in found
        ]

    answers = api.topics.ask(refs, spec, read, at_once=max(1, len(refs)))
    return wire.FetchResponse(responses=_topics(request, iter(answers)))


def refuse(request: wire.FetchRequest, _caller: Caller, error: KafkaError) -> wire.FetchResponse:
    """Answer with the error, for the whole fetch and, since versions below 7 know no other, for every partition."""
    if error.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
        return wire.FetchResponse(error_code=error.code)
    return wire.FetchResponse(error_code=error.code, responses=_topics(request, repeat(error)))


def _refs(request: wire.FetchRequest, caller: Caller) -> list[PartitionRef[wire.FetchPartition] | KafkaError]:
    """Return the partitions of the request, in its order.

    One that is named twice is an error: no client asks so, and a large batch could be read and held 10,000 times.
    """
    by_id = caller.version >= TOPIC_ID_VERSION_FIRST
    twice = KafkaError(ErrorCode.INVALID_REQUEST, "the partition is named twice")
    seen: set[tuple[TopicRef, int]] = set()
    refs: list[PartitionRef[wire.FetchPartition] | KafkaError] = []
    for asked in request.topics:
        topic = TopicRef(asked.topic, asked.topic_id if by_id else None)
        for each in asked.partitions:
            known, place = len(seen), (topic, each.partition)
            seen.add(place)
            refs.append(PartitionRef(topic, each.partition, each) if len(seen) > known else twice)
    return refs


def _topics(
    request: wire.FetchRequest, answers: Iterator[FetchResult | KafkaError]
) -> list[wire.FetchableTopicResponse]:
    committed = request.isolation_level == IsolationLevel.READ_COMMITTED
    return [
        wire.FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[
                _data(each.partition, next(answers), committed=committed) for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]


def _data(index: int, answer: FetchResult | KafkaError, *, committed: bool) -> wire.PartitionData:
    found = FetchResult(error=partition_code(answer)) if isinstance(answer, KafkaError) else answer
    diverging = found.diverging
    return wire.PartitionData(
        partition_index=index,
        error_code=found.error,
        high_watermark=found.high_watermark,
        last_stable_offset=found.high_watermark,
        log_start_offset=found.log_start,
        diverging_epoch=diverging and wire.EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.start),
        aborted_transactions=[] if committed else None,
        records=found.chunks,
    )


register(wire.FetchRequest, LogApi, handle, refuse, timed=True)
