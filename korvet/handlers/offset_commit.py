"""OffsetCommit (key 8), versions 2-10: commits the offsets of a consumer group.

All offsets that can be committed are, by one script. An error of the group is returned for every partition. Versions 2
to 4 may carry a retention time; -1, and every other version, means offsets.retention.minutes.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.offsets import Committer, OffsetToCommit
from korvet.handlers.common import group_error_code
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from korvet.topics.types import PartitionRef, TopicRef

GROUP_ID_NOT_FOUND_VERSION_FIRST = 9
TOPIC_ID_VERSION_FIRST = 10
RETENTION_OF_BROKER = -1


def handle(request: OffsetCommitRequest, caller: Caller, api: GroupApi) -> OffsetCommitResponse:
    """Commit the offset of each partition."""
    by = Committer(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id or "",
    )
    asked_ms = request.retention_time_ms
    retention_ms = None if asked_ms == RETENTION_OF_BROKER else asked_ms
    by_id = caller.version >= TOPIC_ID_VERSION_FIRST
    offsets = [
        PartitionRef(
            TopicRef(topic.name, topic.topic_id if by_id else None),
            each.partition_index,
            OffsetToCommit(
                each.committed_offset,
                each.committed_leader_epoch,
                each.committed_metadata or "",
                retention_ms,
            ),
        )
        for topic in request.topics
        for each in topic.partitions
    ]
    try:
        outcomes = api.committed.commit(by, offsets)
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND and caller.version < GROUP_ID_NOT_FOUND_VERSION_FIRST:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, error.message) from error
        raise
    answers = iter(outcomes)
    topics = [_topic(topic, [next(answers) for _ in topic.partitions]) for topic in request.topics]
    return OffsetCommitResponse(topics=topics)


def refuse(request: OffsetCommitRequest, _caller: Caller, error: KafkaError) -> OffsetCommitResponse:
    """Answer every partition with the error."""
    return OffsetCommitResponse(
        topics=[_topic(topic, [error for _ in topic.partitions]) for topic in request.topics]
    )


def _topic(topic: OffsetCommitRequestTopic, errors: list[KafkaError | None]) -> OffsetCommitResponseTopic:
    partitions = [
        OffsetCommitResponsePartition(
            partition_index=each.partition_index,
            error_code=ErrorCode.NONE if error is None else group_error_code(error),
        )
        for each, error in zip(topic.partitions, errors, strict=True)
    ]
    return OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


register(OffsetCommitRequest, GroupApi, handle, refuse)
