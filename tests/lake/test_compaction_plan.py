"""korvet/lake/compaction.py: which files become fewer, over files that are only told of."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.lake.compaction import FileSizes, Merge, is_own, merges
from korvet.lake.table import TableFile

SIZES = FileSizes(file_bytes_min=64, file_bytes_max=128)
PER_FILE = 10


def file(
    number: int, size: int, partition: int = 0, *, own: bool = True, last: int = PER_FILE - 1
) -> TableFile:
    first = number * PER_FILE
    name = f"part-{uuid.uuid4()}.parquet" if own else f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
    path = f"partition={partition}/{name}"
    return TableFile(path, partition, size, PER_FILE, first, first + last, 0, 1, 0, 0)


def sizes_of(found: list[Merge]) -> list[list[int]]:
    return [[each.size_bytes for each in merge.files] for merge in found]


def planned(*sizes: int) -> list[list[int]]:
    return sizes_of(merges([file(number, size) for number, size in enumerate(sizes)], SIZES))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([5], []),
        ([5, 5], [[5, 5]]),
        # Large ones stay, and part those around them.
        ([5, 5, 64, 5, 5], [[5, 5], [5, 5]]),
        ([5, 200, 5], []),
        # What would become too large is cut.
        ([40, 40, 40, 40, 40], [[40, 40, 40], [40, 40]]),
        # At the end newer ones wait until they are as large as the one before.
        ([50, 5, 5], [[5, 5]]),
        ([45, 10, 5], []),
        ([10, 5, 5], [[10, 5, 5]]),
        # A file that is large enough comes of it: nothing to wait for.
        ([50, 20], [[50, 20]]),
        # Before a large one none is waited for.
        ([50, 5, 64], [[50, 5]]),
    ],
)
def test_neighbours_that_are_small_become_one(sizes: list[int], expected: list[list[int]]) -> None:
    assert planned(*sizes) == expected


def test_partitions_are_kept_apart() -> None:
    found = merges([file(0, 5), file(1, 5), file(0, 6, 1), file(1, 6, 1), file(0, 7, 2)], SIZES)
    assert [(each.partition, each.size_bytes, each.rows, each.into) for each in found] == [
        (0, 10, 20, 1),
        (1, 12, 20, 1),
    ]


def test_files_of_others_are_written_anew_however_large_they_are() -> None:
    found = merges([file(0, 64), file(1, 300, own=False), file(2, 64)], SIZES)
    assert [(each.size_bytes, each.into) for each in found] == [(300, 3)]


def test_files_whose_offsets_overlap_are_taken_together() -> None:
    found = merges([file(0, 70, last=25), file(1, 70), file(2, 70), file(3, 70)], SIZES)
    assert [(each.size_bytes, each.into) for each in found] == [(210, 2)]


def test_names_tell_whose_a_file_is() -> None:
    assert is_own(file(0, 1, 12).path)
    assert not is_own(file(0, 1, own=False).path)


@given(st.lists(st.integers(1, 200), max_size=30))
def test_no_file_is_in_two_merges_and_none_between_two_is_left_out(sizes: list[int]) -> None:
    every = [file(number, size) for number, size in enumerate(sizes)]
    taken = [each for merge in merges(every, SIZES) for each in merge.files]
    assert len(taken) == len(set(taken))
    for merge in merges(every, SIZES):
        assert len(merge.files) > 1
        assert merge.size_bytes <= SIZES.file_bytes_max
        first = every.index(merge.files[0])
        assert list(merge.files) == every[first : first + len(merge.files)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=300))
def test_a_row_is_written_again_only_as_its_file_doubles(sizes: list[int]) -> None:
    """Let files come one at a time, with a compaction after each."""
    limits = FileSizes(file_bytes_min=4096, file_bytes_max=8192)
    held: list[TableFile] = []
    written = 0
    for number, size in enumerate(sizes):
        held.append(file(number, size))
        for merge in merges(held, limits):
            at = held.index(merge.files[0])
            written += merge.size_bytes
            held[at : at + len(merge.files)] = [
                merge.files[0]._replace(size_bytes=merge.size_bytes, last_offset=merge.files[-1].last_offset)
            ]
    total = sum(sizes)
    assert sum(each.size_bytes for each in held) == total
    # At each pass a row's file becomes at least half as large again.
    assert written <= total * (total.bit_length() * 2)
    assert len(held) <= 2 * total.bit_length() + 1
