"""How a child ends with its parent, however the parent ends: the kernel's parent-death signal (prctl(2))."""

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

    The child ends at once if this process ended before it could ask. This process must have one thread: the signal is
    sent when the thread that forked ends. Only Linux has this; elsewhere children have the life pipe alone.
    """
    parent = os.getpid()

    def ask() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask
