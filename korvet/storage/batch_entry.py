"""A producer's batch as one stream entry, and back: the layout of format `batch`.

Knows the field `batch` with the batch's bytes as they came, and the entry's id, `<offset just past the batch>-0`. A
batch that came uncompressed may be compressed at rest: then its header stays plain, what follows is an lz4 or zstd
frame, and the field `korvet.encoding` says which; a reader gets the producer's bytes. Nothing here talks to Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from korvet.protocol.records.batch import HEADER, HEADER_BYTES, MAGIC, BatchHeader, patched_header
from korvet.protocol.records.compression import Codec
from korvet.storage.entry import MARKER, Arg, AtRest, Entry, compress, decompress

FIELD = b"batch"


class StoredBatch(NamedTuple):
    """A batch of the log: its header as the producer wrote it, where it lies, and its records as they came."""

    base_offset: int
    header: BatchHeader
    payload: memoryview

    @property
    def next_offset(self) -> int:
        """The offset just past the batch."""
        return self.base_offset + self.header.last_offset_delta + 1

    @property
    def size_bytes(self) -> int:
        """The size on the wire."""
        return HEADER_BYTES + len(self.payload)

    def chunks(self, leader_epoch: int) -> tuple[bytes, memoryview]:
        """Return the batch for a consumer: only base offset and leader epoch differ, which no CRC covers."""
        return patched_header(self.header, self.base_offset, leader_epoch), self.payload


def batch_args(batch: memoryview, codec: int, at_rest: AtRest) -> list[Arg]:
    """Return the field and value arguments of XADD for one batch; `codec` is the batch's own."""
    payload_bytes = len(batch) - HEADER_BYTES
    if codec == Codec.none and at_rest.codec != "none" and payload_bytes >= at_rest.min_bytes:
        frame, marker = compress(bytes(batch[HEADER_BYTES:]), at_rest.codec)
        if marker is not None:
            return [FIELD, bytes(batch[:HEADER_BYTES]) + frame, MARKER, marker]
    return [FIELD, batch]


def read_batches(entries: Sequence[Entry], end: int) -> tuple[list[StoredBatch], int]:
    """Return the batches below offset `end`, and how many entries among them are none (written by others).

    Raises ValueError, TypeError, AttributeError or IndexError for what is no answer to XRANGE; ValueError, which names
    the entry, for one that claims to be a batch and is none, or does not decompress to the length in its header.
    """
    batches: list[StoredBatch] = []
    foreign = 0
    for entry_id, fields in entries:
        position, _, sequence = entry_id.partition(b"-")
        next_offset = int(position)
        if next_offset > end:
            break
        if sequence != b"0" or fields[0] != FIELD:
            foreign += 1
            continue
        batch = fields[1]
        if len(batch) < HEADER_BYTES:
            raise _damaged(entry_id, f"{len(batch)} bytes are no batch")
        header = BatchHeader._make(HEADER.unpack_from(batch))
        payload = memoryview(batch)[HEADER_BYTES:]
        if len(fields) > 2:  # noqa: PLR2004 - one field and its value
            payload = memoryview(_plain(entry_id, fields, header.size_bytes - HEADER_BYTES))
        # What is served must be as long as it says: the batches of an answer are found by their lengths.
        if header.magic != MAGIC or header.size_bytes != HEADER_BYTES + len(payload):
            raise _damaged(entry_id, "not a batch of the length that it says")
        if not 0 <= header.last_offset_delta < next_offset:
            raise _damaged(entry_id, f"a batch of {header.last_offset_delta + 1} records")
        batches.append(StoredBatch(next_offset - header.last_offset_delta - 1, header, payload))
    return batches, foreign


def _plain(entry_id: bytes, fields: list[bytes], bytes_max: int) -> bytes:
    marker, encoding, *more = fields[2:]
    plain = (
        decompress(fields[1][HEADER_BYTES:], encoding, bytes_max) if marker == MARKER and not more else None
    )
    if plain is None:
        raise _damaged(entry_id, "the batch does not decompress to the length that it says")
    return plain


def _damaged(entry_id: bytes, what: str) -> ValueError:
    return ValueError(f"{entry_id.decode()}: {what}")
