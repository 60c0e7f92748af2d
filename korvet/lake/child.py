"""The programs of a broker that work on its lake, as the supervisor starts them: `python -m MODULE FD`.

They are new programs, not forked, for neither deltalake nor Arrow nor Spark survives a fork. Nothing of these is
imported here: the archiver only waits at first.
"""

from __future__ import annotations

import os

import msgspec

from korvet.config.settings import Settings


class ChildConfig(msgspec.Struct, frozen=True):
    """The configuration of such a program; `path` is the socket of the reader, the archiver's directory of metrics."""

    settings: Settings
    path: str
    life_fd: int
    note_fd: int
    ready: bytes

    @classmethod
    def read(cls, fd: int) -> ChildConfig:
        """Return what the file FD holds as JSON; it may be read again."""
        return msgspec.json.decode(os.pread(fd, os.fstat(fd).st_size, 0), type=cls)

    def report_ready(self) -> None:
        """Report to the supervisor that the program does its work now."""
        os.write(self.note_fd, self.ready)

    def wait_for_end_of_supervisor(self) -> None:
        """Return when the supervisor is gone: nobody writes to the pipe, so reading it returns at its end."""
        os.read(self.life_fd, 1)
