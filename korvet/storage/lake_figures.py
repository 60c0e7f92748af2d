"""What the acting archiver tells of itself and of the tables, on its way to /metrics: two files, replaced as wholes.

Knows the files; not who takes the figures, nor how Prometheus is told. Totals stay when an archiver ends, and the next
one goes on counting; what was true only while it acted is forgotten with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

_TOTALS = "lake_totals.json"
_TABLES = "lake_tables_archiver.json"
"""Named so that it is removed when the archiver ends."""

OTHER_TOPICS = "(other)"
"""The name under which topics beyond the limit are summed; no topic can have it."""

_Told = TypeVar("_Told")


class Totals(msgspec.Struct, kw_only=True):
    """Everything counted since the broker started. `rounds` and `upkeeps` are by outcome; bytes are those of files."""

    rounds: dict[str, int] = {}
    records: int = 0
    bytes: int = 0
    files: int = 0
    conflicts: int = 0
    lost_ranges: int = 0
    upkeeps: dict[str, int] = {}
    compacted_files: int = 0
    expired_files: int = 0
    expired_records: int = 0


class TableSize(msgspec.Struct, frozen=True):
    """The table of a topic as it is now: files that it names, their rows and bytes."""

    topic: str
    files: int
    records: int
    bytes: int


class Tables(msgspec.Struct, frozen=True):
    """The tables of topics with a cold tier, told until `valid_until` (seconds since the epoch)."""

    valid_until: float
    tables: list[TableSize]


def publish_totals(directory: Path, totals: Totals) -> None:
    """Put totals in the place of those before; raises OSError where the disk takes none."""
    _publish(directory / _TOTALS, totals)


def publish_tables(directory: Path, tables: Tables) -> None:
    """Put sizes of tables in the place of those before; raises OSError where the disk takes none."""
    _publish(directory / _TABLES, tables)


def totals(directory: Path) -> Totals | None:
    """Return what was counted; None where no archiver of this broker has acted yet."""
    return _read(directory / _TOTALS, Totals)


def tables(directory: Path) -> Tables | None:
    """Return the tables' sizes; None where no archiver of this broker acts."""
    return _read(directory / _TABLES, Tables)


def condensed(sizes: Sequence[TableSize], series_max: int) -> list[TableSize]:
    """Return at most `series_max` tables, the largest, and one named OTHER_TOPICS for the rest."""
    ordered = sorted(sizes, key=lambda each: (-each.bytes, each.topic))
    kept, rest = ordered[:series_max], ordered[series_max:]
    if rest:
        files, records = sum(each.files for each in rest), sum(each.records for each in rest)
        kept.append(TableSize(OTHER_TOPICS, files, records, sum(each.bytes for each in rest)))
    return kept


def _publish(path: Path, told: object) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(msgspec.json.encode(told))
    # A reader sees the old file or the new one, never half of either.
    new.replace(path)


def _read(path: Path, of: type[_Told]) -> _Told | None:
    # What cannot be read is of another version: an upgrade in place leaves the files where they are.
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=of)
    return None
