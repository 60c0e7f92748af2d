"""DeleteRecords (key 21), versions 0-2: deletes the oldest records of partitions, up to an offset.

It is done when it is answered, so the timeout has nothing to wait for. A topic whose cleanup.policy does not delete
takes no deletion (POLICY_VIOLATION), as in Kafka.
"""

from __future__ import annotations

from functools import partial

from korvet.errors import ErrorCode, KafkaError
from korvet.handlers.context import Caller, LogApi
from korvet.handlers.registry import register
from korvet.log.trim import Deletion
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from korvet.topics.types import Partition

NO_LOW_WATERMARK = -1


def handle(request: DeleteRecordsRequest, _caller: Caller, api: LogApi) -> DeleteRecordsResponse:
    """Delete in each partition; one that refuses does not keep the others from it."""
    every, fenced = _answers(request, api)
    if fenced:
        # A topic was deleted, or made anew, since this worker last looked. What was done is not done again: a start
        # that lies there already stays.
        api.topics.look_again(fenced)
        every, _ = _answers(request, api)
    answers = iter(every)
    topics = [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[_result(each.partition_index, next(answers)) for each in topic.partitions],
        )
        for topic in request.topics
    ]
    return DeleteRecordsResponse(topics=topics)


def refuse(request: DeleteRecordsRequest, _caller: Caller, error: KafkaError) -> DeleteRecordsResponse:
    """Answer every partition with the error."""
    topics = [
        DeleteRecordsTopicResult(
            name=topic.name, partitions=[_result(each.partition_index, error) for each in topic.partitions]
        )
        for topic in request.topics
    ]
    return DeleteRecordsResponse(topics=topics)


def _answers(request: DeleteRecordsRequest, api: LogApi) -> tuple[list[int | KafkaError], list[Partition]]:
    """Answer in the order of the request; returns also the partitions that the log does not know."""
    places = [_deletion(topic.name, each, api) for topic in request.topics for each in topic.partitions]
    deletions = [each for each in places if isinstance(each, Deletion)]
    found = api.deletion.delete(deletions)
    fenced = [each.partition for each, answer in zip(deletions, found, strict=True) if _is_fenced(answer)]
    remaining = iter(found)
    return [next(remaining) if isinstance(each, Deletion) else each for each in places], fenced


def _is_fenced(answer: int | KafkaError) -> bool:
    return isinstance(answer, KafkaError) and answer.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _deletion(name: str, asked: DeleteRecordsPartition, api: LogApi) -> Deletion | KafkaError:
    try:
        topic, partition = api.topics.partition(partial(api.topics.find, name), asked.partition_index)
    except KafkaError as error:
        return error
    if not topic.config.delete:
        return KafkaError(ErrorCode.POLICY_VIOLATION, f"cleanup.policy of {name} does not delete")
    return Deletion(partition, asked.offset)


def _result(index: int, answer: int | KafkaError) -> DeleteRecordsPartitionResult:
    if isinstance(answer, KafkaError):
        return DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=NO_LOW_WATERMARK, error_code=answer.code
        )
    return DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=answer, error_code=ErrorCode.NONE
    )


register(DeleteRecordsRequest, LogApi, handle, refuse)
