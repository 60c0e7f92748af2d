"""Records of one layout, column by column: the shape in which most of a log is read.

All records have a value, all of them or none have a key, and all have the same names of headers in the same order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import overload

from korvet.protocol.records.record import Header, StoredRecord

Contents = Sequence[bytes]
"""What one field holds, record after record."""


class Columns(Sequence[StoredRecord]):
    """Records with rising offsets; taken as a sequence they are plain tuples, built at each access.

    `runs` are their offsets: stretches without gaps, none of them empty. `timestamps` are in milliseconds. Without
    `keys` every key is null. A header is its name and what it holds, None if it is null in every record.
    """

    __slots__ = ("_ends", "headers", "keys", "runs", "timestamps", "values")

    def __init__(
        self,
        runs: Sequence[range],
        timestamps: Sequence[int],
        keys: Contents | None,
        values: Contents,
        headers: Sequence[tuple[str, Contents | None]] = (),
    ) -> None:
        self.runs = runs
        self.timestamps = timestamps
        self.keys = keys
        self.values = values
        self.headers = headers
        self._ends = list(accumulate(map(len, runs)))

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[StoredRecord]:
        offsets = chain.from_iterable(self.runs)
        # Keys and headers may repeat without end.
        return zip(offsets, self.timestamps, self.each_key(), self.values, self.each_headers())  # noqa: B905 - as said above

    @overload
    def __getitem__(self, index: int) -> StoredRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[StoredRecord]: ...
    def __getitem__(self, index: int | slice) -> StoredRecord | list[StoredRecord]:
        return list(self)[index]

    def part(self, start: int, stop: int) -> Columns:
        """Return the records from one position to another, at least one."""
        first, last = bisect_right(self._ends, start), bisect_left(self._ends, stop)
        runs = list(self.runs[first : last + 1])
        runs[-1] = range(runs[-1].start, self._offset(last, stop))
        runs[0] = range(self._offset(first, start), runs[0].stop)
        return Columns(
            runs,
            self.timestamps[start:stop],
            None if self.keys is None else self.keys[start:stop],
            self.values[start:stop],
            [(name, None if column is None else column[start:stop]) for name, column in self.headers],
        )

    def _offset(self, place: int, position: int) -> int:
        """Return the offset at a position in the run at `place`, or at its end."""
        return self.runs[place].stop - (self._ends[place] - position)

    def each_key(self) -> Iterable[bytes | None]:
        """Return the keys; without any, null as often as one likes."""
        return repeat(None) if self.keys is None else self.keys

    def each_headers(self) -> Iterable[list[Header]]:
        """Return the headers of each record; without any, the same empty list as often as one likes."""
        if not self.headers:
            return repeat([])
        nulls: Iterable[None] = repeat(None)
        columns = [zip(repeat(name), nulls if column is None else column) for name, column in self.headers]
        return map(list, zip(*columns))  # noqa: B905 - nulls repeat without end
