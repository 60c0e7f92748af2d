"""Signals as events: a handler only writes a byte to a pipe (`signal.set_wakeup_fd`), and the supervisor reads it."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_STOPPING = frozenset({signal.SIGTERM, signal.SIGINT})


class StoppedError(Exception):
    """A signal, whose name this says, asked the process to end while it was still starting."""


class Signals:
    """The signals of HANDLED, queued until `close`, and one wait for them and for file descriptors."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._pending: list[int] = []
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in HANDLED:
            # Nothing is left to do: the interpreter has written the number to the pipe.
            signal.signal(number, lambda _number, _frame: None)

    def close(self) -> None:
        """Give signals their default actions again and close the pipe."""
        signal.set_wakeup_fd(-1)
        for number in HANDLED:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.close(self._read_fd)
        os.close(self._write_fd)

    def wait(self, timeout_s: float | None, *fds: int) -> list[int]:
        """Return the signals that came, in their order, after a wait for one or for a readable descriptor of `fds`."""
        self._poll(0.0 if self._pending else timeout_s, *fds)
        received, self._pending = self._pending, []
        return received

    def pause(self, seconds: float, *fds: int) -> None:
        """Sleep while the process starts, until a descriptor is readable; raises StoppedError on a signal to end.

        Other events (a child that ended, a reload) stay queued for the later loop.
        """
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            readable = self._poll(remaining, *fds)
            for number in self._pending:
                if number in _STOPPING:
                    raise StoppedError(signal.Signals(number).name)
            if readable:
                return

    def _poll(self, timeout_s: float | None, *fds: int) -> bool:
        """Take up the signals that came within this time, and return whether a descriptor is readable."""
        poll = select.poll()
        for fd in (self._read_fd, *fds):
            poll.register(fd, select.POLLIN)
        # Rounded up: rounding down would turn the last millisecond before a deadline into a busy loop.
        if timeout_s is not None and timeout_s < math.inf:
            events = poll.poll(max(0, math.ceil(timeout_s * 1000)))
        else:
            events = poll.poll()
        with contextlib.suppress(BlockingIOError):
            self._pending.extend(os.read(self._read_fd, 4096))
        return any(fd in fds for fd, _ in events)


def reset_in_child() -> None:
    """Forget the parent's handlers in a forked child, where HANDLED is blocked, and unblock.

    A Ctrl-C and a hang-up reach the whole process group, and a service manager may signal all processes of a service:
    only the supervisor acts on them, and signals its children.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
