"""One connection to the broker: whole requests out, answers back in order.

Knows Korvet's codecs, which tests hold to Kafka's own schemas.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import Self, TypeVar

from korvet.protocol.compile import decode, encode
from korvet.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from korvet.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from korvet.protocol.schema import Message

TOPIC = "log"
EARLIEST = -2

# Versions with the plain header: names, not ids, and no tagged fields.
_CREATE_TOPICS, _PRODUCE, _LIST_OFFSETS = 4, 8, 5
_ANSWER_SECONDS_MAX = 120.0
_CLIENT = b"loadtest"
_Answer = TypeVar("_Answer", bound=Message)


class RefusedError(Exception):
    """The broker answered with an error; says which."""


class Connection:
    """A connection of its own, closed with the context manager."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=_ANSWER_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._produced: deque[None] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    @property
    def in_flight(self) -> int:
        """Produce requests that are not answered yet."""
        return len(self._produced)

    def create_topic(self, storage_format: str) -> None:
        """Create the topic, with one partition of that format and the broker's retention."""
        config = CreatableTopicConfig(name="storage.format", value=storage_format)
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, configs=[config])
        self._send(CreateTopicsRequest(topics=[topic]), _CREATE_TOPICS)
        answer = self._receive(CreateTopicsResponse, _CREATE_TOPICS)
        _check(answer.topics[0].error_code, "CreateTopics")

    def begin_produce(self, batch: bytes) -> None:
        """Send a batch, acks=1."""
        data = PartitionProduceData(index=0, records=memoryview(batch))
        topics = [TopicProduceData(name=TOPIC, partition_data=[data])]
        self._send(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=topics), _PRODUCE)
        self._produced.append(None)

    def finish_produce(self) -> None:
        """Wait for the answer to the oldest batch that was sent."""
        self._produced.popleft()
        answer = self._receive(ProduceResponse, _PRODUCE)
        _check(answer.responses[0].partition_responses[0].error_code, "Produce")

    def offset_for(self, timestamp: int) -> ListOffsetsPartitionResponse:
        """Ask for the first record at or after a timestamp (ms), or for EARLIEST."""
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=[partition])]
        )
        self._send(request, _LIST_OFFSETS)
        found = self._receive(ListOffsetsResponse, _LIST_OFFSETS).topics[0].partitions[0]
        _check(found.error_code, "ListOffsets")
        return found

    def _send(self, message: Message, version: int) -> None:
        body = b"".join(bytes(chunk) for chunk in encode(message, version))
        key = type(message).api.key
        header = struct.pack(f">hhih{len(_CLIENT)}s", key, version, 0, len(_CLIENT), _CLIENT)
        self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)

    def _receive(self, kind: type[_Answer], version: int) -> _Answer:
        head = self._stream.read(4)
        if len(head) < 4:
            raise RefusedError("the broker closed the connection")
        [size] = struct.unpack(">i", head)
        return decode(kind, version, self._stream.read(size), 4)


def _check(error_code: int, what: str) -> None:
    if error_code:
        raise RefusedError(f"{what} was refused with error {error_code}")
