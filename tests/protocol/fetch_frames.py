"""Frames of Fetch as the declarations give them, for the tests of the core: core/proto/tests/fetch_frames.txt.

A line has what it is, the frame in hexadecimal, and what it holds, field by field. To write the file again:
`python -m tests.protocol.fetch_frames > core/proto/tests/fetch_frames.txt`.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from itertools import groupby
from random import Random
from typing import Any

from korvet_core import request_header

from korvet.errors import ProtocolError
from korvet.protocol.compile import decode, encode
from korvet.protocol.frame import response_frame
from korvet.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from korvet.protocol.wire import ZERO_UUID
from tests.protocol.samples import random_message, versions

SEED = 43
OF_EACH_VERSION = 5
FLEXIBLE_FROM, TOPIC_IDS_FROM = 12, 13
HEADER = struct.Struct(">hhih")
TAGS = (b"\x00", b"\x02\x07\x01x\x09\x00")


def lines(rng: Random, of_each_version: int) -> Iterator[str]:
    """Yield requests and responses of all versions."""
    for version in versions(FetchRequest):
        for _ in range(of_each_version):
            frame = _request(rng, version)
            yield f"request {frame.hex()} {_read(frame)}"
            frame = _damaged(rng, frame)
            yield f"request {frame.hex()} {_read(frame)}"
            frame, holds = _response(rng, version)
            yield f"response {frame.hex()} {holds}"


def _request(rng: Random, version: int) -> bytes:
    client_id = rng.choice((None, "", "me", "\u20ac"))
    text = (client_id or "").encode()
    header = HEADER.pack(1, version, rng.randint(-9, 9), -1 if client_id is None else len(text)) + text
    tags = rng.choice(TAGS) if version >= FLEXIBLE_FROM else b""
    return b"".join([header, tags, *encode(random_message(FetchRequest, version, rng), version)])


def _damaged(rng: Random, frame: bytes) -> bytes:
    """Return a frame that is cut off, or has other bytes after its key and version."""
    at = rng.randrange(4, len(frame))
    if rng.random() < 0.4:
        return frame[:at]
    damage = rng.choice((b"\x00", b"\x01", b"\xff", b"\x7f\xff\xff\xff", rng.randbytes(1)))
    return frame[:at] + damage + frame[at + len(damage) * rng.randint(0, 1) :]


def _read(frame: bytes) -> str:
    try:
        _, version, correlation_id, client_id, body = request_header(frame, {1: FLEXIBLE_FROM})
        request = decode(FetchRequest, version, frame, body)
    except ProtocolError as error:
        return f"malformed: {error}"
    state = request.replica_state
    fields: list[Any] = [
        version,
        correlation_id,
        "-" if client_id is None else "+" + client_id.encode().hex(),
    ]
    fields += [request.replica_id if state is None else state.replica_id, request.max_wait_ms]
    fields += [request.min_bytes, request.max_bytes, int(request.isolation_level == 1)]
    fields += [request.session_id, request.session_epoch, len(request.topics)]
    for topic in request.topics:
        fields += [_name(topic, version), len(topic.partitions)]
        for partition in topic.partitions:
            fields += [
                partition.partition,
                partition.current_leader_epoch,
                partition.fetch_offset,
                partition.last_fetched_epoch,
            ]
            fields.append(partition.partition_max_bytes)
    fields.append(len(request.forgotten_topics_data))
    for forgotten in request.forgotten_topics_data:
        fields += [_name(forgotten, version), len(forgotten.partitions), *forgotten.partitions]
    return " ".join(map(str, fields))


def _name(topic: Any, version: int) -> str:
    name: bytes = topic.topic.encode() if version < TOPIC_IDS_FROM else topic.topic_id
    return "+" + name.hex()


def _response(rng: Random, version: int) -> tuple[bytes, str]:
    """Return the frame of a response, and what it is made of: of records the sizes of their pieces."""
    correlation_id = _number(rng, 32)
    has_session = version >= 7
    answer = FetchResponse(
        throttle_time_ms=_number(rng, 32),
        error_code=_number(rng, 16) * has_session,
        session_id=_number(rng, 32) * has_session,
    )
    topics = sorted(rng.randrange(4) for _ in range(rng.choice((0, 1, 2, 7))))
    fields: list[Any] = [
        version,
        correlation_id,
        answer.throttle_time_ms,
        answer.error_code,
        answer.session_id,
    ]
    fields.append(len(topics))
    for topic, same in groupby(topics):
        partitions = []
        for _ in same:
            data, row = _partition(rng, version)
            partitions.append(data)
            fields += [topic, *row]
        name, topic_id = (
            (f"topic-{topic}\u20ac", ZERO_UUID) if version < TOPIC_IDS_FROM else ("", bytes([topic] * 16))
        )
        answer.responses.append(FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=partitions))
    chunks = encode(answer, version)
    frame = b"".join(response_frame(correlation_id, chunks, flexible_header=version >= FLEXIBLE_FROM))
    return frame, " ".join(map(str, fields))


def _partition(rng: Random, version: int) -> tuple[PartitionData, list[int]]:
    numbers = [_number(rng, bits) for bits in (32, 16, 64, 64, 64)]
    diverging = None
    if version >= FLEXIBLE_FROM and rng.random() < 0.3:
        diverging = EpochEndOffset(epoch=_number(rng, 32), end_offset=_number(rng, 64))
    aborted: list[AbortedTransaction] | None = None
    if rng.random() < 0.7:
        aborted = [
            AbortedTransaction(producer_id=_number(rng, 64), first_offset=_number(rng, 64))
            for _ in range(rng.choice((0, 0, 1, 3, 130 * (rng.random() < 0.1))))
        ]
    sizes = [
        rng.choice((0, 1, rng.randint(0, 130), 4100 * (rng.random() < 0.02)))
        for _ in range(rng.choice((0, 0, 1, 3)))
    ]
    data = PartitionData(
        partition_index=numbers[0],
        error_code=numbers[1],
        high_watermark=numbers[2],
        last_stable_offset=numbers[3],
        log_start_offset=numbers[4],
        diverging_epoch=diverging,
        aborted_transactions=aborted,
        records=[records(size) for size in sizes],
    )
    row = numbers + ([0] if diverging is None else [1, diverging.epoch, diverging.end_offset])
    row.append(-1 if aborted is None else len(aborted))
    for item in aborted or ():
        row += [item.producer_id, item.first_offset]
    return data, [*row, len(sizes), *sizes]


def records(size: int) -> bytes:
    """Return the bytes of a piece, which follow from its size."""
    return bytes((31 * place + size) % 256 for place in range(size))


def _number(rng: Random, bits: int) -> int:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return rng.choice((low, high, 0, 1, -1, rng.randint(low, high)))


if __name__ == "__main__":
    for line in lines(Random(SEED), OF_EACH_VERSION):
        sys.stdout.write(line + "\n")
