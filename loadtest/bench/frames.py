"""Whole Kafka requests made beforehand, and the few that the benchmark sends itself; the same bytes for every peer."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable
from pathlib import Path

from korvet_core import BatchesBuilder

from korvet.errors import ErrorCode
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from korvet.protocol.schema import Message
from loadtest.harness import NotAvailableError
from tests.support.wire_client import WireClient, request_frame

CLIENT = "bench"
# Versions that carry names, not ids, and the plain header: the simplest that every peer speaks.
METADATA, PRODUCE, FETCH = 8, 8, 11
_LEADERS_SECONDS_MAX = 60.0
_PAUSE_SECONDS = 0.01


def metadata() -> bytes:
    """Return a request for the brokers alone."""
    return _frame(MetadataRequest(topics=[], allow_auto_topic_creation=False), METADATA)


def produce(topic: str, partition: int, value: bytes, records: int = 1) -> bytes:
    """Return a request that appends a batch of records, of the same value each, with acks=1."""
    now_ms = int(time.time() * 1000)
    batch = BatchesBuilder(codec=0, leader_epoch=0, bytes_max=1 << 20, at_least_one=True)
    batch.add([(number, now_ms, None, value, []) for number in range(records)])
    data = PartitionProduceData(index=partition, records=memoryview(b"".join(batch.finish())))
    topic_data = [TopicProduceData(name=topic, partition_data=[data])]
    return _frame(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=topic_data), PRODUCE)


def fetch(topic: str, partition: int, wait_ms: int) -> bytes:
    """Return a request of a consumer at the start of an empty partition, which waits there."""
    asked = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=topic, partitions=[asked])]
    return _frame(FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=topics), FETCH)


def write(path: Path, frames: Iterable[bytes]) -> Path:
    """Write requests for the load generator, one base64 text a line."""
    path.write_text("".join(base64.b64encode(frame).decode() + "\n" for frame in frames))
    return path


def produced_error_at(topic: str) -> int:
    """Return where in the response to `produce` the partition's error code stands, after the size prefix.

    Before it: correlation id, number of topics, name, number of partitions, partition.
    """
    return 4 + 4 + 2 + len(topic) + 4 + 4


def check_produced(address: tuple[str, int], requests: Iterable[bytes]) -> None:
    """Have each produce request taken once; raises NotAvailableError where one is refused.

    Kafka names the leader of a new partition some time before that takes requests.
    """
    deadline = time.monotonic() + _LEADERS_SECONDS_MAX
    with WireClient(address) as client:
        for request in requests:
            while code := _produced_error(client, request):
                if code != ErrorCode.NOT_LEADER_OR_FOLLOWER or time.monotonic() > deadline:
                    raise NotAvailableError(f"a produce request was refused with error {code}")
                time.sleep(_PAUSE_SECONDS)


def _produced_error(client: WireClient, request: bytes) -> int:
    client.send_bytes(request)
    [topic] = client.receive(ProduceResponse, PRODUCE).responses
    code: int = topic.partition_responses[0].error_code
    return code


def _frame(message: Message, version: int) -> bytes:
    return request_frame(message, version, client_id=CLIENT)
