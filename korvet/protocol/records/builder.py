"""Record batches for a consumer, built from records that lie one by one in the log.

Knows the limits of the format; nothing of where records come from. A batch starts anew where the offset delta would
leave its int32, which in a log with time-coded offsets happens after a pause; a gap within the range is legal.
Batches built here carry no producer: their sequences are not those the producer sent.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from korvet.protocol.records.batch import HEADER_BYTES, MAGIC

OFFSET_DELTA_MAX = 2**31 - 1
StoredRecord = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Offset, timestamp (ms), key, value, headers (name, value)."""


class BuiltBatches:
    """What `build` made: the batches one behind the other, and how far they reach."""

    __slots__ = ("next_offset", "parts", "record_count", "size_bytes")

    def __init__(self) -> None:
        self.parts: list[bytearray] = []
        self.size_bytes = 0
        self.record_count = 0
        self.next_offset = 0


def build(records: Sequence[StoredRecord], *, codec: int, leader_epoch: int, bytes_max: int) -> BuiltBatches:
    """Build batches of `records` (rising offsets) until the next record would exceed `bytes_max`, uncompressed.

    At least one record is built, whatever its size: a consumer must get on (KIP-74). `codec` compresses each batch,
    where that makes it smaller.
    """
    built = BuiltBatches()
    position = 0
    budget = bytes_max
    while position < len(records) and (not built.parts or budget > HEADER_BYTES):
        taken, plain_bytes, batch = _one(records, position, codec, budget, required=not built.parts)
        if batch is None:
            break
        base_offset = records[position][0]
        struct.pack_into(">q", batch, 0, base_offset)
        struct.pack_into(">i", batch, 12, leader_epoch)
        position += taken
        budget -= plain_bytes
        built.parts.append(batch)
        built.size_bytes += len(batch)
        built.record_count += taken
        built.next_offset = records[position - 1][0] + 1
        if position < len(records) and records[position][0] - base_offset <= OFFSET_DELTA_MAX:
            break  # the batch ended for its size
    return built


def _one(
    records: Sequence[StoredRecord], position: int, codec: int, budget: int, *, required: bool
) -> tuple[int, int, bytearray | None]:
    """Build one batch from `position` on; returns how many records, their size uncompressed, and the batch."""
    builder = DefaultRecordBatchBuilder(
        magic=MAGIC,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=budget,
    )
    base_offset, timestamp, key, value, headers = records[position]
    if not required and HEADER_BYTES + builder.size_in_bytes(0, timestamp, key, value, headers) > budget:
        return 0, 0, None
    append = builder.append
    taken = 0
    # The builder would write a delta beyond int32 without a word, so the end of the range is looked for here.
    stop = len(records)
    if records[-1][0] - base_offset > OFFSET_DELTA_MAX:
        stop = next(
            index for index in range(position, stop) if records[index][0] - base_offset > OFFSET_DELTA_MAX
        )
    for offset, timestamp, key, value, headers in records[position:stop]:
        if append(offset - base_offset, timestamp, key, value, headers) is None:
            break
        taken += 1
    return taken, builder.size(), builder.build()
