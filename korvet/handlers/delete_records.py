"""DeleteRecords (key 21), versions 0-2: deletes the oldest records of partitions, up to an offset.

It is done when it is answered, so the timeout is not used. As in Kafka, a topic whose cleanup.policy does not
include delete is refused (POLICY_VIOLATION).

Errors: OFFSET_NOT_AVAILABLE, OFFSET_OUT_OF_RANGE, POLICY_VIOLATION, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from korvet.errors import ErrorCode, KafkaError, partition_code
from korvet.handlers.audit import partitions_changed
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DELETE, on_topics
from korvet.log.types import LogPosition
from korvet.protocol.messages import delete_records as wire
from korvet.topics.registry import Topic
from korvet.topics.types import Partition, PartitionRef, TopicRef

NO_LOW_WATERMARK = -1


def handle(
    request: wire.DeleteRecordsRequest, _caller: Caller, services: Services
) -> wire.DeleteRecordsResponse:
    """Delete records of each partition; the failure of one leaves the others unaffected."""
    refs = [
        PartitionRef(TopicRef(topic.name), partition.partition_index, partition)
        for topic in request.topics
        for partition in topic.partitions
    ]
    return _response(request, iter(services.topics.ask(refs, _deletion, services.deletion.delete)))


def _deletion(asked: wire.DeleteRecordsPartition, topic: Topic, partition: Partition) -> LogPosition:
    if not topic.config.delete:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"cleanup.policy of {topic.name} does not include delete"
        )
    return LogPosition(partition, asked.offset)


def _response(
    request: wire.DeleteRecordsRequest, answers: Iterator[int | KafkaError]
) -> wire.DeleteRecordsResponse:
    topics = [
        wire.DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[_result(partition.partition_index, next(answers)) for partition in topic.partitions],
        )
        for topic in request.topics
    ]
    return wire.DeleteRecordsResponse(topics=topics)


def _result(index: int, answer: int | KafkaError) -> wire.DeleteRecordsPartitionResult:
    if isinstance(answer, KafkaError):
        return wire.DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=NO_LOW_WATERMARK, error_code=partition_code(answer)
        )
    return wire.DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=answer, error_code=ErrorCode.NONE
    )


register(
    handle,
    lambda request, _caller, error: _response(request, repeat(error)),
    rights=[on_topics(DELETE)],
    changes=lambda _request, response: partitions_changed(response.topics),
    unconfirmed=ErrorCode.REQUEST_TIMED_OUT,
)
