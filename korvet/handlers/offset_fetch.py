"""OffsetFetch (key 9), versions 1-10: the committed offsets of groups.

A group, topic or partition without a commit gets offset -1 and no error, as in Kafka; only a request with a member
epoch for a group that does not exist gets GROUP_ID_NOT_FOUND. Without transactions every committed offset is stable.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import msgspec

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.offsets import Committed
from korvet.handlers.common import group_error_code
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from korvet.protocol.types import TopicPartition
from korvet.protocol.wire import ZERO_UUID
from korvet.topics.types import TopicRef

TOP_LEVEL_ERROR_VERSION_FIRST = 2
GROUPS_VERSION_FIRST = 8
TOPIC_ID_VERSION_FIRST = 10

NO_OFFSET = -1
NO_EPOCH = -1


def handle(request: OffsetFetchRequest, caller: Caller, api: GroupApi) -> OffsetFetchResponse:
    """Answer for each group; the failure of one leaves the others unaffected."""
    groups = []
    # All offsets of a group are returned once, however often it is named: a name is short, and they may be many.
    whole: set[str] = set()
    for asked in _groups(request, caller):
        if asked.topics is None and asked.group_id in whole:
            continue
        if asked.topics is None:
            whole.add(asked.group_id)
        try:
            groups.append(_group(asked, caller, api))
        except KafkaError as error:
            groups.append(_refused(asked, error))
    return _response(groups, caller)


def refuse(request: OffsetFetchRequest, caller: Caller, error: KafkaError) -> OffsetFetchResponse:
    """Answer every group with the error."""
    return _response([_refused(asked, error) for asked in _groups(request, caller)], caller)


def _groups(request: OffsetFetchRequest, caller: Caller) -> list[OffsetFetchRequestGroup]:
    """Return what is asked for as in version 8."""
    if caller.version >= GROUPS_VERSION_FIRST:
        return request.groups
    topics = request.topics
    if topics is not None:
        named = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in topics
        ]
        return [OffsetFetchRequestGroup(group_id=request.group_id, topics=named)]
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=None)]


def _group(asked: OffsetFetchRequestGroup, caller: Caller, api: GroupApi) -> OffsetFetchResponseGroup:
    if asked.member_epoch >= 0 and not api.committed.exists(asked.group_id):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no group {asked.group_id}.")
    if asked.topics is None:
        found = api.committed.fetch_all(asked.group_id)
        return OffsetFetchResponseGroup(group_id=asked.group_id, topics=_every(found))
    names = [_name(topic, caller, api) for topic in asked.topics]
    asked_for = [
        TopicPartition(name, index)
        for name, topic in zip(names, asked.topics, strict=True)
        if isinstance(name, str)
        for index in topic.partition_indexes
    ]
    answers = iter(api.committed.fetch(asked.group_id, asked_for))
    topics = []
    for name, topic in zip(names, asked.topics, strict=True):
        if isinstance(name, KafkaError):
            partitions = [
                _partition(index, None, group_error_code(name)) for index in topic.partition_indexes
            ]
        else:
            partitions = [_partition(index, next(answers)) for index in topic.partition_indexes]
        topics.append(
            OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
        )
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)


def _name(topic: OffsetFetchRequestTopics, caller: Caller, api: GroupApi) -> str | KafkaError:
    if caller.version < TOPIC_ID_VERSION_FIRST:
        return topic.name
    try:
        return api.topics.resolve(TopicRef("", topic.topic_id)).name
    except KafkaError as error:
        return error


def _every(found: Mapping[TopicPartition, Committed]) -> list[OffsetFetchResponseTopics]:
    by_topic: dict[str, OffsetFetchResponseTopics] = {}
    for at in sorted(found):
        row = found[at]
        topic = by_topic.get(at.topic)
        if topic is None:
            topic_id = base64.urlsafe_b64decode(row.topic_id + "==")
            topic = OffsetFetchResponseTopics(name=at.topic, topic_id=topic_id, partitions=[])
            by_topic[at.topic] = topic
        topic.partitions.append(_partition(at.partition, row))
    return list(by_topic.values())


def _partition(
    index: int, row: Committed | None, code: ErrorCode = ErrorCode.NONE
) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=NO_OFFSET if row is None else row.offset,
        committed_leader_epoch=NO_EPOCH if row is None else row.epoch,
        metadata="" if row is None else row.metadata,
        error_code=code,
    )


def _refused(asked: OffsetFetchRequestGroup, error: KafkaError) -> OffsetFetchResponseGroup:
    """Answer a group with an error, at its partitions too for versions without a top-level one."""
    topics = [
        OffsetFetchResponseTopics(
            name=topic.name,
            topic_id=ZERO_UUID,
            partitions=[
                _partition(index, None, group_error_code(error)) for index in topic.partition_indexes
            ],
        )
        for topic in asked.topics or ()
    ]
    return OffsetFetchResponseGroup(
        group_id=asked.group_id, topics=topics, error_code=group_error_code(error)
    )


def _response(groups: Sequence[OffsetFetchResponseGroup], caller: Caller) -> OffsetFetchResponse:
    if caller.version >= GROUPS_VERSION_FIRST:
        for each in groups:
            if each.error_code:
                each.topics = []
        return OffsetFetchResponse(groups=list(groups))
    [group] = groups
    code = group.error_code
    # Version 1 carries errors at the partitions only.
    answered = [] if code and caller.version >= TOP_LEVEL_ERROR_VERSION_FIRST else group.topics
    topics = [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(**msgspec.structs.asdict(each)) for each in topic.partitions
            ],
        )
        for topic in answered
    ]
    return OffsetFetchResponse(topics=topics, error_code=code)


register(OffsetFetchRequest, GroupApi, handle, refuse)
