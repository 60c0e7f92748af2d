"""ListOffsets (key 2), versions 1-11: the offset that belongs to a timestamp, or to one of the special ones.

Which special timestamps a client may use depends on its version; others are UNSUPPORTED_VERSION for the partition,
never an offset. There are no transactions, so both isolation levels see the same end.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.context import Caller, LogApi
from korvet.handlers.registry import register
from korvet.log.fetch import check_leader_epoch
from korvet.log.offsets import OffsetFound, OffsetQuery, is_stale
from korvet.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from korvet.protocol.types import SpecialTimestamp
from korvet.topics.types import Partition

LEADER_EPOCH_VERSION_FIRST = 4
SPECIAL_SINCE: dict[int, int] = {
    SpecialTimestamp.LATEST: 0,
    SpecialTimestamp.EARLIEST: 0,
    SpecialTimestamp.MAX_TIMESTAMP: 7,
    SpecialTimestamp.EARLIEST_LOCAL: 8,
    SpecialTimestamp.LATEST_TIERED: 9,
    SpecialTimestamp.EARLIEST_PENDING_UPLOAD: 11,
}
"""The version from which on a special timestamp may be asked for (KIP-734, KIP-405, KIP-1005, KIP-1023)."""


def handle(request: ListOffsetsRequest, caller: Caller, api: LogApi) -> ListOffsetsResponse:
    """Answer for each partition; one that is named twice gets INVALID_REQUEST each time, as Kafka does."""
    every, fenced = _answers(request, caller, api)
    if fenced:
        # A topic was deleted, or made anew, since this worker last looked.
        api.topics.look_again(fenced)
        every, _ = _answers(request, caller, api)
    answers = iter(every)
    topics = [
        ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[_response(each.partition_index, next(answers), caller) for each in topic.partitions],
        )
        for topic in request.topics
    ]
    return ListOffsetsResponse(topics=topics)


def _answers(
    request: ListOffsetsRequest, caller: Caller, api: LogApi
) -> tuple[list[OffsetFound | KafkaError], list[Partition]]:
    """Answer in the order of the request; returns also the partitions that the log does not know."""
    times = Counter(
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    )
    places: list[OffsetQuery | KafkaError] = []
    for topic in request.topics:
        for partition in topic.partitions:
            if times[topic.name, partition.partition_index] > 1:
                places.append(KafkaError(ErrorCode.INVALID_REQUEST, "the partition is named twice"))
            else:
                places.append(_question(topic.name, partition, caller, api))
    questions = [each for each in places if isinstance(each, OffsetQuery)]
    found = api.offsets.find(questions)
    fenced = [each.partition for each, answer in zip(questions, found, strict=True) if is_stale(answer)]
    remaining = iter(found)
    return [next(remaining) if isinstance(each, OffsetQuery) else each for each in places], fenced


def refuse(request: ListOffsetsRequest, _caller: Caller, error: KafkaError) -> ListOffsetsResponse:
    """Answer every partition with the error."""
    topics = [
        ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                ListOffsetsPartitionResponse(partition_index=each.partition_index, error_code=error.code)
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return ListOffsetsResponse(topics=topics)


def _question(
    name: str, asked: ListOffsetsPartition, caller: Caller, api: LogApi
) -> OffsetQuery | KafkaError:
    try:
        topic, partition = api.topics.partition(partial(api.topics.find, name), asked.partition_index)
        check_leader_epoch(asked.current_leader_epoch)
    except KafkaError as error:
        return error
    if asked.timestamp < 0 and caller.version < SPECIAL_SINCE.get(asked.timestamp, caller.version + 1):
        return KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {asked.timestamp} is not known")
    return OffsetQuery(partition, asked.timestamp, topic.config.remote_storage)


def _response(index: int, answer: OffsetFound | KafkaError, caller: Caller) -> ListOffsetsPartitionResponse:
    if isinstance(answer, KafkaError):
        return ListOffsetsPartitionResponse(partition_index=index, error_code=answer.code)
    return ListOffsetsPartitionResponse(
        partition_index=index,
        timestamp=answer.timestamp,
        offset=answer.offset,
        # Not ignorable in the schema: older versions have no leader epoch to carry (KIP-320).
        leader_epoch=answer.leader_epoch if caller.version >= LEADER_EPOCH_VERSION_FIRST else -1,
    )


register(ListOffsetsRequest, LogApi, handle, refuse)
