"""OffsetForLeaderEpoch (key 23), versions 2-4: where the records of an epoch end.

Consumers compare the answer with their position to find out that the log was cut (KIP-320). It never is here: the
present epoch answers with the end of the log, any other with "undefined" (-1), which clients take as nothing known.
"""

from __future__ import annotations

from functools import partial

from korvet.errors import KafkaError
from korvet.handlers.context import Caller, LogApi
from korvet.handlers.registry import register
from korvet.log.fetch import check_leader_epoch
from korvet.log.offsets import OffsetFound, is_stale
from korvet.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from korvet.topics.types import Partition


def handle(
    request: OffsetForLeaderEpochRequest, _caller: Caller, api: LogApi
) -> OffsetForLeaderEpochResponse:
    """Answer for each partition."""
    every, fenced = _answers(request, api)
    if fenced:
        # A topic was deleted, or made anew, since this worker last looked.
        api.topics.look_again(fenced)
        every, _ = _answers(request, api)
    answers = iter(every)
    topics = [
        OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=[_response(each.partition, next(answers)) for each in topic.partitions],
        )
        for topic in request.topics
    ]
    return OffsetForLeaderEpochResponse(topics=topics)


def refuse(
    request: OffsetForLeaderEpochRequest, _caller: Caller, error: KafkaError
) -> OffsetForLeaderEpochResponse:
    """Answer every partition with the error."""
    topics = [
        OffsetForLeaderTopicResult(
            topic=topic.topic, partitions=[_response(each.partition, error) for each in topic.partitions]
        )
        for topic in request.topics
    ]
    return OffsetForLeaderEpochResponse(topics=topics)


def _answers(
    request: OffsetForLeaderEpochRequest, api: LogApi
) -> tuple[list[OffsetFound | KafkaError], list[Partition]]:
    """Answer in the order of the request; returns also the partitions that the log does not know."""
    places = [_asked(topic.topic, each, api) for topic in request.topics for each in topic.partitions]
    asked = [each for each in places if not isinstance(each, KafkaError)]
    found = api.offsets.epoch_ends(asked)
    fenced = [partition for (partition, _), answer in zip(asked, found, strict=True) if is_stale(answer)]
    remaining = iter(found)
    return [each if isinstance(each, KafkaError) else next(remaining) for each in places], fenced


def _asked(name: str, asked: OffsetForLeaderPartition, api: LogApi) -> tuple[Partition, int] | KafkaError:
    try:
        _, partition = api.topics.partition(partial(api.topics.find, name), asked.partition)
        check_leader_epoch(asked.current_leader_epoch)
    except KafkaError as error:
        return error
    return partition, asked.leader_epoch


def _response(index: int, answer: OffsetFound | KafkaError) -> EpochEndOffset:
    if isinstance(answer, KafkaError):
        return EpochEndOffset(partition=index, error_code=answer.code)
    return EpochEndOffset(partition=index, leader_epoch=answer.leader_epoch, end_offset=answer.offset)


register(OffsetForLeaderEpochRequest, LogApi, handle, refuse)
