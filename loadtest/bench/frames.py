"""Whole Kafka requests made beforehand, and the few that the benchmark sends by itself.

Knows Korvet's codecs, which tests hold to Kafka's own schemas; the same bytes go to every peer.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from korvet.errors import ErrorCode
from korvet.protocol.compile import decode, encode
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from korvet.protocol.schema import Message
from loadtest.bench.processes import NotAvailableError

# Versions that carry names, not ids, and the plain header: the simplest that every peer speaks.
_METADATA, _PRODUCE, _FETCH = 8, 8, 11
_API_VERSIONS = 4
_CORRELATION_ID = 1
_ANSWER_SECONDS_MAX = 10.0
_LEADERS_SECONDS_MAX = 60.0
_PAUSE_SECONDS = 0.01


def metadata() -> bytes:
    """Return a request for the brokers alone."""
    return _frame(MetadataRequest(topics=[], allow_auto_topic_creation=False), _METADATA)


def topic_metadata(topic: str) -> bytes:
    """Return a request for one topic, which may create it."""
    return _frame(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), _METADATA)


def produce(topic: str, partition: int, value: bytes, records: int = 1) -> bytes:
    """Return a request that appends a batch of records, of the same value each, with acks=1."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    now_ms = int(time.time() * 1000)
    for n in range(records):
        assert builder.append(n, timestamp=now_ms, key=None, value=value, headers=[]), (
            "more than a batch holds"
        )
    data = PartitionProduceData(index=partition, records=memoryview(bytes(builder.build())))
    topic_data = [TopicProduceData(name=topic, partition_data=[data])]
    return _frame(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=topic_data), _PRODUCE)


def fetch(topic: str, partition: int, wait_ms: int) -> bytes:
    """Return a request of a consumer at the start of an empty partition, which waits there."""
    asked = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=topic, partitions=[asked])]
    return _frame(FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=topics), _FETCH)


def write(path: Path, frames: Iterable[bytes]) -> Path:
    """Write requests for the load generator, one base64 text a line."""
    path.write_text("".join(base64.b64encode(frame).decode() + "\n" for frame in frames))
    return path


def await_metadata(bootstrap: str, seconds_max: float) -> None:
    """Ask for metadata until a broker names itself in the answer; NotAvailableError when that takes too long."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        try:
            answer = ask(bootstrap, metadata())
        except OSError:
            time.sleep(_PAUSE_SECONDS)
            continue
        if decode(MetadataResponse, _METADATA, answer, 4).brokers:
            return
        time.sleep(_PAUSE_SECONDS)
    raise NotAvailableError(f"no metadata within {seconds_max:.0f} s")


def check_version_refused(bootstrap: str) -> None:
    """Ask in a version of ApiVersions that a broker may not know; NotAvailableError for an unreadable refusal.

    KIP-511: a refusal has the form of version 0 (error, then an array of six bytes an API), for any version that was
    asked in. A Java client misreads any other.
    """
    message = ApiVersionsRequest(client_software_name="bench", client_software_version="1")
    answer = ask(bootstrap, _frame(message, _API_VERSIONS, flexible=True))
    error, apis = struct.unpack_from(">hi", answer, 4)
    if error == ErrorCode.UNSUPPORTED_VERSION and len(answer) < 10 + 6 * apis:
        raise NotAvailableError(
            "other processes reach it, but its refusal of ApiVersions 4 has not the form that KIP-511 asks for, so"
            " the Java clients that load the other peers cannot read it"
        )


def produced_error_at(topic: str) -> int:
    """Return where in the response to `produce` the partition's error code stands, after the size prefix.

    Before it: correlation id, number of topics, name, number of partitions, partition.
    """
    return 4 + 4 + 2 + len(topic) + 4 + 4


def check_produced(bootstrap: str, requests: Iterable[bytes]) -> None:
    """Have each produce request taken once; raises NotAvailableError where one is refused.

    Kafka names the leader of a new partition some time before that takes requests.
    """
    deadline = time.monotonic() + _LEADERS_SECONDS_MAX
    with _connected(bootstrap) as exchange:
        for request in requests:
            while code := _produced_error(exchange(request)):
                if code != ErrorCode.NOT_LEADER_OR_FOLLOWER or time.monotonic() > deadline:
                    raise NotAvailableError(f"a produce request was refused with error {code}")
                time.sleep(_PAUSE_SECONDS)


def _produced_error(answer: bytes) -> int:
    return decode(ProduceResponse, _PRODUCE, answer, 4).responses[0].partition_responses[0].error_code


def ask(bootstrap: str, frame: bytes) -> bytes:
    """Send one request on a connection of its own and return the response, correlation id first."""
    with _connected(bootstrap) as exchange:
        return exchange(frame)


@contextlib.contextmanager
def _connected(bootstrap: str) -> Iterator[Callable[[bytes], bytes]]:
    """Give what sends a request and returns its response, on one connection."""
    host, _, port = bootstrap.rpartition(":")
    address = (host, int(port))
    with (
        socket.create_connection(address, timeout=_ANSWER_SECONDS_MAX) as connection,
        connection.makefile("rb") as stream,
    ):

        def exchange(frame: bytes) -> bytes:
            connection.sendall(frame)
            head = stream.read(4)
            body = stream.read(struct.unpack(">i", head)[0]) if len(head) == 4 else b""
            if len(body) < 4:
                raise ConnectionResetError("the broker closed the connection")
            return body

        yield exchange


def _frame(message: Message, version: int, *, flexible: bool = False) -> bytes:
    body = b"".join(bytes(chunk) for chunk in encode(message, version))
    client = b"bench"
    key = type(message).api.key
    header = struct.pack(f">hhih{len(client)}s", key, version, _CORRELATION_ID, len(client), client)
    header += b"\0" * flexible
    return struct.pack(">i", len(header) + len(body)) + header + body
