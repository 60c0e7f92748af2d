"""Which files of a partition are to become fewer: pure functions over what the table says of them.

Knows sizes and offsets; nothing of how files are written or committed. Files that are large enough stay as they are,
neighbours that are not become one. What is written again and again is kept small: newer files wait for each other until
they are about as large as the one before them, so a row is written as often as its file doubles, not at every pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from korvet.lake.table import TableFile
from korvet.lake.windows import apart

FILE_BYTES_MIN = 64 * 1024 * 1024
"""A file from here on stays as it is."""

FILE_BYTES_MAX = 128 * 1024 * 1024
"""What becomes one file; large files are read as quickly as small ones, for a fetch reads one row group."""

_OWN = re.compile(r"partition=[0-9]+/part-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.parquet")


class Sizes(NamedTuple):
    """From where on a file stays as it is, and how large others become together, in bytes."""

    file_bytes_min: int = FILE_BYTES_MIN
    file_bytes_max: int = FILE_BYTES_MAX


SIZES = Sizes()
"""Those that are meant; tests take smaller ones."""


class Merge(NamedTuple):
    """Files of one partition, in the order of their offsets, whose rows are to lie in `into` files instead."""

    partition: int
    files: tuple[TableFile, ...]
    into: int

    @property
    def size_bytes(self) -> int:
        """What the files have together."""
        return sum(each.size_bytes for each in self.files)

    @property
    def rows(self) -> int:
        """What the files have together."""
        return sum(each.rows for each in self.files)


class _Piece(NamedTuple):
    """Files that cannot be told apart by offset, mostly one; `foreign`: they are to be written anew in any case."""

    files: tuple[TableFile, ...]
    size_bytes: int
    foreign: bool


def merges(files: Sequence[TableFile], sizes: Sizes = SIZES) -> list[Merge]:
    """Return what is to be done for a table; `files` are by partition and offset, as it has them."""
    found: list[Merge] = []
    for partition, some in groupby(files, key=lambda each: each.partition):
        for pieces in _runs(_pieces(list(some)), sizes):
            members = tuple(file for piece in pieces for file in piece.files)
            size = sum(each.size_bytes for each in members)
            found.append(Merge(partition, members, max(1, -(-size // sizes.file_bytes_max))))
    return found


def is_own(path: str) -> bool:
    """Tell whether a file has a name as Korvet gives them: others may hold rows in any order."""
    return _OWN.fullmatch(path) is not None


def _pieces(files: Sequence[TableFile]) -> Iterator[_Piece]:
    """Yield the files of a partition, those together whose offsets overlap."""
    return map(_piece, apart(files))


def _piece(files: list[TableFile]) -> _Piece:
    foreign = len(files) > 1 or not is_own(files[0].path)
    return _Piece(tuple(files), sum(each.size_bytes for each in files), foreign)


def _runs(pieces: Iterator[_Piece], sizes: Sizes) -> Iterator[list[_Piece]]:
    """Yield neighbours that are to become one file."""
    run: list[_Piece] = []
    for piece in pieces:
        stays = piece.size_bytes >= sizes.file_bytes_min and not piece.foreign
        if run and (stays or _bytes(run) + piece.size_bytes > sizes.file_bytes_max):
            # Nothing is going to lie beside these that they could wait for.
            yield from _worth_it(run)
            run = []
        if not stays:
            run.append(piece)
    if _bytes(run) < sizes.file_bytes_min:
        while len(run) > 1 and not run[0].foreign and run[0].size_bytes > _bytes(run[1:]):
            run = run[1:]
    yield from _worth_it(run)


def _worth_it(run: list[_Piece]) -> Iterator[list[_Piece]]:
    if len(run) > 1 or (run and run[0].foreign):
        yield run


def _bytes(run: Sequence[_Piece]) -> int:
    return sum(each.size_bytes for each in run)
