"""A wire client with the requests that most tests need: one topic, one partition, one answer."""

from __future__ import annotations

from typing import Any

from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.wire import ZERO_UUID
from tests.handlers import apis
from tests.support.batches import batch
from tests.support.wire_client import WireClient


class Client(WireClient):
    """A connection with the requests that most tests need, each for one partition."""

    def create(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        """Create a topic and return its id; `configs` have `_` for `.`."""
        given = [{"name": item.replace("_", "."), "value": value} for item, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": -1, "configs": given}
        [result] = self.ask(apis.CreateTopics, 7, topics=[topic]).topics
        assert result.error_code == 0, result.error_message
        topic_id: bytes = result.topic_id
        return topic_id

    def delete(self, name: str) -> None:
        """Delete a topic."""
        [result] = self.ask(apis.DeleteTopics, 5, topic_names=[name], timeout_ms=1000).responses
        assert result.error_code == 0, result.error_message

    def produce(
        self,
        topic: str,
        records: bytes | None = None,
        partition: int = 0,
        *,
        acks: int = -1,
        version: int = 8,
        topic_id: bytes = ZERO_UUID,
    ) -> Any:
        """Produce a batch and return the partition's response."""
        request = produce_request(topic, records, partition, acks=acks, topic_id=topic_id)
        [answer] = self.call(request, version).responses
        [response] = answer.partition_responses
        assert response.index == partition
        return response

    def append(self, topic: str, *records: Any, partition: int = 0) -> int:
        """Produce records and return the first one's offset."""
        response = self.produce(topic, batch(*records), partition)
        assert response.error_code == 0, response.error_message
        offset: int = response.base_offset
        return offset

    def fetch(self, topic: str, offset: int = 0, *, version: int = 11, **fields: Any) -> Any:
        """Fetch one partition and return its response; see `fetch_request`."""
        answer = self.call(fetch_request(topic, offset, **fields), version)
        assert answer.error_code == 0
        [[response]] = [item.partitions for item in answer.responses]
        return response

    def offset_at(self, topic: str, timestamp: int, partition: int = 0) -> tuple[int, int]:
        """Return the offset that belongs to a timestamp, and the timestamp of its record."""
        asked = {"partition_index": partition, "timestamp": timestamp}
        topics = [{"name": topic, "partitions": [asked]}]
        [answer] = self.ask(apis.ListOffsets, 7, replica_id=-1, topics=topics).topics
        [response] = answer.partitions
        assert response.error_code == 0
        return response.offset, response.timestamp

    def described(self, name: str, version: int = 12) -> Any:
        """Return what Metadata answers about a topic, which is not created."""
        [topic] = self.ask(
            apis.Metadata, version, topics=[{"name": name}], allow_auto_topic_creation=False
        ).topics
        return topic

    def leader_epoch(self, name: str, partition: int = 0) -> int:
        """Return the leader epoch of a partition, which is that of its node of a cluster."""
        epoch: int = self.described(name).partitions[partition].leader_epoch
        return epoch

    def epoch_end(
        self, topic: str, epoch: int, current: int = -1, version: int = 4, partition: int = 0
    ) -> tuple[int, int, int]:
        """Return what OffsetForLeaderEpoch answers: error, epoch and its end."""
        asked = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        topics = [{"topic": topic, "partitions": [asked]}]
        [answer] = self.ask(apis.OffsetForLeaderEpoch, version, topics=topics).topics
        [response] = answer.partitions
        return response.error_code, response.leader_epoch, response.end_offset


def produce_request(
    topic: str,
    records: bytes | None = None,
    partition: int = 0,
    *,
    acks: int = -1,
    topic_id: bytes = ZERO_UUID,
) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=batch() if records is None else records)
    named = TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[named])


def fetch_request(topic: str, offset: int = 0, **fields: Any) -> FetchRequest:
    """Ask for one partition; `fields` are those of request, topic and partition by their names."""
    of_partition: dict[str, Any] = {"partition": 0, "partition_max_bytes": 1 << 20} | {
        name: fields.pop(name)
        for name in ("partition", "partition_max_bytes", "current_leader_epoch", "last_fetched_epoch")
        if name in fields
    }
    partitions = [FetchPartition(fetch_offset=offset, **of_partition)]
    topics = [FetchTopic(topic=topic, topic_id=fields.pop("topic_id", ZERO_UUID), partitions=partitions)]
    given: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "topics": topics} | fields
    return FetchRequest(**given)
