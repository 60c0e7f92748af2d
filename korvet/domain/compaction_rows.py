"""The index rows of what a pass of compaction has kept.

Knows how often there is to be a row, and that rows count back from the end of the pass; nothing of Redis or of records.
"""

from __future__ import annotations

from typing import NamedTuple

from korvet.storage.clean_store import KeptRow
from korvet.storage.index_store import BYTES_PER_ROW, RECORDS_PER_ROW

ROWS_MAX = 2048
"""Rows that one script puts in the place of the former ones, in a few milliseconds; were they more, they get farther
apart."""


class _Passed(NamedTuple):
    """A row at `offset`: what was kept below it."""

    offset: int
    records: int
    bytes: int
    largest: int
    interval: int


class KeptRows:
    """Counts what is kept, in the order of the log, and makes a row of it now and then."""

    def __init__(self, start: int) -> None:
        """`start` is the log's start: where it is not 0 the first row lies there, for what is counted from it on."""
        self.records = 0
        self.bytes = 0
        self._largest = -1
        self._interval = -1
        self._rows = [_Passed(start, 0, 0, -1, -1)] if start > 0 else []
        self._records_at_row = self._bytes_at_row = 0

    def add(self, next_offset: int, records: int, size_bytes: int, max_timestamp: int) -> None:
        """Count an entry that ends before `next_offset`."""
        self.records += records
        self.bytes += size_bytes
        self._largest = max(self._largest, max_timestamp)
        self._interval = max(self._interval, max_timestamp)
        if (
            self.records - self._records_at_row >= RECORDS_PER_ROW
            or self.bytes - self._bytes_at_row >= BYTES_PER_ROW
        ):
            self._rows.append(_Passed(next_offset, self.records, self.bytes, self._largest, self._interval))
            self._records_at_row, self._bytes_at_row, self._interval = self.records, self.bytes, -1

    def finish(self) -> tuple[list[KeptRow], int]:
        """Return the rows, and the largest timestamp (ms) behind the last of them: -1 for none.

        Behind each row lies something: one at the end would say the same as the row where the pass ends. Of too many
        rows some are left out, and the next one left tells the largest timestamp since the one before.
        """
        rows, interval = list(self._rows), self._interval
        while rows and rows[-1].records == self.records:
            interval = max(interval, rows.pop().interval)
        step = -(-len(rows) // ROWS_MAX)
        if step > 1:
            left = []
            for at in range(0, len(rows), step):
                since = rows[max(at - step + 1, 0) : at + 1]
                left.append(rows[at]._replace(interval=max(row.interval for row in since)))
            interval = max(interval, *(row.interval for row in rows[(len(left) - 1) * step + 1 :]), -1)
            rows = left
        return [
            KeptRow(row.offset, self.records - row.records, self.bytes - row.bytes, row.largest, row.interval)
            for row in rows
        ], interval
