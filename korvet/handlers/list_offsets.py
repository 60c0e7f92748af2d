"""ListOffsets (key 2), versions 1-11: the offset that belongs to a timestamp, or to one of the special ones.

Which special timestamps a client may use depends on its version; others are UNSUPPORTED_VERSION for the partition,
never an offset. While it is not known how far replicas have the log, what needs that is OFFSET_NOT_AVAILABLE (KIP-207),
which clients ask again. For read_committed the log ends at its last stable offset (KIP-98).

Errors: FENCED_LEADER_EPOCH, INVALID_REQUEST, LEADER_NOT_AVAILABLE, OFFSET_NOT_AVAILABLE, UNKNOWN_LEADER_EPOCH,
UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import repeat

from korvet.errors import ErrorCode, KafkaError, partition_code
from korvet.handlers.registry import Caller, Services, register
from korvet.handlers.rights import DESCRIBE, on_topics
from korvet.log.offsets import OffsetFound, OffsetQuery
from korvet.protocol.messages import list_offsets as wire
from korvet.protocol.types import IsolationLevel, SpecialTimestamp
from korvet.topics.registry import Topic
from korvet.topics.types import Partition, PartitionRef, TopicRef
from korvet.turns import in_turns

LEADER_EPOCH_VERSION_FIRST = 4
OFFSET_NOT_AVAILABLE_VERSION_FIRST = 5
"""Older clients know LEADER_NOT_AVAILABLE for it (KIP-207)."""
SPECIAL_SINCE: dict[int, int] = {
    SpecialTimestamp.LATEST: 0,
    SpecialTimestamp.EARLIEST: 0,
    SpecialTimestamp.MAX_TIMESTAMP: 7,
    SpecialTimestamp.EARLIEST_LOCAL: 8,
    SpecialTimestamp.LATEST_TIERED: 9,
    SpecialTimestamp.EARLIEST_PENDING_UPLOAD: 11,
}
"""The version from which on a special timestamp may be asked for (KIP-734, KIP-405, KIP-1005, KIP-1023)."""


def handle(request: wire.ListOffsetsRequest, caller: Caller, services: Services) -> wire.ListOffsetsResponse:
    """Answer for each partition; one that is named twice gets INVALID_REQUEST each time, as Kafka does."""
    committed = request.isolation_level == IsolationLevel.READ_COMMITTED

    def query(asked: wire.ListOffsetsPartition, topic: Topic, partition: Partition) -> OffsetQuery:
        services.offsets.check_epoch(partition, asked.current_leader_epoch)
        if asked.timestamp < 0 and caller.version < SPECIAL_SINCE.get(asked.timestamp, caller.version + 1):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {asked.timestamp} is unknown")
        return OffsetQuery(partition, asked.timestamp, topic.config.remote_storage, committed)

    asked = [
        PartitionRef(TopicRef(topic.name), partition.partition_index, partition)
        for topic in request.topics
        for partition in topic.partitions
    ]
    times = Counter((ref.topic, ref.partition) for ref in in_turns(asked))
    twice = KafkaError(ErrorCode.INVALID_REQUEST, "the partition is named twice")
    refs = [ref if times[ref.topic, ref.partition] == 1 else twice for ref in in_turns(asked)]
    return _response(request, caller, iter(services.topics.ask(refs, query, services.offsets.find)))


def _response(
    request: wire.ListOffsetsRequest, caller: Caller, answers: Iterator[OffsetFound | KafkaError]
) -> wire.ListOffsetsResponse:
    topics = [
        wire.ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                _partition(partition.partition_index, next(answers), caller) for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return wire.ListOffsetsResponse(topics=topics)


def _partition(
    index: int, answer: OffsetFound | KafkaError, caller: Caller
) -> wire.ListOffsetsPartitionResponse:
    if isinstance(answer, KafkaError):
        code = partition_code(answer)
        if code is ErrorCode.OFFSET_NOT_AVAILABLE and caller.version < OFFSET_NOT_AVAILABLE_VERSION_FIRST:
            code = ErrorCode.LEADER_NOT_AVAILABLE
        return wire.ListOffsetsPartitionResponse(partition_index=index, error_code=code)
    return wire.ListOffsetsPartitionResponse(
        partition_index=index,
        timestamp=answer.timestamp,
        offset=answer.offset,
        # Not ignorable in the schema: older versions have no leader epoch to carry (KIP-320).
        leader_epoch=answer.leader_epoch if caller.version >= LEADER_EPOCH_VERSION_FIRST else -1,
    )


register(
    handle,
    lambda request, caller, error: _response(request, caller, repeat(error)),
    rights=[on_topics(DESCRIBE)],
)
