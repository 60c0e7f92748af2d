"""What the supervisor hands to a child it forked: its place, its addresses, and how to say what it is doing.

Imports no gevent: the supervisor makes one before each fork.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from korvet.server.supervisor.ports import Bound
from korvet.telemetry.process_table import ProcessState, ProcessTable

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
    table: ProcessTable
    life_fd: int
    note_fd: int

    def ready(self) -> None:
        """Tell supervisor and ops that this child does its work from now on; to be called once."""
        self.table.set(self.index, ProcessState.ACCEPTING)
        # Less than PIPE_BUF, so notes of several children never mix.
        os.write(self.note_fd, READY_NOTE.pack(os.getpid()))

    def beat(self) -> None:
        """Show the supervisor that this child runs; again and again, from the first time on."""
        self.table.beat(self.index)

    def draining(self) -> None:
        """Tell ops that this child takes no new work."""
        self.table.set(self.index, ProcessState.DRAINING)


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
        return cls(slot.index, slot.name, slot.table, slot.life_fd, slot.note_fd, listeners, data, lake)


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
            slot.table,
            slot.life_fd,
            slot.note_fd,
            listeners,
            incarnation,
            figures,
        )
