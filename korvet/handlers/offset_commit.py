"""OffsetCommit (key 8), versions 2-10: a consumer says how far it has come.

All that can be committed is, by one script. The error of a group stands at every partition. Versions 2 to 4 may say for
how long the offsets are to be kept; -1 there, and every other version, means offsets.retention.minutes.
"""

from __future__ import annotations

from functools import partial

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.offsets import Committer, Wish
from korvet.handlers.common import code_of
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

GROUP_ID_NOT_FOUND_VERSION_FIRST = 9
TOPIC_ID_VERSION_FIRST = 10
RETENTION_OF_BROKER = -1


def handle(request: OffsetCommitRequest, caller: Caller, api: GroupApi) -> OffsetCommitResponse:
    """Commit for each partition."""
    by = Committer(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id or "",
    )
    asked_ms = request.retention_time_ms
    retention_ms = None if asked_ms == RETENTION_OF_BROKER else asked_ms
    wishes = [wish for topic in request.topics for wish in _wishes(topic, retention_ms, caller, api)]
    try:
        outcomes = api.committed.commit(by, wishes)
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


def _wishes(
    topic: OffsetCommitRequestTopic, retention_ms: int | None, caller: Caller, api: GroupApi
) -> list[Wish]:
    by_id = caller.version >= TOPIC_ID_VERSION_FIRST
    topics = api.topics
    find = partial(topics.find_by_id, topic.topic_id) if by_id else partial(topics.find, topic.name)
    return [
        Wish(
            find,
            each.partition_index,
            each.committed_offset,
            each.committed_leader_epoch,
            each.committed_metadata or "",
            retention_ms,
        )
        for each in topic.partitions
    ]


def _topic(topic: OffsetCommitRequestTopic, errors: list[KafkaError | None]) -> OffsetCommitResponseTopic:
    partitions = [
        OffsetCommitResponsePartition(
            partition_index=each.partition_index,
            error_code=ErrorCode.NONE if error is None else code_of(error),
        )
        for each, error in zip(topic.partitions, errors, strict=True)
    ]
    return OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


register(OffsetCommitRequest, GroupApi, handle, refuse)
