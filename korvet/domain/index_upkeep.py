"""Keeping the sparse index of a log right: made anew where it is missing, and rid of timestamps that have left the log.

Knows when an index is wrong and how one is made out of a log's entries; nothing of scripts. The log goes on meanwhile:
what is appended writes rows of its own behind those that are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from korvet.errors import KafkaError
from korvet.storage.index_store import BYTES_PER_ROW, RECORDS_PER_ROW, Row
from korvet.storage.index_upkeep import Fill, IndexLook, IndexUpkeep, Part, Weight
from korvet.storage.log_types import Partition

ENTRIES_MAX = 1000
"""Entries read at once, where they are small."""

BYTES_PER_READ = 4 * 1024 * 1024
"""About what is read at once, of entries like those before."""

ROWS_PER_STEP = 1000
"""Rows that one script writes: some two milliseconds in which Redis serves nobody else."""

CheckTurn = Callable[[], None]
"""Is called before each step, and raises where no other step may be done."""


class Mended(NamedTuple):
    """What became of an index: how many rows were made anew, and of how many the timestamps were."""

    made: int = 0
    rebased: int = 0


class IndexMender:
    """Looks at indexes and mends them."""

    def __init__(self, store: IndexUpkeep) -> None:
        self._store = store

    def mend(
        self, partitions: Sequence[Partition], check_turn: CheckTurn
    ) -> Iterator[tuple[Partition, Mended | KafkaError]]:
        """Do what is needed for each partition, one after the other; yields those for which something was.

        Errors, yielded: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises StorageUnavailableError, and what
        `check_turn` raises.
        """
        for partition, look in zip(partitions, self._store.look(partitions), strict=True):
            if isinstance(look, KafkaError):
                yield partition, look
                continue
            try:
                mended = self._mend(partition, look, check_turn)
            except KafkaError as error:
                yield partition, error
                continue
            if any(mended):
                yield partition, mended

    def _mend(self, partition: Partition, look: IndexLook, check_turn: CheckTurn) -> Mended:
        if look.reindex or look.totals.misses_rows(look.newest):
            return Mended(made=self._make(partition, look, check_turn))
        first, interval = self._first_interval(partition, look, check_turn)
        if look.rebase is None and not _is_stale(look) and first < 0:
            return Mended()
        rebased, more = 0, True
        while more:
            check_turn()
            changed, more = self._store.rebase(partition, first, interval)
            rebased += changed
        return Mended(rebased=rebased)

    def _make(self, partition: Partition, look: IndexLook, check_turn: CheckTurn) -> int:
        """Make all rows from the log's start on; returns how many, 0 where the log was compacted meanwhile."""
        totals = look.totals
        making = _Making()
        for part in _parts(partition, look):
            for weight in self._weights(partition, part, check_turn):
                making.add(weight)
            making.end_part(part.behind)
        below_records, below_bytes = totals.records - making.records, totals.bytes - making.bytes
        # In format `batch` offsets count records, unless compaction has taken some away.
        is_dense = partition.format == "batch" and totals.start >= _clean_end(look)
        if is_dense:
            below_records = totals.start
        more_records, more_bytes = max(-below_records, 0), max(-below_bytes, 0)
        below_records, below_bytes = max(below_records, 0), max(below_bytes, 0)
        rows = iter(making.rows)
        behind = totals.start if totals.start < totals.end else totals.start - 1
        made = 0
        while made < len(making.rows):
            check_turn()
            some = [
                row._replace(
                    records=row.offset if is_dense else row.records + below_records,
                    bytes=row.bytes + below_bytes,
                )
                for row in islice(rows, ROWS_PER_STEP)
            ]
            made += len(some)
            fill = Fill(
                rows=some,
                behind=behind,
                last=some[-1].offset,
                is_last=made == len(making.rows),
                start_records=below_records,
                start_bytes=below_bytes,
                more_records=more_records,
                more_bytes=more_bytes,
            )
            if not self._store.fill(partition, look, fill):
                return 0
            behind = some[-1].offset
        return made

    def _weights(self, partition: Partition, part: Part, check_turn: CheckTurn) -> Iterator[Weight]:
        count = 1  # until it is known how large entries are
        while part.first < part.behind:
            check_turn()
            weights = self._store.entries(partition, part, count)
            if not weights:
                return
            yield from weights
            average = sum(weight.bytes for weight in weights) // len(weights) + 1
            count = max(1, min(ENTRIES_MAX, BYTES_PER_READ // average))
            part = part._replace(first=weights[-1].behind)

    def _first_interval(
        self, partition: Partition, look: IndexLook, check_turn: CheckTurn
    ) -> tuple[int, int]:
        """Return the first row behind the start and the largest timestamp up to it; -1 where the row tells as much.

        Where the start lies within an interval, the record with its largest timestamp may have left the log. That
        matters where this one is larger than those that follow: lookups would look at every interval in between.
        """
        start, below = look.totals.start, look.below
        if not look.above or start == 0 or (below is not None and below.offset == start):
            return -1, -1
        first, *following = look.above
        next_largest = following[0].largest if following else look.totals.largest
        if first.interval < next_largest or first.largest > first.interval:
            return -1, -1
        largest = -1
        for part in _parts(partition, look, behind=first.offset):
            for weight in self._weights(partition, part, check_turn):
                largest = max(largest, weight.timestamp)
        return (first.offset, largest) if largest < first.interval else (-1, -1)


class _Making:
    """Counts entries from the log's start on and makes rows of them, which count from there too."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.records = self.bytes = 0
        self._largest = self._interval = -1
        self._records_at_row = self._bytes_at_row = 0

    def add(self, weight: Weight) -> None:
        """Count an entry."""
        self.records += weight.records
        self.bytes += weight.bytes
        self._largest = max(self._largest, weight.timestamp)
        self._interval = max(self._interval, weight.timestamp)
        is_far = self.records - self._records_at_row >= RECORDS_PER_ROW
        if is_far or self.bytes - self._bytes_at_row >= BYTES_PER_ROW:
            self.end_part(weight.behind)

    def end_part(self, offset: int) -> None:
        """Make a row at an offset behind all that was counted, unless there is one."""
        if self.rows and self.rows[-1].offset == offset:
            return
        self.rows.append(Row(offset, self.records, self.bytes, self._largest, self._interval))
        self._interval = -1
        self._records_at_row, self._bytes_at_row = self.records, self.bytes


def _clean_end(look: IndexLook) -> int:
    """Return the offset below which the log lies in a clean stream."""
    return int(look.clean_end or 0) if look.clean is not None else 0


def _parts(partition: Partition, look: IndexLook, behind: int | None = None) -> list[Part]:
    """Return where the log lies, up to `behind`, or to its end."""
    first, end = look.totals.start, look.totals.end if behind is None else behind
    clean_end = _clean_end(look)
    parts = [Part(partition.stream, max(first, clean_end), max(end, clean_end))]
    if first < clean_end:
        parts.insert(0, Part(partition.clean[int(look.clean or 0)], first, min(clean_end, end)))
    return [part for part in parts if part.first < part.behind] or [Part(partition.stream, end, end)]


def _is_stale(look: IndexLook) -> bool:
    """Tell whether the index knows a timestamp that no record from the log's start on has."""
    if look.above:
        return float(look.above[0].largest) > float(look.above[0].interval)
    return look.totals.start > 0 and float(look.totals.largest) > float(look.totals.interval)
