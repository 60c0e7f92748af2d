"""The disk under the embedded server: how many bytes its files have, and how many are free for them.

Each call costs a few system calls on a handful of files: a directory that belongs to others is not entered.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_FILE_DIRECTORY = "appendonlydir"  # the server's own name for it (appenddirname)


class Disk:
    """The disk that holds one data directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def used_bytes(self) -> int:
        """Return the bytes of the files in the directory and in that of the append-only file; raises OSError."""
        total = _bytes_in(self._directory)
        with suppress(FileNotFoundError):  # the server has not made it yet
            total += _bytes_in(self._directory / _FILE_DIRECTORY)
        return total

    def free_bytes(self) -> int:
        """Return the bytes of the disk that are free for this process; raises OSError."""
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize


def _bytes_in(directory: Path) -> int:
    total = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            # The server replaces its files: one may vanish between the listing and its stat.
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
    return total
