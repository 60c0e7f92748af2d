"""Decoders in this process: any bytes are a message or a ProtocolError, any records are records or a KafkaError.

A case is known by its number alone: the same number of a seed gives the same bytes again.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from random import Random

from korvet_core import LogCleaner, RawReply, RefusedError, request_header

from korvet.errors import KafkaError, ProtocolError
from korvet.lake.decoding import to_arrow
from korvet.protocol.compile import decode, encode
from korvet.protocol.messages import all_messages
from korvet.protocol.records.batch import each_record
from korvet.protocol.records.compression import Codec
from korvet.protocol.schema import Message
from korvet.topics.entry_ids import BATCH
from tests.fuzz.records import any_records
from tests.fuzz.requests import Learned, Requests, damaged, lying
from tests.protocol import reference
from tests.protocol.samples import random_message, versions
from tests.support.log_replies import partition, read_batches
from tests.support.produced_batches import ProducedBatch, produced_batch

BYTES_MAX = 8 * 1024 * 1024
"""What a batch may have uncompressed here (record.decompressed.max.bytes)."""

CPU_SECONDS_MAX = 0.1
"""What decoding a message may take; one of a hundred kilobytes takes a few milliseconds."""

FIRST_BYTES, BYTES_PER_BYTE = 128 * 1024, 400
"""What decoding a message may allocate: for itself, and for each byte of it."""

EVERY_VERSION = [(cls, version) for cls in all_messages() for version in versions(cls)]
_BASE_OFFSET = 1000


def run_case(seed: int, number: int) -> str:
    """Run one case; returns what was decoded. Raises AssertionError, or what no decoder may raise."""
    rng = Random(f"decoders {seed} {number}")
    if number % 2:
        return _records_case(rng)
    cls, version = EVERY_VERSION[number // 2 % len(EVERY_VERSION)]
    _message_case(rng, cls, version)
    return f"{cls.__name__} v{version}"


def _message_case(rng: Random, cls: type[Message], version: int) -> None:
    message = random_message(cls, version, rng)
    if cls.is_request() and rng.random() < 0.5:
        message = Requests(rng, Learned()).any(cls, version)
    content = b"".join(encode(message, version))
    assert content == reference.encode(message, version), "the encoder and the plain one differ"
    read = decode(cls, version, content)
    assert b"".join(encode(read, version)) == content, "a message does not survive decoding"
    hostile = lying(rng, message, version) if rng.random() < 0.5 else content
    if rng.random() < 0.6:
        hostile = damaged(rng, hostile)
    _bounded(lambda: _decode(cls, version, hostile), len(hostile))
    flexible_from = dict.fromkeys([int.from_bytes(hostile[:2], signed=True)], -32768)
    _refused(lambda: request_header(hostile, flexible_from))


def _decode(cls: type[Message], version: int, content: bytes) -> None:
    try:
        message = decode(cls, version, content)
    except ProtocolError:
        return
    # What was decoded can be encoded: nothing in it is beyond the types of its fields.
    encode(message, version)


def _refused(call: Callable[[], object]) -> None:
    try:
        call()
    except ProtocolError:
        return


def _bounded(call: Callable[[], object], size: int) -> None:
    # A collection of all that the process holds is no work of the decoder.
    gc.disable()
    tracemalloc.start()
    began = time.thread_time()
    try:
        call()
        taken = time.thread_time() - began
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert taken < CPU_SECONDS_MAX, f"{taken:.3f} s of CPU for {size} bytes"
    assert peak < FIRST_BYTES + BYTES_PER_BYTE * size, f"{peak} bytes allocated for {size}"


def _records_case(rng: Random) -> str:
    data = any_records(rng)
    try:
        produced = produced_batch(data, BYTES_MAX)
    except KafkaError as error:
        return f"records {error.code.name}"
    if produced.header.record_count < 10**6:  # offsets enough for the log
        _stored_case(produced)
    try:
        _, walk = produced.as_stored(BYTES_MAX)
    except KafkaError as error:
        return f"records {error.code.name}"
    records = list(each_record(produced.view, 0, BYTES_MAX))
    assert len(records) == produced.header.record_count
    assert walk.plain_bytes <= BYTES_MAX
    codec = rng.choice(tuple(Codec))
    changed = produced_batch(produced.as_stored(BYTES_MAX, codec=codec)[0].view, 2 * BYTES_MAX)
    assert changed.as_stored(BYTES_MAX)[1] == walk
    assert list(each_record(changed.view, 0, BYTES_MAX)) == records
    return f"records {Codec(produced.header.codec).name}"


def _stored_case(produced: ProducedBatch) -> None:
    """Read a batch of format `batch` as compaction and the lake do: an earlier version took any of them."""
    view = bytes(produced.view)
    end = _BASE_OFFSET + produced.header.record_count
    left = _compacted(view, end)
    result = read_batches([(_BASE_OFFSET, view)], BYTES_MAX)
    try:
        before = result.records()
        after = read_batches([(_BASE_OFFSET, left)], 2 * BYTES_MAX).records() if left else []
    except RefusedError:
        assert left == view
    else:
        latest = {record[2]: record for record in before}
        assert after == [record for record in before if record[2] is not None and latest[record[2]] is record]
    try:
        to_arrow(0, result)
    except KafkaError:
        return


def _compacted(batch: bytes, end: int) -> bytes | None:
    """Return what compaction leaves of a batch, of whose log it is no more than the beginning."""
    cleaner = LogCleaner(
        partition(BATCH),
        start=0,
        dirty_start=0,
        end=end + 1,
        plain_bytes_max=BYTES_MAX,
        map_bytes_max=1 << 24,
        keys_max=1 << 20,
        at_rest=("none", 0),
        aborted=[],
        periods=[],
    )
    entry = b"*1\r\n*2\r\n" + b"".join(map(_bulk, [b"0-%d" % end]))
    reply = RawReply(entry + b"*2\r\n" + _bulk(b"batch") + _bulk(batch))
    _, full_at = cleaner.map(reply)
    assert full_at is None
    _, left = cleaner.retain(reply)
    return left[0][1][1] if left else None


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)
