"""OffsetFetch (key 9), versions 1-10: the committed offsets of groups.

A group, topic or partition without a commit gets offset -1 and no error, as in Kafka; in a group of the consumer
protocol a member must have the epoch that it gives (KIP-848). From version 7 on a client may ask for stable offsets
only (KIP-447): an offset that an open transaction is to replace gets UNSTABLE_OFFSET_COMMIT, and the client asks again.

Errors: STALE_MEMBER_EPOCH, UNKNOWN_MEMBER_ID, UNKNOWN_TOPIC_ID, UNSTABLE_OFFSET_COMMIT.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.offset_reads import Committed
from korvet.groups.types import GROUPS_AT_ONCE
from korvet.handlers.common import group_error_code
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, GROUP, TOPIC, by_handler
from korvet.protocol.messages import offset_fetch as wire
from korvet.protocol.types import TopicPartition
from korvet.protocol.wire import ZERO_UUID
from korvet.security.authorizer import refusal
from korvet.topics.registry import id_bytes
from korvet.topics.types import TopicRef
from korvet.turns import in_parts

TOP_LEVEL_ERROR_VERSION_FIRST = 2
GROUPS_VERSION_FIRST = 8
TOPIC_ID_VERSION_FIRST = 10

NO_OFFSET = -1
NO_EPOCH = -1

Outcome = TypeVar("Outcome")


def handle(request: wire.OffsetFetchRequest, caller: Caller, services: Services) -> wire.OffsetFetchResponse:
    """Answer for each group; the failure of one leaves the others unaffected."""
    groups: list[wire.OffsetFetchRequestGroup] = []
    # All offsets of a group are returned once, however often it is named: a name is short, and they may be many.
    whole: set[str] = set()
    for group in _groups(request, caller):
        if group.topics is None and group.group_id in whole:
            continue
        if group.topics is None:
            whole.add(group.group_id)
        groups.append(group)
    answers: list[wire.OffsetFetchResponseGroup] = []
    for part in in_parts(groups, GROUPS_AT_ONCE):
        answers += _answers(part, caller, services, require_stable=request.require_stable)
    return _response(answers, caller)


def _groups(request: wire.OffsetFetchRequest, caller: Caller) -> list[wire.OffsetFetchRequestGroup]:
    """Return what is asked for as in version 8."""
    if caller.version >= GROUPS_VERSION_FIRST:
        return request.groups
    return [wire.OffsetFetchRequestGroup(group_id=request.group_id, topics=request.topics)]


_NamedTopic = tuple[wire.OffsetFetchRequestTopics, str | KafkaError]
"""A topic that is answered, with its name or the error that it gets."""


class _NamedGroup(msgspec.Struct):
    """A group of the request: `error` is what prevents its answer, `rows` is what it has committed."""

    asked: wire.OffsetFetchRequestGroup
    error: KafkaError | None = None
    unstable: set[TopicPartition] = set()
    topics: list[_NamedTopic] = []
    rows: dict[TopicPartition, Committed | KafkaError | None] = {}

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of `topics` that are to be fetched."""
        return [
            TopicPartition(name, index)
            for topic, name in self.topics
            if isinstance(name, str)
            for index in topic.partition_indexes
        ]


def _answers(
    asked: Sequence[wire.OffsetFetchRequestGroup], caller: Caller, services: Services, *, require_stable: bool
) -> list[wire.OffsetFetchResponseGroup]:
    groups = [_NamedGroup(group) for group in asked]
    for group in groups:
        if not caller.rights.allows(DESCRIBE, GROUP, group.asked.group_id):
            group.error = refusal(GROUP)
    # First: what is committed between the two reads is then stable.
    allowed = [group for group in groups if not group.error] if require_stable else []
    for group, unstable in _settled(allowed, services.groups.offsets.unstable(_ids(allowed))):
        group.unstable = unstable
    readers = [
        group
        for group in groups
        if not group.error and (group.asked.member_id is not None or group.asked.member_epoch >= 0)
    ]
    members = [
        (group.asked.group_id, group.asked.member_id or "", group.asked.member_epoch) for group in readers
    ]
    for group, error in zip(readers, services.groups.offsets.check_readers(members), strict=True):
        group.error = error
    whole = [group for group in groups if not group.error and group.asked.topics is None]
    for group, rows in _settled(whole, services.groups.offsets.fetch_all(_ids(whole), services.topics.ids)):
        visible = {
            partition: row
            for partition, row in rows.items()
            if caller.may(DESCRIBE, partition.topic, log=False)
        }
        group.topics, group.rows = _topics_of(visible), dict(visible)
    named = [group for group in groups if not group.error and group.asked.topics is not None]
    for group in named:
        group.topics = [(topic, _name(topic, caller, services)) for topic in group.asked.topics or ()]
        # As in Apache Kafka, topics that are refused come last.
        group.topics.sort(key=lambda pair: isinstance(pair[1], KafkaError))
    partitions = [(group.asked.group_id, partition) for group in named for partition in group.partitions]
    fetched = iter(services.groups.committed.fetch(partitions))
    for group in named:
        group.rows = {partition: next(fetched) for partition in group.partitions}
    return [_answer(group) for group in groups]


