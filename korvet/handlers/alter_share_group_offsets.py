"""AlterShareGroupOffsets (key 91), version 0: moves where a share group without members begins in partitions.

An offset outside of the log is its nearest end, so a negative one is the oldest record. Of a partition that is named
twice the last start counts.

Errors: GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, NON_EMPTY_GROUP, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import error_fields, refuse_whole, require_group_id
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import READ, TOPIC, by_handler, on_group
from korvet.protocol.messages import alter_share_group_offsets as wire
from korvet.protocol.wire import ZERO_UUID
from korvet.security.authorizer import refusal
from korvet.topics.registry import Topic
from korvet.topics.types import Partition, TopicRef

_Start = tuple[Topic, Partition, int]


def handle(
    request: wire.AlterShareGroupOffsetsRequest, caller: Caller, services: Services
) -> wire.AlterShareGroupOffsetsResponse:
    """Move the start in each partition; the failure of one leaves the others unaffected."""
    require_group_id(request.group_id)
    readable = {topic.topic_name for topic in request.topics if caller.may(READ, topic.topic_name)}
    asked = [
        _start(topic.topic_name, partition, readable, services)
        for topic in request.topics
        for partition in topic.partitions
    ]
    starts = [start for start in asked if not isinstance(start, KafkaError)]
    # If nothing may be altered, no group is created, and nothing is said about one.
    altered = iter(services.share.offsets.alter(request.group_id, starts) if starts else ())
    outcomes = iter([start if isinstance(start, KafkaError) else next(altered) for start in asked])
    topics = []
    for topic in request.topics:
        partitions = [
            wire.AlterShareGroupOffsetsResponsePartition(
                partition_index=partition.partition_index, **error_fields(error, of_group=True)
            )
            for partition, error in zip(topic.partitions, outcomes, strict=False)
        ]
        names_id = partitions and topic.topic_name in readable
        known = services.topics.get_cached(topic.topic_name) if names_id else None
        topics.append(
            wire.AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                topic_id=ZERO_UUID if known is None else known.id,
                partitions=partitions,
            )
        )
    return wire.AlterShareGroupOffsetsResponse(responses=topics)


def _start(
    topic: str, partition: wire.AlterShareGroupOffsetsRequestPartition, readable: set[str], services: Services
) -> _Start | KafkaError:
    """Return where to begin in a partition, or why it may not be altered."""
    if topic not in readable:
        return refusal(TOPIC)
    try:
        known = services.topics.partition(TopicRef(topic), partition.partition_index)
    except KafkaError as error:
        return error.without_frames()
    return *known, partition.start_offset


register(
    handle,
    refuse_whole(wire.AlterShareGroupOffsetsResponse, of_group=True),
    rights=[on_group(READ), by_handler((READ, TOPIC))],
    unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
