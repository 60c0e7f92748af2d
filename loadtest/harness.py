"""What all load tests share: processes that end with them, a broker on empty data, many requests at once, and /proc.

Nothing here is imported by Korvet.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from korvet.protocol.messages.metadata import MetadataRequest
from tests.support.processes import free_port
from tests.support.wire_client import ClosedByBrokerError, WireClient

ROOT = Path(__file__).parents[1]
START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 40.0
_PAUSE_SECONDS = 0.01
_SETTLE_SECONDS, _SETTLE_SECONDS_MAX = 3.0, 60.0
_SETTLED_SHARE = 0.1
_SILENCE_MS_MAX = 10_000
_METADATA = 8  # a version that every broker speaks
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_TICKS = os.sysconf("SC_CLK_TCK")
_ESTABLISHED = "01"


class NotAvailableError(Exception):
    """Something that would be measured, or is needed, cannot be had here; says what and why in one line."""


# Processes


def allow_files() -> None:
    """Raise the limit of open files as far as it goes: 10,000 partitions are as many files in Kafka."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(hard, 200_000) if os.geteuid() == 0 else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
    except (ValueError, PermissionError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def interrupt(*_: object) -> None:
    """Handle a signal as Ctrl-C is handled."""
    raise KeyboardInterrupt


def spawn(
    command: Sequence[str | Path], log: Path | None = None, *, pipes: bool = False, cwd: Path = ROOT
) -> subprocess.Popen[str]:
    """Start a program in a session of its own, which a Ctrl-C does not reach, and that dies with this process.

    What it prints goes to `log`, or where this process prints; with `pipes` its stdin and stdout are pipes.
    """
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("ab")) if log else None
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else output,
            stderr=output,
            cwd=cwd,
            text=True,
            start_new_session=True,
            # This process has one thread, so there is no lock that this could find taken.
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - as said above
        )


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def stop(process: subprocess.Popen[str] | None) -> None:
    """End a process and all that it started: SIGTERM, a bounded wait, SIGKILL."""
    if process is None:
        return
    family = tree(process.pid)
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid, started in family.items():
        if pid != process.pid and _started(pid) == started:
            os.kill(pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def tail(log: Path) -> str:
    """Return the last line of a log that says something."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


@contextlib.contextmanager
def pinned(cpus: Collection[int]) -> Iterator[None]:
    """Run what is started within on these cores only, for as long as it lives."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pin(pid: int, cpus: Collection[int]) -> None:
    """Run a process, with all threads that it has, on these cores only from now on, as `taskset -a` does."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cpus)


# CPU and memory


class Cpu(NamedTuple):
    """CPU seconds, user and system, of a tree of processes: of its Redis server and of all others."""

    broker: float
    redis: float

    def since(self, before: Cpu) -> Cpu:
        """Return what was used between `before` and this."""
        return Cpu(self.broker - before.broker, self.redis - before.redis)

    def us(self, count: float) -> Cpu:
        """Return the share of one of `count` requests or records, in microseconds."""
        return Cpu(self.broker / count * 1e6, self.redis / count * 1e6)

    @property
    def total(self) -> float:
        """Both together."""
        return self.broker + self.redis


def _read(pid: int, name: str) -> str:
    """Return a file of a process in /proc, empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _stat(pid: int) -> list[str]:
    """Return the fields after the name in /proc/<pid>/stat, none for a process that is gone."""
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return [] if not fields or fields[0] in ("Z", "X") else fields


def _started(pid: int) -> str:
    """When a process started, in ticks: with its id it names a process for good; empty for one that is gone."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def tree(root: int) -> dict[int, str]:
    """Return the living processes that descend from `root`, itself included, with their start times."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (fields := _stat(int(path.name))):
            children.setdefault(int(fields[1]), []).append(int(path.name))
    family: dict[int, str] = {}
    pending = [root]
    while pending:
        pid = pending.pop()
        if started := _started(pid):
            family[pid] = started
        pending += children.get(pid, [])
    return family


def is_redis(pid: int) -> bool:
    """Whether a process is a Redis or Valkey server."""
    return _read(pid, "comm").startswith(("valkey", "redis"))


def cpu(root: int) -> Cpu:
    """Return the CPU time that a tree has used so far, ended children that were waited for included."""
    broker = redis = 0
    for pid in tree(root):
        # Of ended children too: Redis rewrites its append-only file in a child that comes and goes.
        ticks = sum(map(int, _stat(pid)[11:15]))
        if is_redis(pid):
            redis += ticks
        else:
            broker += ticks
    return Cpu(broker / _TICKS, redis / _TICKS)


def ran_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time that the threads of some processes have used; finer than `cpu`, whose ticks are 10 ms."""
    threads = (thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def settle(root: int) -> None:
    """Wait until the work that a request has started is done: Kafka answers before its partitions are all there."""
    deadline = time.monotonic() + _SETTLE_SECONDS_MAX
    while time.monotonic() < deadline:
        before = cpu(root)
        time.sleep(_SETTLE_SECONDS)
        if cpu(root).since(before).total < _SETTLE_SECONDS * _SETTLED_SHARE:
            return


def _memory_kib(pid: int, name: str) -> int:
    lines = _read(pid, "smaps_rollup").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def resident_mib(root: int) -> float:
    """Return the memory of a tree, pages that several processes share counted once."""
    return sum(_memory_kib(pid, "Pss") for pid in tree(root)) / 1024


def process_mib(pid: int) -> float:
    """Return the resident memory of one process, shared pages included."""
    return _memory_kib(pid, "Rss") / 1024


def _sockets(pid: int) -> set[str]:
    """Return the inodes of a process's sockets."""
    inodes = set()
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            target = str(descriptor.readlink()) if descriptor.is_symlink() else ""
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return inodes


def connections(root: int, port: int) -> dict[int, int]:
    """Return how many established connections to `port` each process of a tree holds, those with none left out."""
    inodes = set()
    for table_of in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table_of}").read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == _ESTABLISHED:
                inodes.add(fields[9])
    counts = {pid: len(_sockets(pid) & inodes) for pid in tree(root)}
    return {pid: count for pid, count in counts.items() if count}


