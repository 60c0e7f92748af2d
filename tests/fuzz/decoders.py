"""Decoders in this process: any bytes are a message or a ProtocolError, any records are records or a KafkaError.

A case is known by its number alone: the same number of a seed gives the same bytes again.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from random import Random

from korvet_core import request_header

from korvet.errors import KafkaError, ProtocolError
from korvet.lake.decoding import batches_to_arrow
from korvet.log.batch_format import FIELD, read_batches
from korvet.protocol.compile import decode, encode
from korvet.protocol.messages import all_messages
from korvet.protocol.records.batch import ProducedBatch, each_record, produced_batch, retained_batch
from korvet.protocol.records.compression import Codec
from korvet.protocol.schema import Message
from tests.fuzz.records import any_records
from tests.fuzz.requests import Learned, Requests, damaged, lying
from tests.protocol import reference
from tests.protocol.samples import random_message, versions

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
        _stored_case(rng, produced)
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


def _stored_case(rng: Random, produced: ProducedBatch) -> None:
    """Read a batch of format `batch` as compaction and the lake do: an earlier version took any of them."""
    end = _BASE_OFFSET + produced.header.record_count
    batches, _ = read_batches([(b"0-%d" % end, [FIELD, bytes(produced.view)])], end)
    [stored] = batches
    try:
        records = list(stored.records(BYTES_MAX))
    except KafkaError:
        records = []
    kept = [record for record in records if rng.random() < 0.5]
    if kept and all(
        0 <= record[0] - stored.base_offset <= stored.header.last_offset_delta for record in kept
    ):
        offsets = [record[0] for record in kept]
        try:
            retained = retained_batch(stored.stored, stored.base_offset, kept)
        except KafkaError:
            assert offsets != sorted(set(offsets))
        else:
            [again], _ = read_batches([(b"0-%d" % end, [FIELD, retained])], end)
            assert list(again.records(2 * BYTES_MAX)) == kept
    try:
        batches_to_arrow(0, batches, BYTES_MAX)
    except KafkaError:
        return
