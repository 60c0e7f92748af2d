"""The topic that is deleted: made and filled by requests of clients, committed by groups, deleted by one request.

Knows Korvet's codecs, which tests hold to Kafka's own schemas; nothing of what is measured.
"""

from __future__ import annotations

import time

from korvet.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from loadtest.log.fill import Batches
from loadtest.log.wire import RefusedError
from tests.support.wire_client import WireClient

TOPIC = "wide"
_BATCHES_PER_REQUEST = 20
_TIMEOUT_MS = 60_000
_BATCH_RECORDS_MAX = 1000


def create(client: WireClient, storage_format: str, partitions: int) -> None:
    """Make the topic; raises RefusedError, as all of them do."""
    config = CreatableTopicConfig(name="storage.format", value=storage_format)
    topic = CreatableTopic(name=TOPIC, num_partitions=partitions, replication_factor=1, configs=[config])
    [made] = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS), 7).topics
    _check(made.error_code, "CreateTopics")


def fill(client: WireClient, partitions: int, records: int) -> int:
    """Write about this number of records, spread evenly over the partitions; returns the number."""
    each = max(1, records // partitions)
    size = min(each, _BATCH_RECORDS_MAX)
    batch = memoryview(Batches(size, 1).starting(int(time.time() * 1000)))
    rounds = max(1, each // size)
    for _ in range(rounds):
        for first in range(0, partitions, _BATCHES_PER_REQUEST):
            indexes = range(first, min(first + _BATCHES_PER_REQUEST, partitions))
            data = [PartitionProduceData(index=index, records=batch) for index in indexes]
            topics = [TopicProduceData(name=TOPIC, partition_data=data)]
            answer = client.call(ProduceRequest(acks=1, timeout_ms=_TIMEOUT_MS, topic_data=topics), 8)
            for response in answer.responses[0].partition_responses:
                _check(response.error_code, "Produce", response.error_message)
    return rounds * size * partitions


def commit(client: WireClient, partitions: int, groups: int) -> None:
    """Let each of `groups` groups commit an offset in every partition."""
    rows = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=0, committed_metadata=None)
        for index in range(partitions)
    ]
    for number in range(groups):
        topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=rows)]
        answer = client.call(OffsetCommitRequest(group_id=f"group-{number}", topics=topics), 8)
        for row in answer.topics[0].partitions:
            _check(row.error_code, "OffsetCommit")


def delete(client: WireClient) -> float:
    """Delete the topic; returns the seconds until that was answered."""
    began = time.monotonic()
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=_TIMEOUT_MS)
    [deleted] = client.call(request, 6).responses
    _check(deleted.error_code, "DeleteTopics")
    return time.monotonic() - began


def _check(error_code: int, what: str, message: str | None = None) -> None:
    if error_code:
        raise RefusedError(f"{what} was answered with error {error_code}: {message}")
