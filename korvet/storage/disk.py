"""The disk under the embedded server: how much its files take, and how much is left for them.

Knows a directory; nothing of Redis, nor of what is too much. Each look is a few system calls on a handful of files.
"""

from __future__ import annotations

import os
from pathlib import Path


class Disk:
    """The disk that holds one data directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def used_bytes(self) -> int:
        """Return the bytes of the directory's files, those of its subdirectories too; raises OSError."""
        return _bytes_in(self._directory)

    def free_bytes(self) -> int:
        """Return the bytes of the disk that are free for this process; raises OSError."""
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize


def _bytes_in(directory: Path | str) -> int:
    total = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            # The server replaces its files: one may go between the listing and the look.
            try:
                if entry.is_dir(follow_symlinks=False):
                    total += _bytes_in(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
    return total
