"""The table of a broker's processes: one row per child in memory that supervisor, workers, keeper and ops share.

The child that a row belongs to writes it; only after the child has ended does the supervisor write it. Every field is
written in one aligned store, so a reader may see a row between two writes, but never half a number.
"""

from __future__ import annotations

import mmap
import struct
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

_FIELD = struct.Struct("=q")
_ROW_BYTES = 4 * _FIELD.size
_STATE, _PID, _STARTED_AT_MS, _BEATS = range(4)
# The first row is the supervisor's own.
_DRAINING, _RESTARTS = range(2)


class ProcessState(IntEnum):
    """What a child is doing; `EMPTY` is a row without a child, `DEAD` one whose child died and will be replaced."""

    EMPTY = 0
    STARTING = 1
    ACCEPTING = 2
    DRAINING = 3
    DEAD = 4


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One row as it was read."""

    index: int
    state: ProcessState
    pid: int
    started_at_ms: int

    @property
    def lives(self) -> bool:
        """Whether there is a process."""
        return self.state not in (ProcessState.EMPTY, ProcessState.DEAD)


class ProcessTable:
    """Made before the first fork; children inherit it without a file descriptor."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, (_ROWS + 1) * _ROW_BYTES)

    def start(self, index: int) -> None:
        """Take the row `index` for a child that is about to be forked."""
        self._write(index + 1, _STATE, ProcessState.STARTING)
        self._write(index + 1, _PID, 0)
        self._write(index + 1, _BEATS, 0)
        self._write(index + 1, _STARTED_AT_MS, int(time.time() * 1000))

    def started(self, index: int, pid: int) -> None:
        """Note the process of the row `index`; called by the child."""
        self._write(index + 1, _PID, pid)

    def beat(self, index: int) -> None:
        """Count a heartbeat of the row `index`; called by the child."""
        self._write(index + 1, _BEATS, self.beats(index) + 1)

    def beats(self, index: int) -> int:
        """Return how many heartbeats the child of the row `index` has sent."""
        return self._read(index + 1, _BEATS)

    def set(self, index: int, state: ProcessState) -> None:
        """Set what the child of the row `index` is doing."""
        self._write(index + 1, _STATE, state)

    def workers(self) -> list[ProcessRow]:
        """Return the row of every worker that lives or will be replaced, by index."""
        rows = (self.row(index) for index in range(WORKER_ROWS))
        return [row for row in rows if row.state is not ProcessState.EMPTY]

    def row(self, index: int) -> ProcessRow:
        """Return one row."""
        state = ProcessState(self._read(index + 1, _STATE))
        pid, started_at_ms = self._read(index + 1, _PID), self._read(index + 1, _STARTED_AT_MS)
        return ProcessRow(index, state, pid, started_at_ms)

    @property
    def draining(self) -> bool:
        """Whether the supervisor is shutting down."""
        return bool(self._read(0, _DRAINING))

    def set_draining(self) -> None:
        """Note that the supervisor is shutting down: nothing is ready any more."""
        self._write(0, _DRAINING, 1)

    @property
    def restarts(self) -> int:
        """How many children were started to replace one that died."""
        return self._read(0, _RESTARTS)

    def count_restart(self) -> None:
        """Count one child started to replace one that died; called by the supervisor."""
        self._write(0, _RESTARTS, self.restarts + 1)

    def _read(self, row: int, field: int) -> int:
        value: int = _FIELD.unpack_from(self._memory, row * _ROW_BYTES + field * _FIELD.size)[0]
        return value

    def _write(self, row: int, field: int, value: int) -> None:
        _FIELD.pack_into(self._memory, row * _ROW_BYTES + field * _FIELD.size, value)
