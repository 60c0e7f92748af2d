"""The scoreboard: one row per child slot in memory that supervisor, workers and ops share.

Knows the layout of an anonymous shared mapping; nothing of processes, signals or sockets. A row is written by the
child that holds the slot; only when that child is gone does the supervisor write it. Every field is written in one
aligned store, so a reader may see a row between two writes, but never half a number.
"""

from __future__ import annotations

import mmap
import struct
import time
from enum import IntEnum
from typing import NamedTuple

# Slots are never more than twice the workers (a replacement runs beside the worker it replaces).
ROWS_MAX = 1024

_FIELD = struct.Struct("=q")
_ROW_BYTES = 4 * _FIELD.size
_STATE, _PID, _STARTED_AT_MS = range(3)
# The first row is the supervisor's own.
_DRAINING, _RESTARTS = range(2)


class State(IntEnum):
    """What a child is doing; `EMPTY` is a slot that nobody has used yet."""

    EMPTY = 0
    STARTING = 1
    ACCEPTING = 2
    DRAINING = 3
    DEAD = 4


class Row(NamedTuple):
    """One slot as it was read."""

    index: int
    state: State
    pid: int
    started_at_ms: int


class Scoreboard:
    """A shared table made before the first fork; children inherit it and no file descriptor."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, (ROWS_MAX + 1) * _ROW_BYTES)

    def start(self, index: int, pid: int) -> None:
        """Take the slot `index` (0 to ROWS_MAX - 1) for the process `pid`, which is starting."""
        self._write(index + 1, _STATE, State.STARTING)
        self._write(index + 1, _PID, pid)
        self._write(index + 1, _STARTED_AT_MS, int(time.time() * 1000))

    def set(self, index: int, state: State) -> None:
        """Say what the holder of the slot `index` is doing."""
        self._write(index + 1, _STATE, state)

    def rows(self) -> list[Row]:
        """Return every slot that was ever used, by index."""
        rows = (self._row(index) for index in range(ROWS_MAX))
        return [row for row in rows if row.state is not State.EMPTY]

    def count(self, state: State) -> int:
        """Return how many slots are in `state`."""
        return sum(row.state is state for row in self.rows())

    @property
    def draining(self) -> bool:
        """Whether the supervisor is on its way out."""
        return bool(self._read(0, _DRAINING))

    def set_draining(self) -> None:
        """Say that the supervisor is on its way out: nothing is ready any more."""
        self._write(0, _DRAINING, 1)

    @property
    def restarts(self) -> int:
        """How many children were started in the place of one that died."""
        return self._read(0, _RESTARTS)

    def count_restart(self) -> None:
        """Count one child started in the place of one that died; the supervisor's to call."""
        self._write(0, _RESTARTS, self.restarts + 1)

    def _row(self, index: int) -> Row:
        state = State(self._read(index + 1, _STATE))
        return Row(index, state, self._read(index + 1, _PID), self._read(index + 1, _STARTED_AT_MS))

    def _read(self, row: int, field: int) -> int:
        value: int = _FIELD.unpack_from(self._memory, row * _ROW_BYTES + field * _FIELD.size)[0]
        return value

    def _write(self, row: int, field: int, value: int) -> None:
        _FIELD.pack_into(self._memory, row * _ROW_BYTES + field * _FIELD.size, value)
