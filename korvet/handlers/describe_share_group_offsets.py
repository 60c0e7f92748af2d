"""DescribeShareGroupOffsets (key 90), versions 0-1: where share groups begin in partitions, and their lag (KIP-1226).

The start is -1, as in Kafka, for a missing partition, for one without the group, and before any record was
acknowledged, released or delivered again. A request that names no topics gets all partitions of the topics in which the
group has been and which the caller may describe.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from korvet.errors import KafkaError
from korvet.handlers.common import error_fields
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, GROUP, TOPIC, by_handler
from korvet.protocol.messages import describe_share_group_offsets as wire
from korvet.protocol.wire import ZERO_UUID
from korvet.security.authorizer import refusal
from korvet.share.offsets import UNKNOWN_START, GroupPosition
from korvet.turns import in_turns

LAG_VERSION_FIRST = 1

Answer = GroupPosition | KafkaError | None


def handle(
    request: wire.DescribeShareGroupOffsetsRequest, caller: Caller, services: Services
) -> wire.DescribeShareGroupOffsetsResponse:
    """Describe each group; the failure of one leaves the others unaffected."""
    services.topics.refresh()
    groups = []
    for group in request.groups:
        try:
            if not caller.rights.allows(DESCRIBE, GROUP, group.group_id):
                raise refusal(GROUP)
            topics = (
                _all_topics(group.group_id, caller, services)
                if group.topics is None
                else [_topic(group.group_id, topic, caller, services) for topic in group.topics]
            )
            groups.append(wire.DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id, topics=topics))
        except KafkaError as error:
            groups.append(_refused(group, error))
    return wire.DescribeShareGroupOffsetsResponse(groups=groups)


def _all_topics(
    group: str, caller: Caller, services: Services
) -> list[wire.DescribeShareGroupOffsetsResponseTopic]:
    """Return all partitions of the topics in which the group has been."""
    topics = [topic for topic in services.topics.list_cached() if caller.may(DESCRIBE, topic.name, log=False)]
    partitions = [partition for topic in in_turns(topics) for partition in topic.partitions]
    positions = services.share.offsets.describe(group, partitions, lags=caller.version >= LAG_VERSION_FIRST)
    remaining = iter(in_turns(positions))
    by_topic = [(topic, list(islice(remaining, len(topic.partitions)))) for topic in in_turns(topics)]
    return [
        _described(topic.name, topic.id, enumerate(answers))
        for topic, answers in by_topic
        if any(answer is not None for answer in answers)
    ]


def _topic(
    group: str, asked: wire.DescribeShareGroupOffsetsRequestTopic, caller: Caller, services: Services
) -> wire.DescribeShareGroupOffsetsResponseTopic:
    name, indexes = asked.topic_name, asked.partitions
    if not caller.may(DESCRIBE, name):
        return _described(name, ZERO_UUID, ((index, refusal(TOPIC)) for index in indexes))
    topic = services.topics.get_cached(name)
    if topic is None:
        return _described(name, ZERO_UUID, ((index, None) for index in indexes))
    known = [index for index in dict.fromkeys(indexes) if 0 <= index < len(topic.partitions)]
    partitions = [topic.partition(index) for index in known]
    positions = services.share.offsets.describe(group, partitions, lags=caller.version >= LAG_VERSION_FIRST)
    answers: dict[int, Answer] = dict(zip(known, positions, strict=True))
    return _described(name, topic.id, ((index, answers.get(index)) for index in indexes))


def _described(
    name: str, topic_id: bytes, answers: Iterable[tuple[int, Answer]]
) -> wire.DescribeShareGroupOffsetsResponseTopic:
    partitions = []
    for index, answer in answers:
        position = answer if isinstance(answer, GroupPosition) else GroupPosition(UNKNOWN_START, 0)
        error = answer if isinstance(answer, KafkaError) else None
        partitions.append(
            wire.DescribeShareGroupOffsetsResponsePartition(
                partition_index=index,
                start_offset=position.start,
                leader_epoch=position.leader_epoch,
                lag=position.lag,
                **error_fields(error, of_group=True),
            )
        )
    return wire.DescribeShareGroupOffsetsResponseTopic(
        topic_name=name, topic_id=topic_id, partitions=partitions
    )


def _refused(
    group: wire.DescribeShareGroupOffsetsRequestGroup, error: KafkaError
) -> wire.DescribeShareGroupOffsetsResponseGroup:
    return wire.DescribeShareGroupOffsetsResponseGroup(
        group_id=group.group_id,
        topics=[],
        **error_fields(error, of_group=True),
    )


register(
    handle,
    lambda request, _caller, error: wire.DescribeShareGroupOffsetsResponse(
        groups=[_refused(group, error) for group in request.groups]
    ),
    rights=[by_handler((DESCRIBE, GROUP), (DESCRIBE, TOPIC))],
)
