"""How a child ends with its parent, however the parent ends: the kernel's parent-death signal (prctl(2)).

Knows one system call of Linux; elsewhere it does nothing, and children have only the life pipe to tell them.

How long to wait before something that ended is started again. Pure: knows no clock and no process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
# Loaded before any fork: a child must not have to import or open anything to be safe.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(number: int) -> Callable[[], None]:
    """Return what a child calls first: from then on the kernel sends it `number` when this process ends.

    The child ends at once when this process ended before it could ask. This process must have one thread: the
    signal is sent when the thread that forked ends.
    """
    parent = os.getpid()

    def ask() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


_FIRST_SECONDS = 0.1
_SECONDS_MAX = 10.0
_LIVED_SECONDS = 0.5


class Backoff:
    """Waits that double from failure to failure; none after a life that was long enough."""

    def __init__(self, lived_s: float = _LIVED_SECONDS) -> None:
        """Take a life of `lived_s` seconds of work for no crash loop, whatever ended it."""
        self.failures = 0
        self._lived_s = lived_s

    def delay_s(self, worked_s: float) -> float:
        """Return the seconds to wait after a life of which `worked_s` seconds were work (0.0: it never began)."""
        if worked_s >= self._lived_s:
            self.failures = 0
            return 0.0
        self.failures += 1
        # The exponent is bounded too: a loop of a week must not compute 2 to the ten thousandth.
        return min(_SECONDS_MAX, _FIRST_SECONDS * 2.0 ** min(self.failures - 1, 16))
