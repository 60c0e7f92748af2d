"""Notifies a service manager of what the broker is doing, by systemd's protocol (sd_notify(3)); without one, nobody.

Children do not see the manager's variables, so none of them can pass for the supervisor.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping

from korvet import logs

_log = logs.Log(__name__)

# How long a manager whose queue is full may hold the supervisor up: well below the watchdog's interval.
_SEND_SECONDS_MAX = 0.5
_EXTENSION_SECONDS = 30


class ServiceManager:
    """The manager that started this process, if there is one."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Take the manager's variables out of an environment."""
        names = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
        address, usec, pid = (environ.pop(name, "") for name in names)
        self._address = _address(address)
        self._every_s = _watchdog_interval_s(usec, pid) if self._address else None
        self.ping_at = None if self._every_s is None else time.monotonic()
        """When to feed the watchdog next, in monotonic seconds; None if there is none."""

    def starting(self, status: str) -> None:
        """Notify how far the start is, and that it goes on: a log that takes minutes to load is no failure."""
        self._send(f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={_EXTENSION_SECONDS * 1_000_000}")

    def ready(self, status: str) -> None:
        """Notify that clients are served, for the first time or with what was reloaded."""
        self._send("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def reloading(self, status: str) -> None:
        """Notify that a reload has begun, which `ready` ends."""
        # By this time the manager matches the answer to its request.
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}", f"STATUS={status}")

    def stopping(self, status: str, seconds: float) -> None:
        """Notify that the end has begun, which may take `seconds`."""
        self._send("STOPPING=1", f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def ping(self) -> None:
        """Feed the watchdog if it is time; called by the loop whose hang it is to notice."""
        if self.ping_at is not None and self._every_s is not None and self.ping_at <= time.monotonic():
            self.ping_at = time.monotonic() + self._every_s
            self._send("WATCHDOG=1")

    def _send(self, *assignments: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_SEND_SECONDS_MAX)
                sender.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            _log.warning("cannot notify the service manager", what=assignments[0], reason=error)


def _address(given: str) -> str:
    """Return the socket's address as the kernel takes it; "" for none, and for a kind that is not systemd's own."""
    if given.startswith("@"):
        return "\0" + given[1:]
    if given and not given.startswith("/"):
        _log.warning("the service manager's address is not supported", address=given)
        return ""
    return given


def _watchdog_interval_s(usec: str, pid: str) -> float | None:
    """Return the seconds between two pings: half of what the watchdog waits (sd_watchdog_enabled(3))."""
    if not usec.isdecimal() or not int(usec) or pid not in ("", str(os.getpid())):
        return None
    return int(usec) / 2_000_000
