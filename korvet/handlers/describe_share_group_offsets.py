"""DescribeShareGroupOffsets (key 90), versions 0-1: where share groups begin in partitions, and their lag (KIP-1226).

The start is -1, as in Kafka, for a missing partition, for one without the group, and before any record was
acknowledged, released or delivered again. A request that names no topics gets all partitions of the topics in which the
group has been and which the caller may describe.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from korvet.errors import KafkaError
from korvet.handlers.common import error_message, group_error_code
from korvet.handlers.context import Caller, ShareApi
from korvet.handlers.registry import register
from korvet.handlers.rights import DESCRIBE, GROUP, TOPIC, by_handler
from korvet.protocol.messages import describe_share_group_offsets as wire
from korvet.protocol.wire import ZERO_UUID
from korvet.security.authorizer import refusal
from korvet.share.offsets import UNKNOWN_START, GroupPosition
from korvet.turns import in_turns

LAG_VERSION_FIRST = 1

Answer = GroupPosition | KafkaError | None


def handle(
    request: wire.DescribeShareGroupOffsetsRequest, caller: Caller, api: ShareApi
) -> wire.DescribeShareGroupOffsetsResponse:
    """Describe each group; the failure of one leaves the others unaffected."""
    api.topics.refresh()
    groups = []
    for asked in request.groups:
        try:
            if not caller.rights.allows(DESCRIBE, GROUP, asked.group_id):
                raise refusal(GROUP)
            topics = (
                _every(asked.group_id, caller, api)
                if asked.topics is None
                else [_topic(asked.group_id, each, caller, api) for each in asked.topics]
            )
            groups.append(wire.DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id, topics=topics))
        except KafkaError as error:
            groups.append(_refused(asked.group_id, error))
    return wire.DescribeShareGroupOffsetsResponse(groups=groups)


def _every(group: str, caller: Caller, api: ShareApi) -> list[wire.DescribeShareGroupOffsetsResponseTopic]:
    """Return all partitions of the topics in which the group has been."""
    topics = [each for each in api.topics.list_cached() if _may_describe(each.name, caller, log=False)]
    partitions = [each for topic in in_turns(topics) for each in topic.partitions]
    lags = caller.version >= LAG_VERSION_FIRST
    found = api.offsets.describe(group, partitions, lags=lags)
    answers = iter(in_turns(found))
    by_topic = [
        (topic, list(enumerate(islice(answers, len(topic.partitions))))) for topic in in_turns(topics)
    ]
    return [
        _described(topic.name, topic.id, of_topic)
        for topic, of_topic in by_topic
        if any(answer is not None for _, answer in of_topic)
    ]


def _topic(
    group: str, asked: wire.DescribeShareGroupOffsetsRequestTopic, caller: Caller, api: ShareApi
) -> wire.DescribeShareGroupOffsetsResponseTopic:
    name = asked.topic_name
    if not _may_describe(name, caller):
        error = refusal(TOPIC)
        return _described(name, ZERO_UUID, [(index, error) for index in asked.partitions])
    topic = api.topics.get_cached(name)
    if topic is None:
        return _described(name, ZERO_UUID, [(index, None) for index in asked.partitions])
    known = [index for index in dict.fromkeys(asked.partitions) if 0 <= index < len(topic.partitions)]
    lags = caller.version >= LAG_VERSION_FIRST
    found = api.offsets.describe(group, [topic.partition(index) for index in known], lags=lags)
    answers: dict[int, Answer] = dict(zip(known, found, strict=True))
    return _described(name, topic.id, [(index, answers.get(index)) for index in asked.partitions])


def _may_describe(topic: str, caller: Caller, *, log: bool = True) -> bool:
    return caller.rights.allows(DESCRIBE, TOPIC, topic, log=log)


def _described(
    name: str, topic_id: bytes, answers: Iterable[tuple[int, Answer]]
) -> wire.DescribeShareGroupOffsetsResponseTopic:
    return wire.DescribeShareGroupOffsetsResponseTopic(
        topic_name=name, topic_id=topic_id, partitions=[_partition(*each) for each in answers]
    )


def _partition(index: int, answer: Answer) -> wire.DescribeShareGroupOffsetsResponsePartition:
    found = answer if isinstance(answer, GroupPosition) else GroupPosition(UNKNOWN_START, 0)
    error = answer if isinstance(answer, KafkaError) else None
    return wire.DescribeShareGroupOffsetsResponsePartition(
        partition_index=index,
        start_offset=found.start,
        leader_epoch=found.leader_epoch,
        lag=found.lag,
        error_code=group_error_code(error),
        error_message=error_message(error),
    )


def _refused(group: str, error: KafkaError) -> wire.DescribeShareGroupOffsetsResponseGroup:
    return wire.DescribeShareGroupOffsetsResponseGroup(
        group_id=group,
        topics=[],
        error_code=group_error_code(error),
        error_message=error_message(error),
    )


register(
    handle,
    lambda request, _caller, error: wire.DescribeShareGroupOffsetsResponse(
        groups=[_refused(each.group_id, error) for each in request.groups]
    ),
    rights=[by_handler((DESCRIBE, GROUP), (DESCRIBE, TOPIC))],
)
