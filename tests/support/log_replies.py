"""Replies of Redis to the read of a log, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from korvet_core import Fetched, LogReader, RawReply

from korvet.log.packed import PackedLog
from korvet.protocol.records.batch import BatchHeader
from korvet.topics.entry_ids import BATCH, OFFSETS_END
from korvet.topics.types import Partition

LIMIT = 1 << 20

Entry: TypeAlias = tuple[bytes, list[bytes]]
"""An id, and names and values in turn."""


def partition(bits: int) -> Partition:
    """Return a partition; `bits` of its offsets are sequences of ids, BATCH: it is of format `batch`."""
    form: Literal["record", "batch"] = "batch" if bits == BATCH else "record"
    return Partition("t", 0, "id", bits, form, "s", "", "", "", ("", ""), "", "", "", "")


def reply_of(entries: Sequence[Entry], end: int = OFFSETS_END) -> RawReply:
    """Return the reply to EXEC of a read of a log up to an offset that finds these entries."""
    state = [b"id", PackedLog(next_offset=end, first=0).pack()]
    pieces = [b"*2\r\n*8\r\n", *map(_bulk, state), b"$-1\r\n" * 6, b"*%d\r\n" % len(entries)]
    for entry_id, fields in entries:
        pieces += [b"*2\r\n", _bulk(entry_id), b"*%d\r\n" % len(fields), *map(_bulk, fields)]
    return RawReply(b"".join(pieces))


def read(entries: Sequence[Entry], bits: int, end: int = OFFSETS_END, limit: int = LIMIT) -> Fetched:
    """Return what a read finds that gets these entries."""
    reader = LogReader(limit)
    asked = reader.begin(partition(bits), 0, len(entries) + 1, None, False, 0)  # noqa: FBT003 - of all
    outcome = reader.outcome(asked, reply_of(entries, end))
    assert isinstance(outcome, tuple)
    settled, result = outcome[:2]
    assert isinstance(result, Fetched), outcome
    assert settled
    return result


def read_batches(batches: Sequence[tuple[int, bytes]], limit: int = LIMIT) -> Fetched:
    """Return what a read finds of batches, each with its base offset."""
    ends = [base + BatchHeader.read(raw).last_offset_delta + 1 for base, raw in batches]
    entries = [(b"0-%d" % end, [b"batch", raw]) for end, (_, raw) in zip(ends, batches, strict=True)]
    return read(entries, BATCH, limit=limit)


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)
