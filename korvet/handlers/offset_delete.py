"""OffsetDelete (key 47), version 0: deletes offsets of a group, of topics that none of its members is subscribed to.

Errors: GROUP_ID_NOT_FOUND, GROUP_SUBSCRIBED_TO_TOPIC, INVALID_GROUP_ID, NON_EMPTY_GROUP, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from korvet.errors import ErrorCode
from korvet.handlers.audit import partitions_changed
from korvet.handlers.common import group_error_code, refuse_whole, require_group_id, topic_errors
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DELETE, READ, TOPIC, by_handler, on_group
from korvet.protocol.messages import offset_delete as wire
from korvet.protocol.types import TopicPartition
from korvet.security.authorizer import refusal


def handle(
    request: wire.OffsetDeleteRequest, caller: Caller, services: Services
) -> wire.OffsetDeleteResponse:
    require_group_id(request.group_id)
    readable = {topic.name for topic in request.topics if caller.may(READ, topic.name)}
    partitions = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    deleted = [partition for partition in partitions if partition.topic in readable]
    outcomes = iter(services.groups.admin.delete_offsets(request.group_id, deleted))
    codes = (
        group_error_code(next(outcomes) if partition.topic in readable else refusal(TOPIC))
        for partition in partitions
    )
    indexes = (
        (topic.name, (partition.partition_index for partition in topic.partitions))
        for topic in request.topics
    )
    return wire.OffsetDeleteResponse(topics=topic_errors(indexes, codes))


register(
    handle,
    refuse_whole(wire.OffsetDeleteResponse, of_group=True),
    rights=[on_group(DELETE), by_handler((READ, TOPIC))],
    changes=lambda request, response: partitions_changed(response.topics, f"group {request.group_id} "),
    unconfirmed=ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
