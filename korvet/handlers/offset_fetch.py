"""OffsetFetch (key 9), versions 1-10: the committed offsets of groups.

A group, topic or partition without a commit gets offset -1 and no error, as in Kafka; in a group of the consumer
protocol a member must have the epoch that it gives (KIP-848). From version 7 on a client may ask for stable offsets
only (KIP-447): an offset that an open transaction is to replace gets UNSTABLE_OFFSET_COMMIT, and the client asks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.offsets import Committed
from korvet.handlers.common import group_error_code
from korvet.handlers.context import Caller, GroupApi
from korvet.handlers.registry import register
from korvet.protocol.messages import offset_fetch as wire
from korvet.protocol.types import AclOperation, AclResourceType, TopicPartition
from korvet.protocol.wire import ZERO_UUID
from korvet.security.authorizer import refusal
from korvet.topics.registry import id_bytes
from korvet.topics.types import TopicRef

TOP_LEVEL_ERROR_VERSION_FIRST = 2
GROUPS_VERSION_FIRST = 8
TOPIC_ID_VERSION_FIRST = 10

NO_OFFSET = -1
NO_EPOCH = -1


def handle(request: wire.OffsetFetchRequest, caller: Caller, api: GroupApi) -> wire.OffsetFetchResponse:
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
            if not caller.rights.allows(AclOperation.DESCRIBE, AclResourceType.GROUP, asked.group_id):
                groups.append(_refused(asked, refusal(AclResourceType.GROUP)))
                continue
            # First: what is committed between the two reads is then stable.
            unstable = api.pending.unstable(asked.group_id) if request.require_stable else set()
            groups.append(_group(asked, unstable, caller, api))
        except KafkaError as error:
            groups.append(_refused(asked, error))
    return _response(groups, caller)


def refuse(request: wire.OffsetFetchRequest, caller: Caller, error: KafkaError) -> wire.OffsetFetchResponse:
    """Answer every group with the error."""
    return _response([_refused(asked, error) for asked in _groups(request, caller)], caller)


def _groups(request: wire.OffsetFetchRequest, caller: Caller) -> list[wire.OffsetFetchRequestGroup]:
    """Return what is asked for as in version 8."""
    if caller.version >= GROUPS_VERSION_FIRST:
        return request.groups
    return [wire.OffsetFetchRequestGroup(group_id=request.group_id, topics=request.topics)]


def _group(
    asked: wire.OffsetFetchRequestGroup, unstable: set[TopicPartition], caller: Caller, api: GroupApi
) -> wire.OffsetFetchResponseGroup:
    if asked.member_id is not None or asked.member_epoch >= 0:
        api.committed.check_reader(asked.group_id, asked.member_id or "", asked.member_epoch)
    if asked.topics is None:
        found = {
            at: row
            for at, row in api.committed.fetch_all(asked.group_id).items()
            if _may_describe(at.topic, caller, log=False)
        }
        return wire.OffsetFetchResponseGroup(group_id=asked.group_id, topics=_every(found, unstable))
    named = [(_name(topic, caller, api), topic) for topic in asked.topics]
    # As in Apache Kafka, topics that are refused come last.
    named.sort(key=lambda pair: isinstance(pair[0], KafkaError))
    asked_for = [
        TopicPartition(name, index)
        for name, topic in named
        if isinstance(name, str)
        for index in topic.partition_indexes
    ]
    rows = zip(asked_for, api.committed.fetch(asked.group_id, asked_for), strict=True)
    answers = iter([_unstable(at) if at in unstable else row for at, row in rows])
    topics = [
        wire.OffsetFetchResponseTopics(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                _partition(index, name if isinstance(name, KafkaError) else next(answers))
                for index in topic.partition_indexes
            ],
        )
        for name, topic in named
    ]
    return wire.OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)


def _unstable(at: TopicPartition) -> KafkaError:
    message = f"a transaction is to commit an offset of {at.topic}-{at.partition}"
    return KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT, message)


def _name(topic: wire.OffsetFetchRequestTopics, caller: Caller, api: GroupApi) -> str | KafkaError:
    try:
        by_id = caller.version >= TOPIC_ID_VERSION_FIRST
        name = api.topics.resolve(TopicRef("", topic.topic_id)).name if by_id else topic.name
    except KafkaError as error:
        return error.without_frames()
    return name if _may_describe(name, caller) else refusal(AclResourceType.TOPIC)


def _may_describe(topic: str, caller: Caller, *, log: bool = True) -> bool:
    return caller.rights.allows(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic, log=log)


def _every(
    found: Mapping[TopicPartition, Committed], unstable: set[TopicPartition]
) -> list[wire.OffsetFetchResponseTopics]:
    by_topic: dict[str, wire.OffsetFetchResponseTopics] = {}
    for at in sorted(found):
        row = found[at]
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
        for each in groups:
            if each.error_code:
                each.topics = []
        return wire.OffsetFetchResponse(groups=list(groups))
    [group] = groups
    code = group.error_code
    # Version 1 carries errors at the partitions only.
    topics = [] if code and caller.version >= TOP_LEVEL_ERROR_VERSION_FIRST else group.topics
    return wire.OffsetFetchResponse(topics=topics, error_code=code)


register(
    wire.OffsetFetchRequest,
    GroupApi,
    handle,
    refuse,
    errors={
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    },
)
