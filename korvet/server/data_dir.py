"""The data directory of the embedded server: made private, and locked for one supervisor and one server.

Two locks: `lock` belongs to the supervisor, `server.lock` to the server
process itself, which inherits the descriptor. So the second stays held for as long as any server still writes there,
and no server can start beside it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from korvet.errors import ConfigError
from korvet.redis.embedded_socket import socket_of
from korvet.server.supervisor.run_state import make_private


class LockedError(Exception):
    """The lock is held; `pid` is what its holder wrote into the file, 0 when nothing readable."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"held by process {pid}")
        self.pid = pid


class DataDir:
    """A directory that this process holds the lock of, from `open_locked` to `close`."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self.socket = socket_of(path)
        if self.socket.parent != path:
            make_private(self.socket.parent)
        self.lock_fd = lock_fd

    def lock_server(self) -> int:
        """Return a descriptor of the server's lock, for the server to inherit; raises LockedError."""
        return _locked(self.path / "server.lock")

    def note_server(self, pid: int) -> None:
        """Write down the process that holds the server's lock."""
        (self.path / "server.lock").write_text(f"{pid}\n")

    def remove_socket(self) -> None:
        """Remove the socket of a server that has ended, and the directory that was made for it alone."""
        self.socket.unlink(missing_ok=True)
        if self.socket.parent != self.path:
            self.socket.parent.rmdir()

    def close(self) -> None:
        """Release the supervisor's lock."""
        os.close(self.lock_fd)


def open_locked(path: Path) -> DataDir:
    """Make `path` where it is missing, lock it and note this process as its owner; ConfigError when it cannot be."""
    path = path.expanduser().absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_fd = _locked(path / "lock")
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
        return DataDir(path.resolve(), lock_fd)
    except LockedError as error:
        owner = f"process {error.pid}" if error.pid else "another process"
        raise ConfigError(
            f"data.dir {path} is in use by {owner}: stop it, or give another --data-dir"
        ) from None
    except OSError as error:
        raise ConfigError(f"data.dir {path}: {error.strerror or error}") from None


def _locked(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(fd, 32).strip()
        os.close(fd)
        raise LockedError(int(text) if text.isdigit() else 0) from None
    except OSError:
        os.close(fd)
        raise
    return fd
