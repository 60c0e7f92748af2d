"""ShareAcknowledge (key 79), versions 1-2: a member of a share group says what became of records it has acquired.

What is answered without an error is on as many replicas of Redis as the setting `replicas` wants.

Errors: INVALID_RECORD_STATE, INVALID_REQUEST, INVALID_SHARE_SESSION_EPOCH, SHARE_SESSION_NOT_FOUND, UNKNOWN_TOPIC_ID,
UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from korvet.cluster.group_configs import SharePolicy
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.types import SHARE_MEMBER_ID_LENGTH_MAX
from korvet.handlers.common import error_fields, refuse_whole, unreadable_topics
from korvet.handlers.groups import require_share_groups
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import READ, TOPIC, by_handler, on_group
from korvet.protocol.messages import share_acknowledge as wire
from korvet.protocol.messages.share_fetch import ShareFetchRequest
from korvet.protocol.wire import ZERO_UUID
from korvet.share.acknowledge import Acknowledger, check_ranges
from korvet.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, SessionRef, not_found
from korvet.share.types import AckRange
from korvet.topics.types import PartitionRef, TopicRef
from korvet.turns import in_turns


def handle(
    request: wire.ShareAcknowledgeRequest, caller: Caller, services: Services
) -> wire.ShareAcknowledgeResponse:
    check_member(request, services)
    group, member = request.group_id or "", request.member_id or ""
    if request.share_session_epoch == INITIAL_EPOCH:
        message = "a share session does not begin with acknowledgements"
        raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, message)
    session = services.share.sessions.resume(group, member, request.share_session_epoch)
    if session is None and services.share.sessions.is_alone:
        raise not_found()
    given = {ref: ranges for ref, ranges in acknowledged_in(request).items() if ranges}
    policy = services.group_configs.share_policy(group)
    refused = unreadable_topics(caller, services.topics, (ref for ref, _ in given))
    outcomes = acknowledge(
        (group, member, policy), given, refused, services.share.acknowledger, renews=request.is_renew_ack
    )
    is_taken = any(error is None for error in outcomes.values())
    if session is None and not is_taken and not services.groups.share.store.has(group, member):
        raise not_found()  # else another worker may have it, and only the records are late
    if session is not None and request.share_session_epoch == FINAL_EPOCH:
        services.share.sessions.end(session)
    return wire.ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=policy.lock_ms, responses=_topics(outcomes), node_endpoints=[]
    )


def check_member(request: wire.ShareAcknowledgeRequest | ShareFetchRequest, services: Services) -> None:
    """Raise KafkaError for a request of no member, or while there are no share groups."""
    require_share_groups(services.features)
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the group id is empty")
    if not 0 < len(request.member_id or "") <= SHARE_MEMBER_ID_LENGTH_MAX:
        message = f"a member id has 1 to {SHARE_MEMBER_ID_LENGTH_MAX} characters"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def acknowledged_in(
    request: wire.ShareAcknowledgeRequest | ShareFetchRequest,
) -> dict[SessionRef, Sequence[AckRange]]:
    """Return what is said of each partition that a request names; raises KafkaError if it names one twice."""
    given: dict[SessionRef, Sequence[AckRange]] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            ref = TopicRef("", topic.topic_id), partition.partition_index
            if ref in given:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "a partition is named twice")
            given[ref] = [
                AckRange(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                for batch in partition.acknowledgement_batches
            ]
    return given


def acknowledge(
    by: tuple[str, str, SharePolicy],
    given: Mapping[SessionRef, Sequence[AckRange]],
    refused: Mapping[TopicRef, KafkaError],
    acknowledger: Acknowledger,
    *,
    renews: bool,
) -> dict[SessionRef, KafkaError | None]:
    """Acknowledge for a member, except in refused topics; returns the error of each partition."""
    refs: list[PartitionRef[Sequence[AckRange]] | KafkaError] = []
    for (topic, index), ranges in in_turns(given.items()):
        try:
            if topic in refused:
                raise refused[topic]
            check_ranges(ranges, renews=renews)
            refs.append(PartitionRef(topic, index, ranges))
        except KafkaError as error:
            refs.append(error.without_frames())
    if not refs:
        return {}
    group, member, policy = by
    return dict(zip(given, acknowledger.acknowledge(group, member, policy, refs), strict=True))


def _topics(outcomes: Mapping[SessionRef, KafkaError | None]) -> list[wire.ShareAcknowledgeTopicResponse]:
    topics: dict[TopicRef, list[wire.PartitionData]] = {}
    for (topic, index), outcome in outcomes.items():
        topics.setdefault(topic, []).append(
            wire.PartitionData(
                partition_index=index,
                **error_fields(outcome, of_group=True),
                current_leader=wire.LeaderIdAndEpoch(),
            )
        )
    return [
        wire.ShareAcknowledgeTopicResponse(topic_id=topic.id or ZERO_UUID, partitions=partitions)
        for topic, partitions in topics.items()
    ]


register(
    handle,
    refuse_whole(wire.ShareAcknowledgeResponse, responses=[], node_endpoints=[]),
    rights=[on_group(READ), by_handler((READ, TOPIC))],
)
