"""OffsetCommit (key 8), versions 2-10: commits the offsets of a consumer group.

All offsets that can be committed are, up to 1,000 by one script. An error of the group is returned for every partition.
Versions 2 to 4 may carry a retention time; -1, and every other version, means offsets.retention.minutes.

Errors: FENCED_INSTANCE_ID, GROUP_ID_NOT_FOUND, ILLEGAL_GENERATION, OFFSET_METADATA_TOO_LARGE, REBALANCE_IN_PROGRESS,
STALE_MEMBER_EPOCH, UNKNOWN_MEMBER_ID, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.offsets import Committer, OffsetToCommit
from korvet.groups.types import instance_text
from korvet.handlers.common import group_error_code
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import READ, on_group, on_topics_then_ids
from korvet.protocol.messages import offset_commit as wire
from korvet.protocol.parts import PartitionError
from korvet.topics.types import PartitionRef, TopicRef

MEMBER_EPOCH_VERSION_FIRST = 9
TOPIC_ID_VERSION_FIRST = 10
RETENTION_OF_BROKER = -1


def handle(
    request: wire.OffsetCommitRequest, caller: Caller, services: Services
) -> wire.OffsetCommitResponse:
    by = Committer(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        instance_text(request.group_instance_id),
        knows_epochs=caller.version >= MEMBER_EPOCH_VERSION_FIRST,
    )
    retention_ms = None if request.retention_time_ms == RETENTION_OF_BROKER else request.retention_time_ms
    by_id = caller.version >= TOPIC_ID_VERSION_FIRST
    offsets = [
        PartitionRef(
            TopicRef(topic.name, topic.topic_id if by_id else None),
            partition.partition_index,
            OffsetToCommit(
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata or "",
                retention_ms,
            ),
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    return _response(request, iter(services.groups.committed.commit(by, offsets, caller.not_after_ms)))


def _response(
    request: wire.OffsetCommitRequest, errors: Iterator[KafkaError | None]
) -> wire.OffsetCommitResponse:
    topics = [
        wire.OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                PartitionError(
                    partition_index=partition.partition_index, error_code=group_error_code(next(errors))
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return wire.OffsetCommitResponse(topics=topics)


register(
    handle,
    lambda request, _caller, error: _response(request, repeat(error)),
    rights=[on_group(READ), *on_topics_then_ids(READ, "topics", "topics", ids_since=10)],
    unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE,
    abandoned=ErrorCode.NONE,  # clients close the connection right after it
)
