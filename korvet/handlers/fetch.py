"""Fetch (key 1), versions 4-18: reads partitions, and waits for records if there are too few.

Since version 7 a client may have a session, and name only the partitions that are new or at another offset (KIP-227,
log/fetch_sessions.py). Versions up to 12 name topics, later ones give ids; INCONSISTENT_TOPIC_ID is never answered,
for an id alone says which topic is meant. Leader epochs are checked since version 9, and since version 12 the epoch
of the last record that a client has (KIP-320, KIP-595). zstd batches are handed out in every version, as Apache Kafka
4 does. A read_committed client gets the records below the last stable offset, and a list of their aborted transactions
(KIP-98).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import unreadable_topics
from korvet.handlers.context import Caller, LogApi
from korvet.handlers.registry import register
from korvet.log.collect import FetchPartitionSpec, FetchResult
from korvet.log.epochs import NO_EPOCH
from korvet.log.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    TOPIC_ID_VERSION_FIRST,
    FetchSession,
)
from korvet.log.fetch_set import FetchSet
from korvet.log.types import FetchLimits
from korvet.protocol.messages import fetch as wire
from korvet.protocol.types import AclOperation, AclResourceType, IsolationLevel
from korvet.protocol.wire import ZERO_UUID
from korvet.security.authorizer import refusal
from korvet.telemetry.request_timer import DECODE
from korvet.topics.registry import Topic
from korvet.topics.types import Partition, PartitionRef, TopicRef
from korvet.turns import in_turns

SESSION_ERRORS = {
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}

Ref = PartitionRef[wire.FetchPartition]


def handle(request: wire.FetchRequest, caller: Caller, api: LogApi) -> wire.FetchResponse:
    """Read what is asked for, within the limits of request and broker."""
    refs = _refs(request, caller)
    if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        named = (request.session_id, request.session_epoch)
        session = api.sessions.resume(
            named, caller.session, caller.version, refs, _forgotten(request, caller)
        )
        if session is not None:
            return _continue(session, request, caller, api)
    else:
        api.sessions.close(request.session_id, caller.session)
    refused = _refused_topics(request, caller, api)(each.topic for each in refs)
    asked: list[Ref | KafkaError] = list(refs)
    are_unique = len({(ref.topic, ref.partition) for ref in in_turns(refs)}) == len(refs)
    if not are_unique:
        # No client names one twice, and a large batch could be read and held 10,000 times.
        twice = KafkaError(ErrorCode.INVALID_REQUEST, "the partition is named twice")
        seen: set[tuple[TopicRef, int]] = set()
        for place, ref in enumerate(in_turns(refs)):
            known = len(seen)
            seen.add((ref.topic, ref.partition))
            if len(seen) == known:
                asked[place] = twice
    readable = len(refs)
    if refused:
        asked = [refused.get(ref.topic, each) for ref, each in zip(refs, asked, strict=True)]
        readable = sum(each.topic not in refused for each in refs)
    reading = _RequestReads(request, caller, api)

    def read(specs: Sequence[FetchPartitionSpec]) -> list[FetchResult | KafkaError]:
        # An error is answered at once; what may not be read is not waited for.
        found = api.fetcher.fetch(specs, reading.limits(len(specs) == readable), caller.timer)
        reading.count(specs, found)
        return [
            KafkaError(each.error) if each.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else each
            for each in found
        ]

    answers = api.topics.ask(asked, reading.spec, read, at_once=max(1, len(refs)))
    response = wire.FetchResponse(responses=_topics(request, zip(refs, answers, strict=True)))
    if request.session_epoch == INITIAL_EPOCH and are_unique:
        response.session_id = api.sessions.create(caller.session, caller.version, refs, answers)
    return response


def _continue(
    session: FetchSession[wire.FetchPartition], request: wire.FetchRequest, caller: Caller, api: LogApi
) -> wire.FetchResponse:
    reading = _RequestReads(request, caller, api)
    session.use_isolation(committed=reading.committed)

    def read(reads: FetchSet, due: Sequence[int] | None, waits: bool) -> dict[int, FetchResult]:  # noqa: FBT001 - ReadDue
        found = api.fetcher.fetch_due(reads, due, reading.limits(waits), caller.timer)
        reading.count([reads.specs[place] for place in found], found.values())
        return found

    try:
        refused = _refused_topics(request, caller, api)
        answered = session.fetch(api.topics, refused, reading.spec, read, reading.wait_ms)
    except BaseException:
        # Its client does not know what was answered, and begins again.
        api.sessions.close(session.id, caller.session)
        raise
    pairs = ((PartitionRef(each.topic, each.index, each.asked), result) for each, result in answered)
    return wire.FetchResponse(session_id=session.id, responses=_topics(request, pairs))


def _refused_topics(
    request: wire.FetchRequest, caller: Caller, api: LogApi
) -> Callable[[Iterable[TopicRef]], dict[TopicRef, KafkaError]]:
    """Return what finds the topics that the caller may not fetch, and why: a follower may fetch all or none."""
    if not _is_of_follower(request):
        return partial(unreadable_topics, caller, api.topics)
    error = (
        None if caller.rights.allows_cluster(AclOperation.CLUSTER_ACTION) else refusal(AclResourceType.TOPIC)
    )
    return lambda topics: {} if error is None else dict.fromkeys(in_turns(topics), error)


def _is_of_follower(request: wire.FetchRequest) -> bool:
    state = request.replica_state
    return (request.replica_id if state is None else state.replica_id) >= 0


def refuse(request: wire.FetchRequest, caller: Caller, error: KafkaError) -> wire.FetchResponse:
    """Answer with the error, for the whole fetch and, since versions below 7 know no other, for every partition."""
    if error.code in SESSION_ERRORS:
        return wire.FetchResponse(error_code=error.code)
    pairs = zip(_refs(request, caller), repeat(error))
    return wire.FetchResponse(error_code=error.code, responses=_topics(request, pairs))


class _RequestReads:
    """The reads of one request: what is left of its limits, and what its connection is to be charged with."""

    def __init__(self, request: wire.FetchRequest, caller: Caller, api: LogApi) -> None:
        settings = api.live.settings
        self._caller, self._traffic = caller, api.traffic
        self._bytes_left = min(request.max_bytes, settings.fetch_max_bytes, caller.fetch_max_bytes)
        self._min_bytes = min(request.min_bytes, self._bytes_left)
        self._of_follower = _is_of_follower(request)
        self.committed = request.isolation_level == IsolationLevel.READ_COMMITTED
        self._waited = False
        self.wait_ms = request.max_wait_ms
        if settings.connections_max_idle_ms >= 0:
            # That a peer has gone is noticed only when it is answered: it is kept no longer than one that says nothing.
            self.wait_ms = min(self.wait_ms, settings.connections_max_idle_ms)

    def spec(self, asked: wire.FetchPartition, topic: Topic, partition: Partition) -> FetchPartitionSpec:
        """Return what to read of a partition. Raises KafkaError for a follower: Redis replicates the partitions."""
        if self._of_follower:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no broker is a follower of the partition")
        return FetchPartitionSpec(
            topic,
            partition,
            asked.fetch_offset,
            asked.partition_max_bytes,
            leader_epoch=max(asked.current_leader_epoch, NO_EPOCH),
            last_fetched_epoch=max(asked.last_fetched_epoch, NO_EPOCH),
            committed=self.committed,
        )

    def limits(self, waits: bool) -> FetchLimits:  # noqa: FBT001 - the one that differs
        """Return the limits of the next read."""
        self._caller.timer.end_stage(DECODE)
        # A topic that was stale is answered at once, with what there is.
        wait_ms, self._waited = 0 if self._waited or not waits else self.wait_ms, True
        return FetchLimits(wait_ms, self._min_bytes, self._bytes_left, self._caller.fetched)

    def count(self, specs: Iterable[FetchPartitionSpec], found: Iterable[FetchResult]) -> None:
        """Count what was read."""
        for each, result in in_turns(zip(specs, found, strict=True)):
            if result.chunks:
                size_bytes = sum(map(len, result.chunks))
                partition = each.partition
                self._traffic.sent(partition.topic, partition.topic_id, result.record_count, size_bytes)
                self._bytes_left -= result.size_bytes


def _refs(request: wire.FetchRequest, caller: Caller) -> list[Ref]:
    """Return the partitions that the request names, in its order."""
    by_id = caller.version >= TOPIC_ID_VERSION_FIRST
    refs: list[Ref] = []
    for asked in request.topics:
        topic = TopicRef(asked.topic, asked.topic_id if by_id else None)
        refs += [PartitionRef(topic, each.partition, each) for each in asked.partitions]
    return refs


def _forgotten(request: wire.FetchRequest, caller: Caller) -> list[tuple[TopicRef, Sequence[int]]]:
    """Return the partitions that leave the session, in lists that give no turns (FetchSessions)."""
    by_id = caller.version >= TOPIC_ID_VERSION_FIRST
    return [
        (TopicRef(each.topic, each.topic_id if by_id else None), list(each.partitions))
        for each in request.forgotten_topics_data
    ]


def _topics(
    request: wire.FetchRequest, answers: Iterable[tuple[Ref, FetchResult | KafkaError]]
) -> list[wire.FetchableTopicResponse]:
    committed = request.isolation_level == IsolationLevel.READ_COMMITTED
    topics: list[wire.FetchableTopicResponse] = []
    last, partitions = None, list[wire.PartitionData]()
    for ref, answer in in_turns(answers):
        if ref.topic is not last and ref.topic != last:
            # As in Kafka, a topic that comes again is a topic of its own: the order is that of the request.
            last, partitions = ref.topic, []
            topics.append(
                wire.FetchableTopicResponse(
                    topic=last.name, topic_id=last.id or ZERO_UUID, partitions=partitions
                )
            )
        partitions.append(_data(ref.partition, answer, committed=committed))
    return topics


def _data(index: int, answer: FetchResult | KafkaError, *, committed: bool) -> wire.PartitionData:
    found = FetchResult.refused(answer) if isinstance(answer, KafkaError) else answer
    diverging = found.diverging
    aborted = None
    if found.aborted is not None or (committed and not found.error):
        aborted = [
            wire.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in found.aborted or ()
        ]
    return wire.PartitionData(
        partition_index=index,
        error_code=found.error,
        high_watermark=found.high_watermark,
        last_stable_offset=found.last_stable_offset,
        log_start_offset=found.log_start,
        diverging_epoch=diverging and wire.EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.start),
        aborted_transactions=aborted,
        records=found.chunks,
    )


register(
    wire.FetchRequest,
    LogApi,
    handle,
    refuse,
    timed=True,
    errors={
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    },
)
