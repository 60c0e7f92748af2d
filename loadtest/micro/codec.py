"""Measure the message codecs: microseconds to decode and encode, beside kafka-python's compiled codec.

    python loadtest/micro/codec.py [--seconds 0.2] [name ...]

Prints one row per message and version: Korvet's decode and encode of the whole message, joined, and the same of
kafka-python. Names choose messages ("Fetch" means both of its messages); without any, the hot ones are measured in the
versions that clients send most.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any
from uuid import UUID

from korvet.protocol.compile import codec
from korvet.protocol.messages import all_messages
from korvet.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from korvet.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from korvet.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from korvet.protocol.schema import ListOf, Message, Part, PartOf, fields
from korvet.protocol.wire import Fixed

PARTITIONS = range(10)
RECORDS = bytes(1000)
TOPIC_ID = bytes(range(16))


def by_name_or_id(version: int, first_id: int, name_field: str) -> dict[str, Any]:
    return {"topic_id": TOPIC_ID} if version >= first_id else {name_field: "a-topic-of-usual-length"}


def produce_request(version: int) -> Message:
    data = [PartitionProduceData(index=index, records=RECORDS) for index in PARTITIONS]
    topic = TopicProduceData(**by_name_or_id(version, 13, "name"), partition_data=data)
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def produce_response(version: int) -> Message:
    results = [PartitionProduceResponse(index=index, base_offset=2**40 + index) for index in PARTITIONS]
    topic = TopicProduceResponse(**by_name_or_id(version, 13, "name"), partition_responses=results)
    return ProduceResponse(responses=[topic])


def fetch_request(version: int) -> Message:
    partitions = [
        FetchPartition(partition=index, fetch_offset=2**40 + index, partition_max_bytes=1 << 20)
        for index in PARTITIONS
    ]
    topic = FetchTopic(**by_name_or_id(version, 13, "topic"), partitions=partitions)
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic])


def fetch_response(version: int) -> Message:
    partitions = [
        PartitionData(partition_index=index, high_watermark=2**40, aborted_transactions=None, records=RECORDS)
        for index in PARTITIONS
    ]
    topic = FetchableTopicResponse(**by_name_or_id(version, 13, "topic"), partitions=partitions)
    return FetchResponse(responses=[topic])


def list_offsets_request(_version: int) -> Message:
    partitions = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in PARTITIONS]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="a-topic", partitions=partitions)])


def list_offsets_response(_version: int) -> Message:
    partitions = [ListOffsetsPartitionResponse(partition_index=index, offset=2**40) for index in PARTITIONS]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="a-topic", partitions=partitions)])


def metadata_request(_version: int) -> Message:
    return MetadataRequest(topics=[MetadataRequestTopic(name="a-topic")])


def metadata_response(_version: int) -> Message:
    partitions = [
        MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1])
        for index in PARTITIONS
    ]
    brokers = [MetadataResponseBroker(node_id=node, host="broker.example", port=9092) for node in range(3)]
    return MetadataResponse(
        brokers=brokers, topics=[MetadataResponseTopic(name="a-topic", partitions=partitions)]
    )


HOT: dict[type[Message], tuple[Callable[[int], Message], tuple[int, ...]]] = {
    ProduceRequest: (produce_request, (3, 7, 10, 13)),
    ProduceResponse: (produce_response, (3, 7, 10, 13)),
    FetchRequest: (fetch_request, (4, 11, 16, 18)),
    FetchResponse: (fetch_response, (4, 11, 16, 18)),
    ListOffsetsRequest: (list_offsets_request, (1, 7, 11)),
    ListOffsetsResponse: (list_offsets_response, (1, 7, 11)),
    MetadataRequest: (metadata_request, (5, 13)),
    MetadataResponse: (metadata_response, (5, 13)),
}
"""A usual message of each kind, one topic with ten partitions, and the versions that clients send most."""


class KafkaPython:
    """kafka-python's codec of the same message and version, from the schema that its wheel carries."""

    def __init__(self, message: Message, version: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from kafka.protocol.data_container import DataContainer  # noqa: PLC0415 - heavy, and warns at import
            from kafka.protocol.schemas import StructField, load_json  # noqa: PLC0415 - as the line above
            from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBuffer  # noqa: PLC0415 - as the line above

            name = type(message).__name__
            struct = StructField(load_json(name))
        data_class: Any = type(name, (DataContainer,), {"_struct": struct})
        flexible = message.api.is_flexible(version)
        self._message = self._convert(message, data_class)
        self._encode = struct.compiled_encode_into(version, compact=flexible, tagged=flexible)
        self._decode = struct.compiled_decode_from(
            version, compact=flexible, tagged=flexible, data_class=data_class
        )
        self._buffer = EncodeBuffer()

    def _convert(self, part: Part, data_class: Any) -> Any:  # noqa: ANN401 - that package has no types
        values = {}
        for row in fields(type(part)):
            value = getattr(part, row.name)
            inner = row.kind.element if isinstance(row.kind, ListOf) else row.kind
            if isinstance(inner, PartOf) and isinstance(value, list):
                value = [self._convert(each, data_class.fields[row.name].data_class) for each in value]
            elif row.kind == Fixed("16s"):
                value = UUID(bytes=value) if any(value) else None
            values[row.name] = value
        return data_class(**values)

    def encode(self) -> bytes:
        """Encode the message given at the start."""
        self._buffer.reset()
        self._encode(self._message, self._buffer)
        return bytes(self._buffer.result())

    def decode(self, content: bytes) -> object:
        """Decode `content`."""
        return self._decode(memoryview(content), 0)


def microseconds(call: Callable[[], object], seconds: float) -> float:
    """Return the best of several rounds, in microseconds a call: what the code takes when nothing disturbs it."""
    rounds = 7
    count = 1
    while True:
        started = time.perf_counter()
        for _ in range(count):
            call()
        if time.perf_counter() - started > seconds / rounds / 2:
            break
        count *= 2
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, time.perf_counter() - started)
    return best / count * 1e6


def measure(message: Message, version: int, seconds: float) -> None:
    """Print the row of one message in one version."""
    compiled = codec(type(message), version)
    content = b"".join(compiled.encode(message, None))
    other = KafkaPython(message, version)
    assert other.encode() == content
    assert compiled.decode(content, 0, None) == message
    times = [
        microseconds(lambda: compiled.decode(content, 0, None), seconds),
        microseconds(lambda: other.decode(content), seconds),
        microseconds(lambda: b"".join(compiled.encode(message, None)), seconds),
        microseconds(other.encode, seconds),
    ]
    columns = "".join(f"{each:10.2f}" for each in times)
    print(f"{type(message).__name__:22}{version:4}{len(content):8}{columns}")


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=0.2, help="time for each figure")
    arguments = parser.parse_args()
    print(
        f"{'us per message':22}{'v':>4}{'bytes':>8}{'decode':>10}{'theirs':>10}{'encode':>10}{'theirs':>10}"
    )
    for cls in all_messages():
        if cls not in HOT or (arguments.names and not any(map(cls.__name__.startswith, arguments.names))):
            continue
        make, versions = HOT[cls]
        for version in versions:
            measure(make(version), version, arguments.seconds)


if __name__ == "__main__":
    main()
