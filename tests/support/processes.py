"""Real processes for tests: started so that they end with the test run, watched through /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

WAIT_SECONDS_MAX = 30.0

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def dying_with_tests(command: Sequence[str | Path]) -> list[str | Path]:
    """Return a command whose process the kernel kills with its parent.

    Not by `preexec_fn`: a child that runs Python between fork and exec may wait forever for what another thread held.
    """
    return ["setpriv", "--pdeathsig", "KILL", *command]


def die_with_tests() -> None:
    """Ask the kernel to kill this process with its parent; for a child that runs Python anyway."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def logged(command: Sequence[str], log: Path, **given: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that writes all to a file; end it after the block, in an orderly way."""
    with log.open("wb") as file:
        process = subprocess.Popen(dying_with_tests(command), stdout=file, stderr=file, **given)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(4 * WAIT_SECONDS_MAX)


def wait_until(holds: Callable[[], object], what: str, seconds: float = WAIT_SECONDS_MAX) -> None:
    """Wait until `holds()` is true; fails naming `what` when that takes unreasonably long."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds} s without success: {what}"
        time.sleep(0.02)


def _stat(pid: int) -> list[str]:
    """Return what the kernel says of a process: its state, its parent, ...; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not reaped yet does not."""
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process."""
    return _stat(pid)[:1] == ["T"]


def parent(pid: int) -> int:
    """Return the parent's process id, 0 for a process that is gone."""
    stat = _stat(pid)
    return int(stat[1]) if stat else 0


def children(pid: int) -> set[int]:
    """Return the living children of a process."""
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {child for child in pids if parent(child) == pid and alive(child)}


def descendants(pid: int) -> set[int]:
    """Return the living children of a process, and theirs."""
    result = children(pid)
    return result.union(*(descendants(child) for child in result))


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process that may be gone."""
    if alive(pid):
        os.kill(pid, number)


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop processes within the block: they take what they are sent, and do and answer nothing (SIGSTOP)."""
    for pid in pids:
        kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(is_stopped(pid) or not alive(pid) for pid in pids), "the processes are stopped")
    try:
        yield
    finally:
        for pid in pids:
            kill(pid, signal.SIGCONT)


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now, for a server that cannot choose one itself.

    None of those that the kernel gives away (32768 and above, by default): tests beside this one ask for many. And none
    twice, in no process of the tests: the server that it is for may start later, or again. So each port has a name that
    its process holds as long as it lives, and a socket that listens to nothing: who wants the port alone is refused, a
    server with SO_REUSEADDR or SO_REUSEPORT, as those of tests, gets it.
    """
    while True:
        port = random.randrange(20_000, 30_000)
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        held = socket.socket()
        try:
            claim.bind(f"\0korvet-tests-port-{port}")
            socket.create_server(("127.0.0.1", port)).close()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            held.close()
        else:
            claim.detach()  # both are open until the process ends
            held.detach()
            return port