# Brokers and requests


def await_metadata(address: tuple[str, int]) -> None:
    """Ask for metadata until a broker names itself in the answer; NotAvailableError when that takes too long."""
    deadline = time.monotonic() + START_SECONDS_MAX
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ClosedByBrokerError), WireClient(address) as client:
            if client.call(request, _METADATA).brokers:
                return
        time.sleep(_PAUSE_SECONDS)
    raise NotAvailableError(f"no metadata within {START_SECONDS_MAX:.0f} s")


class Broker:
    """`korvet serve` on empty data, with defaults but for `settings` (NAME=VALUE); a context manager that ends it."""

    def __init__(self, directory: Path, settings: Iterable[str] = (), checkout: Path = ROOT) -> None:
        """Take the code in `checkout`."""
        self.address = ("127.0.0.1", free_port())
        self.bootstrap = f"127.0.0.1:{self.address[1]}"
        self.log = directory / "broker.log"
        self.data_dir = directory / "data"
        own = (
            f"listen={self.bootstrap}",
            f"ops.listen=127.0.0.1:{free_port()}",
            f"data.dir={self.data_dir}",
        )
        flags = [word for value in (*own, *settings) for word in ("--set", value)]
        self._command = [sys.executable, "-m", "korvet", "serve", *flags]
        self._checkout = checkout
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._process = spawn(self._command, self.log, cwd=self._checkout)
        try:
            await_metadata(self.address)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._process)

    @property
    def pid(self) -> int:
        """The supervisor."""
        assert self._process is not None
        return self._process.pid

    def used(self, servers: Iterable[int] = ()) -> Cpu:
        """Return the CPU time of all processes so far; `servers` are those of Redis that it did not start."""
        redis = [pid for pid in tree(self.pid) if is_redis(pid)]
        others = tree(self.pid).keys() - set(redis)
        return Cpu(ran_seconds(others), ran_seconds([*redis, *servers]))


def drive(address: tuple[str, int], frames: Sequence[Sequence[bytes]], in_flight: int, requests: int) -> None:
    """Send `requests` in all: each connection goes through frames of its own, again and again, several under way."""
    received: dict[int, bytearray] = {}
    by_number: dict[int, tuple[socket.socket, itertools.cycle[bytes]]] = {}
    poller = select.poll()
    with contextlib.ExitStack() as stack:
        for own in frames:
            connection = stack.enter_context(socket.create_connection(address))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            poller.register(connection, select.POLLIN)
            received[connection.fileno()] = bytearray()
            turns = itertools.cycle(own)
            by_number[connection.fileno()] = connection, turns
            connection.sendall(b"".join(itertools.islice(turns, in_flight)))
        under_way = len(frames) * in_flight
        left = requests - under_way
        while under_way:
            readable = poller.poll(_SILENCE_MS_MAX)
            if not readable:
                raise NotAvailableError(f"{under_way} requests were not answered")
            for descriptor, _ in readable:
                data, (connection, turns) = received[descriptor], by_number[descriptor]
                piece = connection.recv(1 << 18)
                if not piece:
                    raise NotAvailableError("the broker closed a connection")
                data += piece
                answered = 0
                while len(data) >= 4 and len(data) >= 4 + struct.unpack_from(">i", data)[0]:
                    del data[: 4 + struct.unpack_from(">i", data)[0]]
                    answered += 1
                more = min(answered, max(left, 0))
                connection.sendall(b"".join(itertools.islice(turns, more)))
                left -= more
                under_way += more - answered


# Tables


def table(head: Sequence[str], rows: Iterable[Sequence[str | float]]) -> str:
    """Return rows below a head, in columns: text begins at the left, numbers end at the right."""
    whole: list[Sequence[str | float]] = [head, *rows]
    texts = [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in whole]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right = [not isinstance(cell, str) for cell in whole[-1]]
    lines = []
    for row in texts:
        cells = zip(row, widths, right, strict=True)
        line = [cell.rjust(width) if at_right else cell.ljust(width) for cell, width, at_right in cells]
        lines.append("  ".join(line).rstrip())
    return "\n".join(lines)


def number(value: float) -> str:
    """Return a figure with three digits that mean something."""
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
