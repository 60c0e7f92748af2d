"""The table of a broker's processes: one row per child in memory that supervisor, workers, keeper and ops share.

The child that a row belongs to writes it. The supervisor writes it after the child has ended, and when a program of the
lake, which does not have this memory, reports that it is ready. Every field is written in one aligned store, so a
reader may see a row between two writes, but never half a number.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from dataclasses import dataclass
from enum import IntEnum

# Twice the most workers that the settings allow: a replacement runs beside the worker it replaces.
WORKER_ROWS = 2 * 1024
OPS_ROW = WORKER_ROWS
KEEPER_ROW = WORKER_ROWS + 1
LAKE_ROW = WORKER_ROWS + 2
ARCHIVER_ROW = WORKER_ROWS + 3
_ROWS = WORKER_ROWS + 4

NAMES = {KEEPER_ROW: "keeper", OPS_ROW: "ops", LAKE_ROW: "lake", ARCHIVER_ROW: "archiver"}
"""The processes that a broker has one of, by row; all other rows are workers'."""


class ProcessState(IntEnum):
    """What a child is doing.

    EMPTY: the row has no child; DEAD: its child died and will be replaced; OFF: the settings give its child no work.
    """

    EMPTY = 0
    STARTING = 1
    ACCEPTING = 2
    DRAINING = 3
    DEAD = 4
    OFF = 5


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One row as it was read."""

    index: int
    state: ProcessState
    pid: int
    started_at_ms: int

    @property
    def lives(self) -> bool:
        return self.state not in (ProcessState.EMPTY, ProcessState.DEAD)


class _SharedRow(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("state", "pid", "started_at_ms", "beats")]


class _SharedTable(ctypes.Structure):
    """The supervisor's own fields, and a row per child."""

    _fields_ = [("draining", ctypes.c_int64), ("restarts", ctypes.c_int64), ("rows", _SharedRow * _ROWS)]


class ProcessTable:
    """Made before the first fork; children inherit it without a file descriptor."""

    def __init__(self) -> None:
        self._shared = _SharedTable.from_buffer(mmap.mmap(-1, ctypes.sizeof(_SharedTable)))

    def start(self, index: int) -> None:
        """Take the row `index` for a child that is about to be forked."""
        row = self._shared.rows[index]
        row.state, row.pid, row.beats = ProcessState.STARTING, 0, 0
        row.started_at_ms = int(time.time() * 1000)

    def started(self, index: int, pid: int) -> None:
        self._shared.rows[index].pid = pid

    def beat(self, index: int) -> None:
        self._shared.rows[index].beats += 1

    def beats(self, index: int) -> int:
        return int(self._shared.rows[index].beats)

    def set(self, index: int, state: ProcessState) -> None:
        self._shared.rows[index].state = state

    def workers(self) -> list[ProcessRow]:
        """Return the row of every worker that lives or will be replaced, by index."""
        rows = (self.row(index) for index in range(WORKER_ROWS))
        return [row for row in rows if row.state is not ProcessState.EMPTY]

    def row(self, index: int) -> ProcessRow:
        process_row = self._shared.rows[index]
        return ProcessRow(index, ProcessState(process_row.state), process_row.pid, process_row.started_at_ms)

    @property
    def draining(self) -> bool:
        """Whether the supervisor is shutting down: nothing is ready any more."""
        return bool(self._shared.draining)

    def set_draining(self) -> None:
        self._shared.draining = 1

    @property
    def restarts(self) -> int:
        """How many children were started to replace one that died."""
        return int(self._shared.restarts)

    def count_restart(self) -> None:
        """Count one child started to replace one that died; called by the supervisor."""
        self._shared.restarts += 1
