"""The directory of a running broker, and the file in it by which other commands of this machine find the broker.

The directory holds what need not survive a restart: metrics of the processes, and this file. The file must be true also
after the broker was killed: it counts only while the process that it names lives and belongs to the file's owner.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from korvet.config.values import Address
from korvet.errors import ConfigError
from korvet.telemetry.snapshot import replace_file

_SERVICE = "/run/korvet"
"""Where systemd makes the directories of units whose RuntimeDirectory is `korvet`, or begins so."""


def make_private(path: Path) -> None:
    """Make the directory `path`, or take the one there; raises ConfigError unless it is this user's alone."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    # In a directory open to all users the name may be somebody else's, who would then read what is put there.
    result = path.lstat()
    if not stat.S_ISDIR(result.st_mode) or result.st_uid != os.getuid() or result.st_mode & 0o077:
        raise ConfigError(f"{path} is not a private directory of this user: remove it")


@contextlib.contextmanager
def directory_for(address: Address) -> Iterator[Path]:
    """Give an empty private directory for the broker that holds the port of `address`, and remove it.

    The name is the port's, so what a killed broker left is found and removed by the next one on the same port. A broker
    of another container may have that port too and the same directory for temporary files: a lock says that the
    directory is taken, and keeps systemd-tmpfiles from it. Raises ConfigError.
    """
    host = address.host.replace(":", "_")
    path = _base() / f"korvet-{os.getuid()}-{host}-{address.port}"
    try:
        fd = _locked(path)
        for number in range(2, _BROKERS_MAX):
            if fd is not None:
                break
            path = path.with_name(f"korvet-{os.getuid()}-{host}-{address.port}-{number}")
            fd = _locked(path)
        if fd is None:
            raise ConfigError(f"{path}: {_BROKERS_MAX} brokers with this port use {path.parent}")
        for entry in path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def _locked(path: Path) -> int | None:
    """Return a directory, made if it is not there, opened and locked; None if another broker has or removes it."""
    try:
        make_private(path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        if not path.parent.exists():
            raise
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), path.lstat()):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(fd)
        raise
    os.close(fd)  # another one's, or removed before it was locked
    return None


def of_all() -> list[Path]:
    """Return the directories of all brokers of this machine that this user may see, killed ones too."""
    result = set(_base().glob("korvet-*"))
    result.update(Path(tempfile.gettempdir()).glob("korvet-*"))
    result.update(Path(_SERVICE).parent.glob(f"{Path(_SERVICE).name}*/korvet-*"))
    return sorted(result)


def _base() -> Path:
    # What a service manager made for this service alone, which goes with it.
    given = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(given or tempfile.gettempdir())


_BROKERS_MAX = 100
"""With one port in one directory, each in a network of its own."""
_NAME = "supervisor.json"
_BYTES_MAX = 64 * 1024


class RunState(msgspec.Struct, frozen=True):
    """One broker: its supervisor's process id, its version and address, and how its last reload went.

    `reloads` counts those that have ended; `succeeded` and `message` are of the last of them; `busy`: one is under way.
    """

    pid: int
    version: str
    listen: str
    reloads: int = 0
    succeeded: bool = True
    message: str = ""
    busy: bool = False


def write(directory: Path, state: RunState) -> None:
    """Write `state` for others to see; a full disk costs them the news and the broker nothing."""
    with contextlib.suppress(OSError):
        replace_file(directory / _NAME, msgspec.json.encode(state))


def read(directory: Path) -> RunState | None:
    """Return the state of the broker of `directory`, None if none runs."""
    try:
        content, owner = _content(directory / _NAME)
        state = msgspec.json.decode(content, type=RunState)
        # Every user may leave a file in a directory for temporary files: none may name a process of another user.
        return state if owner == _owner(state.pid) else None
    except (OSError, msgspec.DecodeError):
        return None


def running() -> dict[Path, RunState]:
    """Return the brokers that run on this machine, as far as this user may see them, by directory."""
    return {directory: state for directory in of_all() if (state := read(directory)) is not None}


def _content(path: Path) -> tuple[bytes, int]:
    """Return the content and the user of a file; raises OSError if it is no regular file, which could block."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Of what was opened: by its path another one could be found by now.
        result = os.fstat(fd)
        if not stat.S_ISREG(result.st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return os.read(fd, _BYTES_MAX), result.st_uid
    finally:
        os.close(fd)


def _owner(pid: int) -> int:
    """Return the user of a process; raises OSError if there is none, or if it cannot be seen and is another's."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except FileNotFoundError:
        # With ProtectProc=invisible and PrivateUsers=yes the reload of a unit does not see its own main process.
        os.kill(pid, 0)
        return os.getuid()