def _ids(groups: Iterable[_NamedGroup]) -> list[str]:
    return [group.asked.group_id for group in groups]


def _settled(
    groups: Iterable[_NamedGroup], outcomes: Iterable[Outcome | KafkaError]
) -> Iterator[tuple[_NamedGroup, Outcome]]:
    """Yield the groups with their outcomes; one that is an error prevents the group's answer."""
    for group, outcome in zip(groups, outcomes, strict=True):
        if isinstance(outcome, KafkaError):
            group.error = outcome
        else:
            yield group, outcome


def _answer(group: _NamedGroup) -> wire.OffsetFetchResponseGroup:
    error = group.error or next((row for row in group.rows.values() if isinstance(row, KafkaError)), None)
    if error is not None:
        return _refused(group.asked, error)
    topics = [
        wire.OffsetFetchResponseTopics(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[_partition(index, _row(group, name, index)) for index in topic.partition_indexes],
        )
        for topic, name in group.topics
    ]
    return wire.OffsetFetchResponseGroup(group_id=group.asked.group_id, topics=topics)


def _row(group: _NamedGroup, name: str | KafkaError, index: int) -> Committed | KafkaError | None:
    if isinstance(name, KafkaError):
        return name
    partition = TopicPartition(name, index)
    if partition in group.unstable:
        message = f"a transaction is to commit an offset of {name}-{index}"
        return KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT, message)
    return group.rows[partition]


def _name(topic: wire.OffsetFetchRequestTopics, caller: Caller, services: Services) -> str | KafkaError:
    try:
        by_id = caller.version >= TOPIC_ID_VERSION_FIRST
        name = services.topics.resolve(TopicRef("", topic.topic_id)).name if by_id else topic.name
    except KafkaError as error:
        return error.without_frames()
    return name if caller.may(DESCRIBE, name) else refusal(TOPIC)


def _topics_of(rows: Mapping[TopicPartition, Committed]) -> list[_NamedTopic]:
    """Return the topics of what a group has committed, as if they were asked for."""
    topics: dict[str, wire.OffsetFetchRequestTopics] = {}
    for partition in sorted(rows):
        topic_id = id_bytes(rows[partition].topic_id)
        new = wire.OffsetFetchRequestTopics(name=partition.topic, topic_id=topic_id, partition_indexes=[])
        topics.setdefault(partition.topic, new).partition_indexes.append(partition.partition)
    return [(topic, name) for name, topic in topics.items()]


def _partition(index: int, answer: Committed | KafkaError | None) -> wire.OffsetFetchResponsePartitions:
    row = answer if isinstance(answer, Committed) else None
    return wire.OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=NO_OFFSET if row is None else row.offset,
        committed_leader_epoch=NO_EPOCH if row is None else row.epoch,
        metadata="" if row is None else row.metadata,
        error_code=group_error_code(answer) if isinstance(answer, KafkaError) else ErrorCode.NONE,
    )


def _refused(asked: wire.OffsetFetchRequestGroup, error: KafkaError) -> wire.OffsetFetchResponseGroup:
    """Answer a group with an error, at its partitions too for versions without a top-level one."""
    topics = [
        wire.OffsetFetchResponseTopics(
            name=topic.name,
            topic_id=ZERO_UUID,
            partitions=[_partition(index, error) for index in topic.partition_indexes],
        )
        for topic in asked.topics or ()
    ]
    return wire.OffsetFetchResponseGroup(
        group_id=asked.group_id, topics=topics, error_code=group_error_code(error)
    )


def _response(groups: Sequence[wire.OffsetFetchResponseGroup], caller: Caller) -> wire.OffsetFetchResponse:
    if caller.version >= GROUPS_VERSION_FIRST:
        for group in groups:
            if group.error_code:
                group.topics = []
        return wire.OffsetFetchResponse(groups=list(groups))
    [group] = groups
    code = group.error_code
    # Version 1 carries errors at the partitions only.
    topics = [] if code and caller.version >= TOP_LEVEL_ERROR_VERSION_FIRST else group.topics
    return wire.OffsetFetchResponse(topics=topics, error_code=code)


register(
    handle,
    lambda request, caller, error: _response(
        [_refused(asked, error) for asked in _groups(request, caller)], caller
    ),
    rights=[by_handler((DESCRIBE, GROUP), (DESCRIBE, TOPIC))],
)
