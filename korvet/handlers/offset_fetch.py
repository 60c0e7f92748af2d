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
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
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


def handle(request: wire.OffsetFetchRequest, caller: Caller, api: GroupApi) -> wire.OffsetFetchResponse:
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
        answers += _answers(part, caller, api, require_stable=request.require_stable)
    return _response(answers, caller)


def _groups(request: wire.OffsetFetchRequest, caller: Caller) -> list[wire.OffsetFetchRequestGroup]:
    """Return what is asked for as in version 8."""
    if caller.version >= GROUPS_VERSION_FIRST:
        return request.groups
    return [wire.OffsetFetchRequestGroup(group_id=request.group_id, topics=request.topics)]


class _NamedGroup(msgspec.Struct):
    """A group of the request: `error` is what prevents its answer, `rows` is all that it has committed."""

    asked: wire.OffsetFetchRequestGroup
    error: KafkaError | None = None
    unstable: set[TopicPartition] = set()
    rows: dict[TopicPartition, Committed] = {}
    topics: list[tuple[wire.OffsetFetchRequestTopics, str | KafkaError]] = []
    """The named topics, each with its name or the error that it is answered."""

    @property
    def partitions(self) -> list[tuple[str, TopicPartition]]:
        """The group's id with each partition of `topics` that is to be fetched."""
        return [
            (self.asked.group_id, TopicPartition(name, index))
            for topic, name in self.topics
            if isinstance(name, str)
            for index in topic.partition_indexes
        ]


def _answers(
    asked: Sequence[wire.OffsetFetchRequestGroup], caller: Caller, api: GroupApi, *, require_stable: bool
) -> list[wire.OffsetFetchResponseGroup]:
    groups = [_NamedGroup(group) for group in asked]
    for group in groups:
        if not caller.rights.allows(DESCRIBE, GROUP, group.asked.group_id):
            group.error = refusal(GROUP)
    # First: what is committed between the two reads is then stable.
    allowed = [group for group in groups if not group.error] if require_stable else []
    for group, unstable in _settled(allowed, api.pending.unstable(_ids(allowed))):
        group.unstable = unstable
    readers = [
        group
        for group in groups
        if not group.error and (group.asked.member_id is not None or group.asked.member_epoch >= 0)
    ]
    members = [
        (group.asked.group_id, group.asked.member_id or "", group.asked.member_epoch) for group in readers
    ]
    for group, error in zip(readers, api.committed.check_readers(members), strict=True):
        group.error = error
    whole = [group for group in groups if not group.error and group.asked.topics is None]
    for group, rows in _settled(whole, api.committed.fetch_all(_ids(whole))):
        group.rows = rows
    named = [group for group in groups if not group.error and group.asked.topics is not None]
    for group in named:
        group.topics = [(topic, _name(topic, caller, api)) for topic in group.asked.topics or ()]
        # As in Apache Kafka, topics that are refused come last.
        group.topics.sort(key=lambda pair: isinstance(pair[1], KafkaError))
    partitions = [partition for group in named for partition in group.partitions]
    committed = dict(zip(partitions, api.committed.fetch(partitions), strict=True))
    return [_answer(group, committed, caller) for group in groups]


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


def _answer(
    group: _NamedGroup,
    committed: Mapping[tuple[str, TopicPartition], Committed | KafkaError | None],
    caller: Caller,
) -> wire.OffsetFetchResponseGroup:
    group_id = group.asked.group_id
    rows = (committed[partition] for partition in group.partitions)
    error = group.error or next((row for row in rows if isinstance(row, KafkaError)), None)
    if error is not None:
        return _refused(group.asked, error)
    if group.asked.topics is None:
        visible = {at: row for at, row in group.rows.items() if caller.may(DESCRIBE, at.topic, log=False)}
        return wire.OffsetFetchResponseGroup(group_id=group_id, topics=_every(visible, group.unstable))
    topics = []
    for topic, name in group.topics:
        answer = wire.OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=[])
        for index in topic.partition_indexes:
            row: Committed | KafkaError | None
            if isinstance(name, KafkaError):
                row = name
            elif (at := TopicPartition(name, index)) in group.unstable:
                row = _unstable(at)
            else:
                row = committed[group_id, at]
            answer.partitions.append(_partition(index, row))
        topics.append(answer)
    return wire.OffsetFetchResponseGroup(group_id=group_id, topics=topics)


def _unstable(at: TopicPartition) -> KafkaError:
    message = f"a transaction is to commit an offset of {at.topic}-{at.partition}"
    return KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT, message)


def _name(topic: wire.OffsetFetchRequestTopics, caller: Caller, api: GroupApi) -> str | KafkaError:
    try:
        by_id = caller.version >= TOPIC_ID_VERSION_FIRST
        name = api.topics.resolve(TopicRef("", topic.topic_id)).name if by_id else topic.name
    except KafkaError as error:
        return error.without_frames()
    return name if caller.may(DESCRIBE, name) else refusal(TOPIC)


def _every(
    committed: Mapping[TopicPartition, Committed], unstable: set[TopicPartition]
) -> list[wire.OffsetFetchResponseTopics]:
    by_topic: dict[str, wire.OffsetFetchResponseTopics] = {}
    for at in sorted(committed):
        row = committed[at]
        topic = by_topic.get(at.topic)
        if topic is None:
            topic_id = id_bytes(row.topic_id)
            topic = wire.OffsetFetchResponseTopics(name=at.topic, topic_id=topic_id, partitions=[])
            by_topic[at.topic] = topic
        topic.partitions.append(_partition(at.partition, _unstable(at) if at in unstable else row))
    return list(by_topic.values())


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
