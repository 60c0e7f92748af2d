"""Values of prometheus_client in memory-mapped files whose loss fails nothing but the page of metrics.

Imported by `snapshot.adopt` alone: prometheus_client reads the environment when it is imported.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import mmap_dict, values

from korvet.logs import Log

_FILE_BYTES = 65_536
"""As prometheus_client begins a file."""
_ENTRY_BYTES_MAX = 16_384
"""More than the name and the labels of a metric take."""

_log = Log(__name__)


class _AllocatedFile(mmap_dict.MmapedDict):
    """A file that has room on the disk for what is written: a page without room would end the process (SIGBUS)."""

    _f: Any
    _m: mmap.mmap
    _capacity: int
    _used: int

    def __init__(self, filename: str, read_mode: bool = False) -> None:  # noqa: FBT001, FBT002 - its signature
        with Path(filename).open("ab") as file:
            _reserve(file.fileno(), 0, max(file.tell(), _FILE_BYTES))
        super().__init__(filename, read_mode)  # type: ignore[no-untyped-call]  # untyped there

    def _init_value(self, key: str) -> None:
        while self._capacity - self._used < _ENTRY_BYTES_MAX:
            _reserve(self._f.fileno(), self._capacity, self._capacity)
            self._capacity *= 2
            self._m = mmap.mmap(self._f.fileno(), self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]  # untyped there


def _reserve(fd: int, start: int, size: int) -> None:
    """Let a file have `size` bytes from `start`; raises OSError if the disk is full, which macOS cannot say."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, start, size)
    else:
        os.ftruncate(fd, start + size)


def of(process: str) -> Callable[..., object]:
    """Return what makes a value in the files of `process`.

    A value whose file cannot be opened, or has no room, stays in this process: it is missing on the page of metrics.
    """
    setattr(values, "MmapedDict", _AllocatedFile)  # noqa: B010 - the name by which it makes files, not exported
    published = values.MultiProcessValue(lambda: process)  # type: ignore[no-untyped-call]  # untyped there
    warned = False

    def value(*args: object, **kwargs: object) -> object:
        nonlocal warned
        try:
            return published(*args, **kwargs)
        except OSError as error:
            if not warned:
                _log.warning("metrics that begin now are not published", reason=error)
            warned = True
            return values.MutexValue(*args, **kwargs)  # type: ignore[no-untyped-call]  # untyped there

    return value
