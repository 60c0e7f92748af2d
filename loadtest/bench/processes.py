"""Processes of the benchmark: started so that none outlives it, and what /proc reports about their trees.

Knows Linux; nothing of Kafka or Redis.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

STOP_SECONDS_MAX = 40.0
_SETTLE_SECONDS, _SETTLE_SECONDS_MAX = 3.0, 60.0
_SETTLED_SHARE = 0.1
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_TICKS = os.sysconf("SC_CLK_TCK")
_ESTABLISHED = "01"


class NotAvailableError(Exception):
    """Something the benchmark would measure, or needs, cannot be had here; says what and why in one line."""


class Cpu(NamedTuple):
    """CPU seconds, user and system, of a tree of processes: of its Redis server and of all others."""

    broker: float
    redis: float

    def since(self, before: Cpu) -> Cpu:
        """Return what was used between `before` and this."""
        return Cpu(self.broker - before.broker, self.redis - before.redis)

    @property
    def total(self) -> float:
        """Both together."""
        return self.broker + self.redis


def allow_files() -> None:
    """Raise the limit of open files as far as it goes: 10,000 partitions are as many files in Kafka."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(hard, 200_000) if os.geteuid() == 0 else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
    except (ValueError, PermissionError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def in_use(port: int) -> bool:
    """Tell whether somebody listens on a port of 127.0.0.1."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def spawn(
    command: Sequence[str | Path], log: Path, *, pipes: bool = False, cwd: Path | None = None
) -> subprocess.Popen[str]:
    """Start a program in a session of its own, which a Ctrl-C does not reach, and that dies with this process.

    What it prints goes to `log`; with `pipes` its stdin and stdout are pipes.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else output,
            stderr=output,
            cwd=cwd,
            text=True,
            start_new_session=True,
            # This process has one thread, so there is no lock that this could find taken.
            preexec_fn=die_with_parent,  # noqa: PLW1509 - as said above
        )


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


def die_with_parent() -> None:
    """Have this process killed when its parent ends; for the child, between fork and exec."""
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


def _stat(pid: int) -> list[str]:
    """Return the fields after the name in /proc/<pid>/stat, none for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    fields = text.rpartition(")")[2].split()
    return [] if fields[0] in ("Z", "X") else fields


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
    found: dict[int, str] = {}
    pending = [root]
    while pending:
        pid = pending.pop()
        if started := _started(pid):
            found[pid] = started
        pending += children.get(pid, [])
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def cpu(root: int) -> Cpu:
    """Return the CPU time that a tree has used so far, ended children that were waited for included."""
    broker = redis = 0
    for pid in tree(root):
        fields = _stat(pid)
        if not fields:
            continue
        # Of ended children too: Redis rewrites its append-only file in a child that comes and goes.
        ticks = sum(map(int, fields[11:15]))
        if _name(pid).startswith(("valkey", "redis")):
            redis += ticks
        else:
            broker += ticks
    return Cpu(broker / _TICKS, redis / _TICKS)


def settle(root: int) -> None:
    """Wait until the work that a request has started is done: Kafka answers before its partitions are all there."""
    deadline = time.monotonic() + _SETTLE_SECONDS_MAX
    while time.monotonic() < deadline:
        before = cpu(root)
        time.sleep(_SETTLE_SECONDS)
        if cpu(root).since(before).total < _SETTLE_SECONDS * _SETTLED_SHARE:
            return


def _memory_kib(pid: int, name: str) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}:")), 0)


def resident_mib(root: int) -> float:
    """Return the memory of a tree, pages that several processes share counted once."""
    return sum(_memory_kib(pid, "Pss") for pid in tree(root)) / 1024


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
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == _ESTABLISHED:
                inodes.add(fields[9])
    counts = {pid: len(_sockets(pid) & inodes) for pid in tree(root)}
    return {pid: count for pid, count in counts.items() if count}


def process_mib(pid: int) -> float:
    """Return the resident memory of one process, shared pages included."""
    return _memory_kib(pid, "Rss") / 1024
