"""OffsetForLeaderEpoch (key 23), versions 2-4: where the records of an epoch end.

Consumers compare the answer with their position to detect that the log was truncated (KIP-320): Redis may lose the last
records, and others get their offsets in a later epoch.

Errors: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from korvet.errors import KafkaError, partition_code
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import CLUSTER_ACTION, DESCRIBE, on_topics
from korvet.log.offsets import OffsetFound
from korvet.protocol.messages import offset_for_leader_epoch as wire
from korvet.topics.registry import Topic
from korvet.topics.types import Partition, PartitionRef, TopicRef


def handle(
    request: wire.OffsetForLeaderEpochRequest, _caller: Caller, services: Services
) -> wire.OffsetForLeaderEpochResponse:
    refs = [
        PartitionRef(TopicRef(topic.topic), partition.partition, partition)
        for topic in request.topics
        for partition in topic.partitions
    ]

    def query(
        asked: wire.OffsetForLeaderPartition, _topic: Topic, partition: Partition
    ) -> tuple[Partition, int]:
        services.offsets.check_epoch(partition, asked.current_leader_epoch)
        return partition, asked.leader_epoch

    return _response(request, iter(services.topics.ask(refs, query, services.offsets.epoch_ends)))


def _response(
    request: wire.OffsetForLeaderEpochRequest, answers: Iterator[OffsetFound | KafkaError]
) -> wire.OffsetForLeaderEpochResponse:
    topics = [
        wire.OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=[_partition(partition.partition, next(answers)) for partition in topic.partitions],
        )
        for topic in request.topics
    ]
    return wire.OffsetForLeaderEpochResponse(topics=topics)


def _partition(index: int, answer: OffsetFound | KafkaError) -> wire.EpochEndOffset:
    if isinstance(answer, KafkaError):
        return wire.EpochEndOffset(partition=index, error_code=partition_code(answer))
    return wire.EpochEndOffset(partition=index, leader_epoch=answer.leader_epoch, end_offset=answer.offset)


register(
    handle,
    lambda request, _caller, error: _response(request, repeat(error)),
    rights=[on_topics(DESCRIBE, cluster=CLUSTER_ACTION, name="topic")],
)
