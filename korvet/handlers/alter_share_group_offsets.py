"""AlterShareGroupOffsets (key 91), version 0: moves where a share group without members begins in partitions.

An offset outside of the log is its nearest end, so a negative one is the oldest record. Of a partition that is named
twice the last start counts.

Errors: GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, NON_EMPTY_GROUP, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import error_message, group_error_code, refuse_whole, require_group_id
from korvet.handlers.context import Caller, ShareApi
from korvet.handlers.registry import register
from korvet.handlers.rights import READ, TOPIC, by_handler, on_group
from korvet.protocol.messages import alter_share_group_offsets as wire
from korvet.protocol.wire import ZERO_UUID
from korvet.security.authorizer import refusal
from korvet.topics.registry import Topic
from korvet.topics.types import Partition, TopicRef

_Start = tuple[Topic, Partition, int]


def handle(
    request: wire.AlterShareGroupOffsetsRequest, caller: Caller, api: ShareApi
) -> wire.AlterShareGroupOffsetsResponse:
    """Move the start in each partition; the failure of one leaves the others unaffected."""
    require_group_id(request.group_id)
    asked = _starts(request, caller, api)
    starts = [each for each in asked if not isinstance(each, KafkaError)]
    # If nothing may be altered, no group is created, and nothing is said about one.
    done = iter(api.offsets.alter(request.group_id, starts) if starts else ())
    outcomes = iter([each if isinstance(each, KafkaError) else next(done) for each in asked])
    topics = []
    for topic in request.topics:
        partitions = [_partition(each.partition_index, next(outcomes)) for each in topic.partitions]
        known = api.topics.get_cached(topic.topic_name)
        refused = all(each.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED for each in partitions)
        topics.append(
            wire.AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                topic_id=ZERO_UUID if refused or known is None else known.id,
                partitions=partitions,
            )
        )
    return wire.AlterShareGroupOffsetsResponse(responses=topics)


def _starts(
    request: wire.AlterShareGroupOffsetsRequest, caller: Caller, api: ShareApi
) -> list[_Start | KafkaError]:
    """Return where to begin in each partition of the request, or why it may not be altered."""
    starts: list[_Start | KafkaError] = []
    for topic in request.topics:
        readable = caller.rights.allows(READ, TOPIC, topic.topic_name)
        for partition in topic.partitions:
            if not readable:
                starts.append(refusal(TOPIC))
                continue
            try:
                known = api.topics.partition(TopicRef(topic.topic_name), partition.partition_index)
                starts.append((*known, partition.start_offset))
            except KafkaError as error:
                starts.append(error.without_frames())
    return starts


def _partition(index: int, error: KafkaError | None) -> wire.AlterShareGroupOffsetsResponsePartition:
    return wire.AlterShareGroupOffsetsResponsePartition(
        partition_index=index, error_code=group_error_code(error), error_message=error_message(error)
    )


register(
    handle,
    refuse_whole(wire.AlterShareGroupOffsetsResponse, group_error_code),
    rights=[on_group(READ), by_handler((READ, TOPIC))],
    unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
