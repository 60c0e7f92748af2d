"""OffsetForLeaderEpoch (key 23), versions 2-4: where the records of an epoch end.

Consumers compare the answer with their position to find out that the log was cut (KIP-320). It never is here: the
present epoch answers with the end of the log, any other with "undefined" (-1), which clients take as nothing known.
"""

from __future__ import annotations

from korvet.domain.fetch import check_leader_epoch
from korvet.domain.offsets import OffsetFound
from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.handler import Broker, Caller
from korvet.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from korvet.storage.log_types import Partition

REQUEST = OffsetForLeaderEpochRequest


def handle(
    request: OffsetForLeaderEpochRequest, _caller: Caller, broker: Broker
) -> OffsetForLeaderEpochResponse:
    """Answer for each partition."""
    places = [_asked(topic.topic, each, broker) for topic in request.topics for each in topic.partitions]
    found = iter(broker.offsets.epoch_ends([each for each in places if not isinstance(each, KafkaError)]))
    every = [each if isinstance(each, KafkaError) else next(found) for each in places]
    if any(
        isinstance(each, KafkaError) and each.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for each in every
    ):
        # The log refused a topic that this worker holds for live: the client's next try must find the new one.
        broker.topics.refresh()
    answers = iter(every)
    topics = [
        OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=[_response(each.partition, next(answers)) for each in topic.partitions],
        )
        for topic in request.topics
    ]
    return OffsetForLeaderEpochResponse(topics=topics)


def refuse(request: OffsetForLeaderEpochRequest, error: KafkaError) -> OffsetForLeaderEpochResponse:
    """Answer every partition with the error."""
    topics = [
        OffsetForLeaderTopicResult(
            topic=topic.topic, partitions=[_response(each.partition, error) for each in topic.partitions]
        )
        for topic in request.topics
    ]
    return OffsetForLeaderEpochResponse(topics=topics)


def _asked(name: str, asked: OffsetForLeaderPartition, broker: Broker) -> tuple[Partition, int] | KafkaError:
    try:
        partition = broker.topics.find(name).partition(asked.partition)
        check_leader_epoch(asked.current_leader_epoch)
    except KafkaError as error:
        return error
    return partition, asked.leader_epoch


def _response(index: int, answer: OffsetFound | KafkaError) -> EpochEndOffset:
    if isinstance(answer, KafkaError):
        return EpochEndOffset(partition=index, error_code=answer.code)
    return EpochEndOffset(partition=index, leader_epoch=answer.leader_epoch, end_offset=answer.offset)
