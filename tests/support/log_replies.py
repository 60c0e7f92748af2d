"""Replies of Redis to the read of a log, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from korvet_core import LogRead, LogReader, RawReply

from korvet.log.packed import PackedLog
from korvet.log.record_format import ProducerRun
from korvet.protocol.records.columns import Columns
from korvet.protocol.records.record import StoredRecord
from korvet.topics.entry_ids import OFFSETS_END
from korvet.topics.types import Partition

if TYPE_CHECKING:
    from korvet_core import LogFound

LIMIT = 1 << 20

Entry: TypeAlias = tuple[bytes, list[bytes]]
"""An id, and names and values in turn."""


def partition(bits: int) -> Partition:
    """Return a partition of format `record`; `bits` of its offsets are sequences of ids."""
    return Partition("t", 0, "id", bits, "record", "s", "", "", "", ("", ""), "", "", "", "")


def reply_of(entries: Sequence[Entry], end: int = OFFSETS_END) -> RawReply:
    """Return the reply to EXEC of a read of a log up to an offset that finds these entries."""
    state = [b"id", PackedLog(next_offset=end, first=0).pack()]
    pieces = [b"*2\r\n*8\r\n", *map(_bulk, state), b"$-1\r\n" * 6, b"*%d\r\n" % len(entries)]
    for entry_id, fields in entries:
        pieces += [b"*2\r\n", _bulk(entry_id), b"*%d\r\n" % len(fields), *map(_bulk, fields)]
    return RawReply(b"".join(pieces))


def read(entries: Sequence[Entry], bits: int, end: int = OFFSETS_END, limit: int = LIMIT) -> LogFound:
    """Return what a read finds that gets these entries."""
    reader = LogReader(limit)
    asked = reader.begin(partition(bits), 0, len(entries) + 1, None, False, 0)  # noqa: FBT003 - of all
    outcome = reader.outcome(asked, reply_of(entries, end))
    assert not isinstance(outcome, LogRead)
    assert len(outcome) == 5, outcome
    return outcome


def records_in(outcome: LogFound) -> Sequence[StoredRecord]:
    """Return the records of an outcome: a list, or columns."""
    records = outcome[4][0]
    return records if isinstance(records, list) else Columns(*records)


def runs_in(outcome: LogFound) -> list[ProducerRun]:
    """Return which of them are of transactions."""
    return [ProducerRun(*run) for run in outcome[4][2]]


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)
