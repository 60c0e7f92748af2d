"""A child that this process started when it was another program: what subprocess.Popen would be for it.

Knows waitpid and signals; nothing of what the child does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time

_PAUSE_SECONDS = 0.02


class AdoptedProcess:
    """The child with the process id `pid`; the methods are those of Popen, as far as they are needed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return how it ended, None while it runs; a signal's number is negative."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, which subprocess.TimeoutExpired says has not come in `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_PAUSE_SECONDS)
        return status

    def terminate(self) -> None:
        """Ask it to end."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        # Until it was waited for, the number is its own.
        if self.poll() is None:
            os.kill(self.pid, number)
