"""What is to be archived next, and what of it may be committed: pure functions over offsets.

Knows where tables and logs begin and end, and how large what lies between is; nothing of Redis, tables or Spark. A
range is one task's work and becomes one file. Few records make small files, soon; a backlog makes files of some 100 MB,
cut where the log's index tells how many bytes lie below an offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

RANGE_BYTES_MIN = 8 * 1024 * 1024
"""A task of less is not worth starting only to keep another core busy."""

RANGE_BYTES_MAX = 128 * 1024 * 1024
"""Bytes as stored in Redis; a file of them has between a third and all of it."""

RANGES_PER_CORE = 4
"""Of one round, which ends with a commit: what a crash may cost, and how often progress is seen."""


class Extent(NamedTuple):
    """One partition: `next_offset` is what its table is to have next, None where that has nothing of it.

    The log is Redis' from `local_start` up to `end`. `archived` is what Redis was told of the table, 0 for nothing;
    `deleted`: what lies below `local_start` was deleted on purpose, unless the table has it.
    """

    next_offset: int | None
    local_start: int
    end: int
    archived: int
    deleted: bool


class Gap(NamedTuple):
    """Offsets `first` to just before `behind` that neither the table nor Redis holds, though nobody deleted them."""

    first: int
    behind: int


class Begin(NamedTuple):
    """Where archiving goes on: the table is at `expected`, and the first record to take lies at `first` or behind."""

    expected: int
    first: int
    gap: Gap | None


class Cut(NamedTuple):
    """An offset between two entries of the log, and what ever came below it, in bytes."""

    offset: int
    bytes: int


class Range(NamedTuple):
    """The offsets `first` to just before `behind`, and about how many bytes they are."""

    first: int
    behind: int
    bytes: int


class Done(NamedTuple):
    """What became of a range: its records up to just before `next_offset` are written."""

    first: int
    behind: int
    next_offset: int


class PlanError(Exception):
    """Table and log contradict each other, and nothing may be archived before somebody has looked; says how."""


def another_lake(archived: int, next_offset: int | None) -> str | None:
    """Say what is wrong where Redis was told of more than the table holds; None where all is well."""
    if (next_offset or 0) >= archived:
        return None
    reached = "nothing" if next_offset is None else f"it up to {next_offset}"
    return f"archived up to {archived} as Redis knows, but this lake holds {reached}: is it another one?"


def begin(extent: Extent) -> Begin:
    """Return where to go on; raises PlanError where that would lose or repeat records."""
    expected = extent.local_start if extent.next_offset is None else extent.next_offset
    if other := another_lake(extent.archived, extent.next_offset):
        raise PlanError(other)
    if expected > extent.end:
        message = f"archived up to {expected}, but the log ends at {extent.end}: Redis has lost records"
        raise PlanError(message)
    gap = None
    if expected < extent.local_start and not extent.deleted:
        gap = Gap(expected, extent.local_start)
    return Begin(expected, max(expected, extent.local_start), gap)


def range_bytes(backlog: int, cores: int) -> int:
    """Return how large ranges should be, so that a backlog of so many bytes keeps all cores busy."""
    return min(max(backlog // max(cores, 1), RANGE_BYTES_MIN), RANGE_BYTES_MAX)


def ranges(first: int, end: Cut, cuts: Sequence[Cut], target: int, count_max: int) -> list[Range]:
    """Return up to `count_max` ranges of about `target` bytes, one behind the other, from `first` up to `end` at most.

    `cuts` lie above `first`, and rise. Where none are known, all is one range.
    """
    found: list[Range] = []
    if first >= end.offset:
        return found
    known = [cut for cut in cuts if first < cut.offset < end.offset]
    below = known[0].bytes if known else end.bytes
    for cut in known:
        if len(found) == count_max:
            return found
        if cut.bytes - below >= target:
            found.append(Range(first, cut.offset, cut.bytes - below))
            first, below = cut.offset, cut.bytes
    rest = Range(first, end.offset, max(end.bytes - below, 0))
    # More than that lies behind the last cut that is known: the next plan knows more.
    if len(found) < count_max and (not found or rest.bytes <= 2 * target):
        found.append(rest)
    return found


def advance(expected: int, done: Iterable[Done]) -> tuple[int, list[int]]:
    """Return the offset up to which a partition may be committed, and which of `done` that takes, by their places.

    They are the ranges of one plan in the order of their offsets. One that ends early hides those behind it.
    """
    at, taken = expected, []
    whole = True
    for place, each in enumerate(done):
        if not whole:
            break
        if each.next_offset > each.first:
            at = each.next_offset
            taken.append(place)
        whole = each.next_offset >= each.behind
    return at, taken


def bins(sizes: Sequence[int], count_max: int) -> list[list[int]]:
    """Spread works of such sizes, named by their places, over up to `count_max` bins that are about equally full."""
    found: list[list[int]] = [[] for _ in range(min(count_max, len(sizes)))]
    full = [0] * len(found)
    for place in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        least = full.index(min(full))
        found[least].append(place)
        # Each costs something, however small it is.
        full[least] += sizes[place] + 1
    return found
