"""Files in which the processes of a broker publish metrics, in a directory that is removed when the broker ends.

Two kinds. What a process counts itself lies in memory-mapped files of prometheus_client, one set per process name. They
never forget a label: they would report deleted topics, and logs that a keeper without the lease read long ago. So what
is true only now, or of topics, is published as a Snapshot: one file per publisher, in msgpack, replaced as a whole.

A process name is its slot ("worker0", "keeper"), not its process id: the counters of a replaced worker go on, and files
do not pile up. Files named `*.live` are removed when their process ends, `*.kept` are continued by its successor.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path
from typing import ClassVar, TypeVar

import msgspec

from korvet.telemetry.stats import (
    GroupLag,
    GroupStats,
    LakeLag,
    LogStats,
    PipelineLoss,
    PipelineStats,
    TableSize,
)

_INTERVALS_VALID = 3
_SECONDS_VALID_MIN = 30.0

_own: list[tuple[Path, str]] = []


class Snapshot(msgspec.Struct, kw_only=True):
    """What a publisher reports at a time; after `valid_until` (seconds since the epoch) it is not shown."""

    FILE: ClassVar[str]
    valid_until: float = math.inf


T = TypeVar("T", bound=Snapshot)


class LogStatsSnapshot(Snapshot, kw_only=True):
    """All logs, groups and transactions, from the keeper with the lease.

    `states` counts all groups by state, `transactions` all transactional ids; the oldest open transaction is
    `transaction_age_ms` old, None without one.
    """

    FILE = "logs_keeper.live"
    taken_at: float
    logs: list[LogStats]
    lags: list[GroupLag] = []
    groups: list[GroupStats] = []
    states: dict[str, int] = {}
    transactions: dict[str, int] = {}
    transaction_age_ms: int | None = None


class LakeLagSnapshot(Snapshot, kw_only=True):
    """How far logs are archived, from the keeper with the lease: it sees this whichever archiver runs, or none."""

    FILE = "lake-lags_keeper.live"
    lags: list[LakeLag]


class PipelinesSnapshot(Snapshot, kw_only=True):
    """What pipelines have reported, from the keeper with the lease: it reads this wherever they run, or none."""

    FILE = "pipelines_keeper.live"
    pipelines: list[PipelineStats]
    losses: list[PipelineLoss] = []


class TablesSnapshot(Snapshot, kw_only=True):
    """The tables of all archived topics, from the archiver with the lease."""

    FILE = "tables_archiver.live"
    tables: list[TableSize]


class ArchiverTotals(Snapshot, kw_only=True):
    """What archivers counted since the broker started. `rounds` and `upkeeps` are by outcome; bytes are of files."""

    FILE = "totals_archiver.kept"
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


def valid_until(interval_ms: int) -> float:
    """Return until when a snapshot is valid that is published every `interval_ms`: one turn may come late, or fail.

    At least half a minute: on a busy machine turns come seconds late, and a gauge that comes and goes misleads.
    """
    return time.time() + max(_INTERVALS_VALID * interval_ms / 1000, _SECONDS_VALID_MIN)


def publish(path: Path, snapshot: Snapshot) -> None:
    """Replace the snapshot in the file `path`; raises OSError."""
    replace_file(path, msgspec.msgpack.encode(snapshot))


def replace_file(path: Path, content: bytes) -> None:
    """Write a file as a whole: a reader sees the old one or the new one, never half of either. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    new.replace(path)


def read(path: Path, kind: type[T]) -> T | None:
    """Return the snapshot in the file `path`, None if there is none that is valid.

    An archiver that starts after an upgrade of the package may write what the running broker cannot read.
    """
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        snapshot = msgspec.msgpack.decode(path.read_bytes(), type=kind)
        if time.time() <= snapshot.valid_until:
            return snapshot
    return None


def withdraw(directory: Path, process: str) -> None:
    """Remove the live snapshots of a process that no longer updates them."""
    for path in directory.glob(f"*_{process}.live"):
        path.unlink(missing_ok=True)


def forget_live(directory: Path, process: str) -> None:
    """Remove what a process that has ended reported of the present: its live snapshots and gauges."""
    withdraw(directory, process)
    for path in directory.glob(f"gauge_live*_{process}.db"):
        path.unlink(missing_ok=True)


def adopt(directory: Path, process: str) -> None:
    """Publish the metrics of this process in `directory`; to be called before `korvet.telemetry.metrics` is imported.

    prometheus_client reads the environment when it is imported, and chooses its kind of values then. It splits file
    names at underscores, so `process` must have none.
    """
    _own[:] = [(directory, process)]
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(directory)
    from prometheus_client import values  # noqa: PLC0415 - must not be imported before the line above

    from korvet.telemetry import published_values  # noqa: PLC0415 - the same

    values.ValueClass = published_values.of(process)


def own_file(name: str) -> Path | None:
    """Return the path of this process's file `name`, with its process name for "{}"; None without `adopt`."""
    if not _own:
        return None
    directory, process = _own[0]
    return directory / name.format(process)
