"""OffsetDelete (key 47), version 0: deletes offsets of a group, of topics that none of its members is subscribed to."""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.common import group_error_code, refuse_whole
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.protocol.messages import offset_delete as wire
from korvet.protocol.types import TopicPartition


def handle(request: wire.OffsetDeleteRequest, _caller: Caller, api: GroupApi) -> wire.OffsetDeleteResponse:
    """Delete each partition's offset."""
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    partitions = [
        TopicPartition(topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    ]
    errors = iter(api.admin.delete_offsets(request.group_id, partitions))
    topics = [
        wire.OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                wire.OffsetDeleteResponsePartition(
                    partition_index=each.partition_index, error_code=group_error_code(next(errors))
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return wire.OffsetDeleteResponse(topics=topics)


refuse = refuse_whole(wire.OffsetDeleteResponse, group_error_code)
register(wire.OffsetDeleteRequest, GroupApi, handle, refuse, unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE)
