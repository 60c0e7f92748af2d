"""What the supervisor hands to a child it forked: its place, its addresses, and how to say what it is doing.

Knows the scoreboard and two pipes; imports no gevent, so that the supervisor may build one before the fork.

The scoreboard: one row per child slot in memory that supervisor, workers and ops share.

Knows the layout of a shared mapping; nothing of processes, signals or sockets. A row is written by the
child that holds the slot; only when that child is gone does the supervisor write it. Every field is written in one
aligned store, so a reader may see a row between two writes, but never half a number.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Self

from korvet.server import process as nameless
from korvet.server.supervisor.ports import Bound

# Twice the most workers that the settings allow: a replacement runs beside the worker it replaces.
WORKER_ROWS = 2 * 1024
OPS_ROW = WORKER_ROWS
KEEPER_ROW = WORKER_ROWS + 1
LAKE_ROW = WORKER_ROWS + 2
ARCHIVER_ROW = WORKER_ROWS + 3
_ROWS = WORKER_ROWS + 4

_FIELD = struct.Struct("=q")
_ROW_BYTES = 4 * _FIELD.size
_BYTES = (_ROWS + 1) * _ROW_BYTES
_STATE, _PID, _STARTED_AT_MS, _BEATS = range(4)
# The first row is the supervisor's own.
_DRAINING, _RESTARTS = range(2)


class State(IntEnum):
    """What a child is doing; `EMPTY` is a slot that nobody holds, `DEAD` one whose holder is to be replaced."""

    EMPTY = 0
    STARTING = 1
    ACCEPTING = 2
    DRAINING = 3
    DEAD = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One slot as it was read."""

    index: int
    state: State
    pid: int
    started_at_ms: int


class Scoreboard:
    """A shared table made before the first fork; children inherit it and no file descriptor.

    A file without a name holds it, so that it outlives the program that made it.
    """

    def __init__(self, fd: int | None = None) -> None:
        """Make a table, or use that of the file `fd`, which must have the size of one."""
        if fd is None:
            fd = nameless.file("korvet-scoreboard")
            os.ftruncate(fd, _BYTES)
        self._fd = fd
        self._memory = mmap.mmap(fd, _BYTES)

    @classmethod
    def shared(cls, fd: int) -> Self | None:
        """Return the table in the file `fd`, None where a version with other rows has made it."""
        return cls(fd) if os.fstat(fd).st_size == _BYTES else None

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._fd

    def close(self) -> None:
        """Close the file; the table stays."""
        with contextlib.suppress(OSError):
            os.close(self._fd)

    def start(self, index: int) -> None:
        """Take the slot `index` for a child that is about to be forked."""
        self._write(index + 1, _STATE, State.STARTING)
        self._write(index + 1, _PID, 0)
        self._write(index + 1, _BEATS, 0)
        self._write(index + 1, _STARTED_AT_MS, int(time.time() * 1000))

    def started(self, index: int, pid: int) -> None:
        """Say which process holds the slot `index`; the child's to call."""
        self._write(index + 1, _PID, pid)

    def beat(self, index: int) -> None:
        """Show that the holder of the slot `index` runs; the child's to call."""
        self._write(index + 1, _BEATS, self.beats(index) + 1)

    def beats(self, index: int) -> int:
        """Return how often the holder of the slot `index` has shown that it runs."""
        return self._read(index + 1, _BEATS)

    def set(self, index: int, state: State) -> None:
        """Say what the holder of the slot `index` is doing."""
        self._write(index + 1, _STATE, state)

    def workers(self) -> list[Row]:
        """Return the slot of every worker that lives or is to be replaced, by index."""
        rows = (self.row(index) for index in range(WORKER_ROWS))
        return [row for row in rows if row.state is not State.EMPTY]

    def row(self, index: int) -> Row:
        """Return one slot."""
        state = State(self._read(index + 1, _STATE))
        return Row(index, state, self._read(index + 1, _PID), self._read(index + 1, _STARTED_AT_MS))

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

    def _read(self, row: int, field: int) -> int:
        value: int = _FIELD.unpack_from(self._memory, row * _ROW_BYTES + field * _FIELD.size)[0]
        return value

    def _write(self, row: int, field: int, value: int) -> None:
        if row > _ROWS:
            return  # of a child that another version of Korvet started: its rows are in its own table
        _FIELD.pack_into(self._memory, row * _ROW_BYTES + field * _FIELD.size, value)


READY_NOTE = struct.Struct("=q")

BEAT_SECONDS = 2.0
"""How often a worker shows that its event loop runs."""


@dataclass(frozen=True, slots=True)
class ChildSlot:
    """The place of one child among its siblings; no two living children hold the same.

    `life_fd` is a pipe that nobody writes to: it reads end-of-file once the supervisor is gone, however it went,
    and then the child must end. `note_fd` is the pipe on which a child tells the supervisor that it is ready.
    """

    index: int
    name: str
    scoreboard: Scoreboard
    life_fd: int
    note_fd: int

    def ready(self) -> None:
        """Tell supervisor and ops that this child does its work from now on; to be called once."""
        self.scoreboard.set(self.index, State.ACCEPTING)
        # Less than PIPE_BUF, so notes of several children never mix.
        os.write(self.note_fd, READY_NOTE.pack(os.getpid()))

    def beat(self) -> None:
        """Show the supervisor that this child runs; again and again, from the first time on."""
        self.scoreboard.beat(self.index)

    def draining(self) -> None:
        """Tell ops that this child takes no new work."""
        self.scoreboard.set(self.index, State.DRAINING)


@dataclass(frozen=True, slots=True)
class WorkerSlot(ChildSlot):
    """A worker's place.

    `listeners` are where it binds sockets of its own and what clients are told, `data` is the directory of the
    embedded server and `lake` the socket of the process that reads the lake, each None where there is none.
    """

    listeners: tuple[Bound, ...]
    data: Path | None
    lake: Path | None = None

    @classmethod
    def of(
        cls,
        slot: ChildSlot,
        listeners: tuple[Bound, ...],
        data: Path | None,
        lake: Path | None = None,
    ) -> Self:
        """Return the worker's form of `slot`."""
        return cls(slot.index, slot.name, slot.scoreboard, slot.life_fd, slot.note_fd, listeners, data, lake)


@dataclass(frozen=True, slots=True)
class KeeperSlot(ChildSlot):
    """The keeper's place.

    `listeners` tell what clients are told, `incarnation` tells this start of the broker from every other, and `figures`
    is the directory where ops looks for figures of the logs, None where nobody asks for them.
    """

    listeners: tuple[Bound, ...]
    incarnation: str
    figures: Path | None

    @classmethod
    def of(
        cls, slot: ChildSlot, listeners: tuple[Bound, ...], incarnation: str, figures: Path | None
    ) -> Self:
        """Return the keeper's form of `slot`."""
        return cls(
            slot.index,
            slot.name,
            slot.scoreboard,
            slot.life_fd,
            slot.note_fd,
            listeners,
            incarnation,
            figures,
        )
