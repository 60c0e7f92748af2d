"""Format `batch`: a producer's batch as one stream entry, and back.

The field `batch` holds the batch's bytes as they came, and the entry's id is `0-<offset just past the batch>`. A batch
that came uncompressed may be compressed at rest: then its header stays plain, what follows is an lz4 or zstd frame, and
the field `korvet.encoding` says which; a reader gets the producer's bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.log.record_format import MARKER, Arg, Entry, compress, decompress
from korvet.log.types import StoredBatch
from korvet.protocol.records.batch import (
    HEADER_BYTES,
    LENGTH_FROM,
    LOOK,
    MAGIC,
)
from korvet.protocol.records.compression import Codec
from korvet.topics.types import AtRest

FIELD = b"batch"
# Names and values: the batch, and maybe how it is compressed.
_PLAIN, _ENCODED = 2, 4


def batch_args(batch: memoryview, codec: int, at_rest: AtRest) -> list[Arg]:
    """Return the field and value arguments of XADD for one batch; `codec` is the batch's own."""
    payload_bytes = len(batch) - HEADER_BYTES
    if codec == Codec.none and at_rest.codec != "none" and payload_bytes >= at_rest.min_bytes:
        frame = compress(batch[HEADER_BYTES:], at_rest.codec)
        if frame is not None:
            return [FIELD, b"".join((batch[:HEADER_BYTES], frame)), MARKER, at_rest.codec.encode()]
    return [FIELD, batch]


def read_batches(entries: Sequence[Entry], end: int) -> tuple[list[StoredBatch], int]:
    """Return the batches below offset `end`, and how many entries among them are none (written by others).

    An entry is damaged if it claims to be a batch and is none, or does not decompress to the length in its header: the
    batches before it are returned. Raises ValueError, which names the entry, if there are none before it; ValueError,
    TypeError, AttributeError or IndexError for what is no answer to XRANGE.
    """
    batches: list[StoredBatch] = []
    external = 0
    for entry_id, fields in entries:
        ms, _, sequence = entry_id.partition(b"-")
        next_offset = int(sequence)
        if next_offset > end or ms != b"0":
            break
        if fields[0] != FIELD:
            external += 1
            continue
        try:
            batches.append(_batch(entry_id, fields, next_offset))
        except ValueError:
            if not batches:
                raise
            break
    return batches, external


def _batch(entry_id: bytes, fields: list[bytes], next_offset: int) -> StoredBatch:
    """Return the batch of an entry; raises ValueError if it is damaged."""
    stored = fields[1]
    if len(stored) < HEADER_BYTES:
        raise _damaged(entry_id, f"{len(stored)} bytes are no batch")
    length, magic, last_delta, record_count = LOOK.unpack_from(stored)
    plain = None
    size_bytes = len(stored)
    if len(fields) > _PLAIN:
        if len(fields) == _ENCODED and fields[2] == MARKER:
            plain = decompress(stored[HEADER_BYTES:], fields[3], length + LENGTH_FROM - HEADER_BYTES)
        if plain is None:
            raise _damaged(entry_id, "the batch does not decompress to the length that it says")
        size_bytes = HEADER_BYTES + len(plain)
    # What is served must be as long as it says: the batches of an answer are found by their lengths.
    if magic != MAGIC or size_bytes != length + LENGTH_FROM:
        raise _damaged(entry_id, "not a batch of the length that it says")
    if not 0 <= last_delta < next_offset:
        raise _damaged(entry_id, f"a batch of {last_delta + 1} records")
    base_offset = next_offset - last_delta - 1
    return StoredBatch(base_offset, next_offset, size_bytes, record_count, stored, plain)


def _damaged(entry_id: bytes, what: str) -> ValueError:
    return ValueError(f"{entry_id.decode()}: {what}")
