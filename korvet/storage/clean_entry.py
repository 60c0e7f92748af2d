"""Entries as compaction sees them: which keys their records have, and what is left of an entry without some of them.

Knows both storage formats; nothing of which records are to stay. An entry that stays whole stays byte for byte; one
that nobody can read stays as well, for only what is understood may be removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple, cast

from korvet.errors import KafkaError
from korvet.protocol.records.record import StoredRecord
from korvet.protocol.records.stored import retained_batch, stored_records
from korvet.storage.batch_entry import StoredBatch, batch_args, read_batches
from korvet.storage.entry import OFFSETS_END, SAFE_DIGITS, AtRest, Entry, timestamp_of

Buffer = bytes | memoryview


class Keyed(NamedTuple):
    """A record by what decides whether it stays; without a `key` it is none that compaction knows."""

    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool


class RecordEntry:
    """An entry of format `record`: one record. There is none that nobody can read."""

    __slots__ = ("_fields", "entry_id", "records")

    damage: str | None = None
    record_count = 1
    max_timestamp = -1

    def __init__(self, entry: Entry, bits: int) -> None:
        """Raise ValueError, TypeError, AttributeError or IndexError for what is no answer to XRANGE."""
        self.entry_id, self._fields = entry
        ms, _, sequence = self.entry_id.partition(b"-")
        offset = (int(ms) << bits) + int(sequence)
        # The fields of nearly every record with a key, in the order in which they are written.
        match self._fields:
            case [b"key", key, b"value", _, b"timestamp", stamp, *_] if (
                stamp.isdigit() and len(stamp) <= SAFE_DIGITS
            ):
                self.records = [Keyed(offset, int(stamp), key, is_tombstone=False)]
            case fields:
                self.records = [_keyed(offset, int(ms), fields)]

    @property
    def next_offset(self) -> int:
        """The offset just past the entry."""
        return self.records[0].offset + 1

    def without(self, keep: Sequence[bool], at_rest: AtRest) -> Sequence[Buffer] | None:  # noqa: ARG002 - as BatchEntry's
        """Return the fields of the entry with those of its records that `keep` says, None where that is none."""
        return self._fields if keep[0] else None


def _keyed(offset: int, added_ms: int, fields: Sequence[bytes]) -> Keyed:
    key: bytes | None = None
    timestamp: int | None = None
    is_tombstone = True
    for name, content in zip(fields[::2], fields[1::2], strict=True):
        if name == b"key" and key is None:
            key = content
        elif name == b"value":
            is_tombstone = False
        elif name == b"timestamp" and timestamp is None:
            timestamp = timestamp_of(content)
    return Keyed(offset, added_ms if timestamp is None else timestamp, key, is_tombstone)


class BatchEntry:
    """An entry of format `batch`: a producer's batch. `damage` says why nobody can read it, if so."""

    __slots__ = ("_batch", "_fields", "_stored", "damage", "entry_id", "next_offset", "records")

    def __init__(self, entry: Entry, bytes_max: int) -> None:
        """Decompress to `bytes_max` bytes at the most; a batch beyond it counts as one that nobody can read.

        Raises ValueError, TypeError, AttributeError or IndexError for what is no answer to XRANGE.
        """
        self.entry_id, self._fields = entry
        self.next_offset = int(self.entry_id.partition(b"-")[0])
        self.records: list[Keyed] = []
        self.damage: str | None = None
        self._stored: list[StoredRecord] = []
        self._batch: StoredBatch | None = None
        try:
            batches, foreign = read_batches([entry], OFFSETS_END)
            if foreign:
                return
            [self._batch] = batches
            batch = self._batch
            self._stored = stored_records(batch.header, batch.payload, batch.base_offset, bytes_max)
        except (ValueError, KafkaError) as error:
            self.damage = str(error)
            return
        self.records = [Keyed(record[0], record[1], record[2], record[3] is None) for record in self._stored]

    @property
    def max_timestamp(self) -> int:
        """What the header says; -1 where there is none."""
        return -1 if self._batch is None else self._batch.header.max_timestamp

    @property
    def record_count(self) -> int:
        """How many records the batch has, by its header."""
        return 0 if self._batch is None else self._batch.header.record_count

    def without(self, keep: Sequence[bool], at_rest: AtRest) -> Sequence[Buffer] | None:
        """Return the fields of the entry with those of its records that `keep` says, None where that is none.

        What others wrote is no record in this format, and goes.
        """
        if self.damage is not None:
            return self._fields
        if self._batch is None or not any(keep):
            return None
        if all(keep):
            return self._fields
        header = self._batch.header
        data = retained_batch(header, self._batch.base_offset, list(compress(self._stored, keep)))
        return cast("list[Buffer]", batch_args(memoryview(data), header.codec, at_rest))
