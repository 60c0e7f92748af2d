"""Entries of one layout as columns: what `entry.read_entries` makes of them one by one, made of all of them at once.

Knows when entries are of one layout, and leaves all others to `read_entries`; so nothing here is about what is
malformed or foreign. Nothing here talks to Redis.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain

from korvet.protocol.records.columns import Columns, Contents
from korvet.storage.entry import HEADER, MARKER, NULL_HEADER, SAFE_DIGITS, Entry, decompress, text_of

ENTRIES_MIN = 16
"""Below this many entries the columns cost more than they spare."""

# Ids that share a millisecond for fewer entries than this are read one by one: finding the end of a run costs as much.
_RUN_MIN = 8


def read_columns(
    entries: Sequence[Entry], bits: int, end: int, decompressed_bytes_max: int
) -> Columns | None:
    """Return the records of all the entries; None where `read_entries` must look at each.

    That is so for entries that differ in their fields or have others than those that Korvet writes, and where an id is
    no offset below `end`, a timestamp is none, or a value does not decompress within `decompressed_bytes_max` bytes.
    Raises what `read_entries` raises.
    """
    count = len(entries)
    if count < ENTRIES_MIN:
        return None
    fields = [entry[1] for entry in entries]
    names, width = fields[0][::2], len(fields[0])
    if list(map(len, fields)).count(width) != count:
        return None
    flat = list(chain.from_iterable(fields))
    if any(flat[2 * at :: width].count(name) != count for at, name in enumerate(names)):
        return None
    columns = [flat[at::width] for at in range(1, width, 2)]
    keys = columns.pop(0) if names[0] == b"key" else None
    del names[: len(names) - len(columns)]
    if names[:2] != [b"value", b"timestamp"]:
        return None
    values: Contents | None = columns[0]
    rest = 2
    if names[2:3] == [MARKER]:
        values = _decompressed(columns[0], columns[2], decompressed_bytes_max)
        rest = 3
    timestamps = _timestamps(columns[1])
    headers = _headers(names[rest:], columns[rest:])
    if values is None or timestamps is None or headers is None:
        return None
    runs = _runs([entry[0] for entry in entries], bits, end)
    return None if runs is None else Columns(runs, timestamps, keys, values, headers)


def _runs(ids: list[bytes], bits: int, end: int) -> list[range] | None:
    """Return the offsets, in runs without gaps; None where an id has no offset below `end`."""
    width, count = 1 << bits, len(ids)
    runs: list[range] = []
    position = 0
    while position < count:
        ms, _, sequence = ids[position].partition(b"-")
        prefix = ms + b"-"
        low = int(sequence)
        stop = position + 1
        if position + _RUN_MIN <= count and ids[position + _RUN_MIN - 1].startswith(prefix):
            # Ids rise; as text only their sequences may not, and all of these are below a colon.
            stop = bisect_right(ids, prefix + b":", stop)
            if not ids[stop - 1].startswith(prefix):  # the next millisecond has one digit more
                stop = position + 1
        base = (int(ms) << bits) + low
        last = int(ids[stop - 1][len(prefix) :])
        if last >= width or base - low + last >= end:
            return None
        if last - low == stop - position - 1:
            # As many ids as there are numbers from the first to the last: they are these.
            runs.append(range(base, base + stop - position))
        else:
            offsets = [base - low + int(entry_id[len(prefix) :]) for entry_id in ids[position:stop]]
            runs += [range(offset, offset + 1) for offset in offsets]
        position = stop
    return runs


def _timestamps(column: Contents) -> list[int] | None:
    same = column.count(column[0]) == len(column)
    known = dict.fromkeys(column[:1] if same else column, 0)
    for text in known:
        if not text.isdigit() or len(text) > SAFE_DIGITS:
            return None
        known[text] = int(text)
    return list(map(known.__getitem__, column))


def _headers(names: list[bytes], columns: list[list[bytes]]) -> list[tuple[str, Contents | None]] | None:
    headers: list[tuple[str, Contents | None]] = []
    for name, column in zip(names, columns, strict=True):
        if name.startswith(HEADER):
            headers.append((text_of(name[len(HEADER) :]), column))
        elif name.startswith(NULL_HEADER) and not any(column):
            headers.append((text_of(name[len(NULL_HEADER) :]), None))
        else:
            return None
    return headers


def _decompressed(frames: Contents, encodings: Contents, bytes_max: int) -> list[bytes] | None:
    values: list[bytes] = []
    for frame, encoding in zip(frames, encodings, strict=True):
        value = decompress(frame, encoding, bytes_max)
        if value is None:
            return None
        values.append(value)
    return values
