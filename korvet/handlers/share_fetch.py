"""ShareFetch (key 78), versions 1-2: a member of a share group acquires records, and acknowledges others before.

A session knows the partitions of the member (share/sessions.py); a request names new ones, and partitions of which it
acknowledges something. The response has the partitions with records, an error or the outcome of acknowledgements, and
those that are new in the session or had an error in the last response. The first request of a session acknowledges
nothing; the last one (epoch -1) acquires nothing, and neither does one that renews locks (KIP-1222): a wait for records
could outlast them. As in Kafka, the member need not be one of the group.

Errors: INVALID_RECORD_STATE, INVALID_REQUEST, INVALID_SHARE_SESSION_EPOCH, SHARE_SESSION_LIMIT_REACHED,
SHARE_SESSION_NOT_FOUND, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from korvet.cluster.group_configs import SharePolicy
from korvet.errors import ErrorCode, KafkaError, partition_code
from korvet.handlers.common import error_message, group_error_code, refuse_whole, unreadable_topics
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import READ, TOPIC, by_handler, on_group
from korvet.handlers.share_acknowledge import acknowledge, acknowledged_in, check_member
from korvet.log.types import FetchLimits
from korvet.protocol.messages import share_fetch as wire
from korvet.protocol.messages.share_acknowledge import LeaderIdAndEpoch
from korvet.protocol.wire import ZERO_UUID
from korvet.share.parts import ShareAsk, SharePart, ShareResult
from korvet.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, SessionRef, ShareSession, not_found
from korvet.telemetry.request_timer import DECODE
from korvet.topics.registry import Topic
from korvet.topics.types import Partition, PartitionRef, TopicRef
from korvet.turns import in_turns

RECORD_LIMIT = 1
"""The acquire mode in which max_records is not exceeded to take batches whole (KIP-1206)."""

_CODES = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.OFFSET_NOT_AVAILABLE,
}
"""What clients know of a partition, besides KAFKA_STORAGE_ERROR; any other error ends a consumer."""

_NO_LEADER = -1
"""In the place of leader and epoch: the client asks for them."""


def handle(request: wire.ShareFetchRequest, caller: Caller, services: Services) -> wire.ShareFetchResponse:
    check_member(request, services)
    group, member = request.group_id or "", request.member_id or ""
    resumed = None
    if request.share_session_epoch != INITIAL_EPOCH:
        resumed = services.share.sessions.resume(group, member, request.share_session_epoch)
        if resumed is None:
            raise not_found()
    given = acknowledged_in(request)
    acknowledged = {ref: ranges for ref, ranges in given.items() if ranges}
    if request.is_renew_ack:
        _check_renewal(request, others=len(acknowledged) < len(given))
    if resumed is None and acknowledged:
        message = "the first request of a share session may not acknowledge anything"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    session = resumed or services.share.sessions.open(caller.session, group, member, list(given))
    if resumed is not None and request.share_session_epoch != FINAL_EPOCH:
        _change(request, services, resumed, list(given))
    policy = services.group_configs.share_policy(group)
    topics = {part.ref for part in session.parts} | {ref for ref, _ in acknowledged}
    refused = unreadable_topics(caller, services.topics, topics)
    outcomes = acknowledge(
        (group, member, policy),
        acknowledged,
        refused,
        services.share.acknowledger,
        renews=request.is_renew_ack,
    )
    results: dict[SessionRef, ShareResult] = {}
    if request.share_session_epoch == FINAL_EPOCH:
        services.share.sessions.end(session)
    elif not request.is_renew_ack:
        try:
            results = _fetch(request, caller, services, session, policy, refused)
        except KafkaError as error:
            if not outcomes:
                raise
            # What was acknowledged is answered all the same.
            failed = ShareResult(error.without_frames())
            results = {(part.ref, part.index): failed for part in session.parts}
    return wire.ShareFetchResponse(
        acquisition_lock_timeout_ms=policy.lock_ms,
        responses=_topics(session, results, outcomes),
        node_endpoints=[],
    )


def _check_renewal(request: wire.ShareFetchRequest, *, others: bool) -> None:
    limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
    if others or any(limits):
        message = "a request that renews locks may fetch nothing: its limits must be 0"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _change(
    request: wire.ShareFetchRequest, services: Services, session: ShareSession, refs: Sequence[SessionRef]
) -> None:
    """Add the partitions of the request to the session, and remove its forgotten ones."""
    forgotten = [
        (TopicRef("", topic.topic_id), index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    services.share.sessions.change(session, refs, forgotten)


def _fetch(
    request: wire.ShareFetchRequest,
    caller: Caller,
    services: Services,
    session: ShareSession,
    policy: SharePolicy,
    refused: Mapping[TopicRef, KafkaError],
) -> dict[SessionRef, ShareResult]:
    """Acquire for the member what its session is about."""
    if request.max_records == 0:
        return {}
    if request.max_records < 0 or request.max_bytes <= 0:
        return {(part.ref, part.index): ShareResult() for part in session.parts if not part.answered}
    group = session.group
    ask = ShareAsk(
        group,
        session.member,
        request.max_records,
        max(1, request.batch_size),
        request.share_acquire_mode == RECORD_LIMIT,
        policy,
        services.group_configs.is_committed(group),
    )
    parts = session.parts
    asked = [refused.get(part.ref) or PartitionRef(part.ref, part.index, part) for part in in_turns(parts)]
    waits = True
    caller.timer.end_stage(DECODE)

    def resolve(part: SharePart, topic: Topic, partition: Partition) -> SharePart:
        session.reads.use(part, topic, partition)
        return part

    def read(wanted: Sequence[SharePart]) -> list[ShareResult | KafkaError]:
        nonlocal waits
        # An error that is new is answered at once, and if a topic was stale, what there is.
        places = {part.place for part in wanted}
        waits = waits and all(part.failed for part in parts if part.place not in places)
        limits = _limits(request, caller, services, waits=waits)
        waits = False
        results = services.share.fetcher.fetch(
            session.reads, places, ask, limits, is_gone=caller.is_gone, timer=caller.timer
        )
        for part in wanted:
            _note(results.get(part.place), part, session, services)
        return [_or_stale(results.get(part.place)) for part in wanted]

    answers = services.topics.ask(asked, resolve, read, at_once=max(1, len(asked)))
    return {
        (part.ref, part.index): ShareResult(answer) if isinstance(answer, KafkaError) else answer
        for part, answer in zip(parts, answers, strict=True)
    }


def _limits(
    request: wire.ShareFetchRequest, caller: Caller, services: Services, *, waits: bool
) -> FetchLimits:
    settings = services.live.settings
    bytes_max = min(request.max_bytes, settings.fetch_max_bytes, caller.fetch_max_bytes)
    wait_ms = request.max_wait_ms if waits and request.min_bytes > 0 else 0
    if settings.connections_max_idle_ms >= 0:
        # That a peer has gone is noticed only when it is answered: it is kept no longer than one that says nothing.
        wait_ms = min(wait_ms, settings.connections_max_idle_ms)
    return FetchLimits(wait_ms, min(request.min_bytes, bytes_max), bytes_max, caller.fetched)


def _note(result: ShareResult | None, part: SharePart, session: ShareSession, services: Services) -> None:
    """Count what was acquired, for metrics and for the end of the session."""
    if result is not None and result.acquired:
        _, partition = part.resolved()
        session.note_acquired(partition, result.acquired)
        size_bytes = result.size_bytes
        services.traffic.sent(partition.topic, partition.topic_id, result.record_count, size_bytes)


def _or_stale(result: ShareResult | None) -> ShareResult | KafkaError:
    """Return the result, or as an error that the log is of no topic, or another one: the registry is refreshed then."""
    error = None if result is None else result.error
    if error is not None and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return error
    return result or ShareResult()


def _topics(
    session: ShareSession,
    results: Mapping[SessionRef, ShareResult],
    outcomes: Mapping[SessionRef, KafkaError | None],
) -> list[wire.ShareFetchableTopicResponse]:
    parts = {(part.ref, part.index): part for part in session.parts}
    topics: dict[TopicRef, list[wire.PartitionData]] = {}
    for ref in in_turns({**results, **outcomes}):
        result = results.get(ref) or ShareResult()
        part = parts.get(ref)
        is_due = part is not None and (part.failed or not part.answered)
        if part is not None:
            part.failed, part.answered = result.error is not None, True
        if result.acquired or result.error or is_due or ref in outcomes:
            topics.setdefault(ref[0], []).append(_data(ref[1], result, outcomes.get(ref)))
    return [
        wire.ShareFetchableTopicResponse(topic_id=topic.id or ZERO_UUID, partitions=partitions)
        for topic, partitions in topics.items()
    ]


def _data(index: int, result: ShareResult, outcome: KafkaError | None) -> wire.PartitionData:
    code = ErrorCode.NONE
    if result.error is not None:
        code = partition_code(result.error)
        code = code if code in _CODES else ErrorCode.KAFKA_STORAGE_ERROR
    leader = _NO_LEADER if code is ErrorCode.NOT_LEADER_OR_FOLLOWER else 0
    return wire.PartitionData(
        partition_index=index,
        error_code=code,
        error_message=error_message(result.error),
        acknowledge_error_code=group_error_code(outcome),
        acknowledge_error_message=error_message(outcome),
        current_leader=LeaderIdAndEpoch(leader_id=leader, leader_epoch=leader),
        records=result.chunks,
        acquired_records=[
            wire.AcquiredRecords(
                first_offset=acquired.first, last_offset=acquired.last, delivery_count=acquired.delivery_count
            )
            for acquired in result.acquired
        ],
    )


register(
    handle,
    refuse_whole(wire.ShareFetchResponse, responses=[], node_endpoints=[]),
    rights=[on_group(READ), by_handler((READ, TOPIC))],
    timed=True,
    abandoned=ErrorCode.KAFKA_STORAGE_ERROR,  # nobody would get what it acquires
)
