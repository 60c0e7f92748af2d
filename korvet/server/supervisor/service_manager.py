"""How a service manager is told what the broker is doing: systemd's notification protocol (sd_notify(3)).

Knows the variables that a manager sets, its socket and the words it understands; not when something is to be told.
Without a manager nothing is sent. Children do not see the variables, so none of them can pass for the supervisor.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping

from korvet import logs

_log = logs.Log(__name__)

_SOCKET, _WATCHDOG_USEC, _WATCHDOG_PID = VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
# A manager whose queue is full is waited for so long; the watchdog's next sign of life comes well before it is missed.
_SEND_SECONDS_MAX = 0.5
_START_SECONDS_MORE = 30


class ServiceManager:
    """The manager that started this process, if there is one."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables
        """What the manager set, for whoever this process becomes."""
        self._address = _address(variables.get(_SOCKET, ""))
        self._every_s = _watchdog_interval_s(variables) if self._address else None
        self.alive_at = None if self._every_s is None else time.monotonic()
        """When the next sign of life is due, in monotonic seconds; None where no watchdog waits for one."""

    @classmethod
    def out_of(cls, environ: MutableMapping[str, str]) -> ServiceManager:
        """Take the manager's variables out of an environment."""
        taken = {name: environ.pop(name) for name in VARIABLES if name in environ}
        return cls(taken)

    def starting(self, status: str) -> None:
        """Tell how far the start is, and that it goes on: a log that takes minutes to load is no failure."""
        self._send(f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={_START_SECONDS_MORE * 1_000_000}")

    def ready(self, status: str) -> None:
        """Tell that clients are served, for the first time or with what was reloaded."""
        self._send("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def reloading(self, status: str) -> None:
        """Tell that a reload has begun, which `ready` ends."""
        # By this time the manager tells the answer to its own request from that to one before.
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}", f"STATUS={status}")

    def stopping(self, status: str, seconds: float) -> None:
        """Tell that the end has begun, which may take so long."""
        self._send("STOPPING=1", f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def alive(self) -> None:
        """Give a sign of life when one is due; to be called by the loop that must not stand still."""
        if self.alive_at is not None and self._every_s is not None and self.alive_at <= time.monotonic():
            self.alive_at = time.monotonic() + self._every_s
            self._send("WATCHDOG=1")

    def _send(self, *assignments: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_SEND_SECONDS_MAX)
                sender.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            _log.warning("cannot tell the service manager", what=assignments[0], reason=error)


def _address(given: str) -> str:
    """Return the socket's address as the kernel takes it; "" for none, and for a kind that is not systemd's own."""
    if given.startswith("@"):
        return "\0" + given[1:]
    if given and not given.startswith("/"):
        _log.warning("the service manager's address is unknown to Korvet", address=given)
        return ""
    return given


def _watchdog_interval_s(variables: dict[str, str]) -> float | None:
    """Return the seconds between two signs of life: half of what the manager waits (sd_watchdog_enabled(3))."""
    usec = variables.get(_WATCHDOG_USEC, "")
    pid = variables.get(_WATCHDOG_PID, "")
    if not usec.isdecimal() or not int(usec) or pid not in ("", str(os.getpid())):
        return None
    return int(usec) / 2_000_000
