"""OffsetDelete (key 47), version 0: deletes offsets of a group, of topics that none of its members is subscribed to."""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import group_error_code
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from korvet.protocol.types import TopicPartition


def handle(request: OffsetDeleteRequest, _caller: Caller, api: GroupApi) -> OffsetDeleteResponse:
    """Delete each partition's offset."""
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    partitions = [
        TopicPartition(topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    ]
    answers = iter(api.admin.delete_offsets(request.group_id, partitions))
    topics = [
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[_partition(each.partition_index, next(answers)) for each in topic.partitions],
        )
        for topic in request.topics
    ]
    return OffsetDeleteResponse(topics=topics)


def refuse(_request: OffsetDeleteRequest, _caller: Caller, error: KafkaError) -> OffsetDeleteResponse:
    """Answer with the error, and no partitions."""
    return OffsetDeleteResponse(error_code=group_error_code(error))


def _partition(index: int, error: KafkaError | None) -> OffsetDeleteResponsePartition:
    code = ErrorCode.NONE if error is None else group_error_code(error)
    return OffsetDeleteResponsePartition(partition_index=index, error_code=code)


register(OffsetDeleteRequest, GroupApi, handle, refuse)
