"""The clock of a process: what time it is, and every wait for time to pass.

Code that has a Clock takes time from nowhere else. A test gives it a clock with virtual time: a session of half a
minute ends at once, and whether a call waits can be asked. The time of Redis (TIME in scripts) is another clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ParamSpec, TypeVar

import gevent
from gevent.event import Event

P = ParamSpec("P")
R = TypeVar("R")

_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """The machine's clock, and gevent's loop."""

    def monotonic(self) -> float:
        """Return seconds since an unknown moment; they never go back."""
        return time.monotonic()

    def time(self) -> float:
        """Return seconds since 1970 in UTC; they jump when the machine's clock is set."""
        return time.time()

    def boot_time(self) -> float:
        """Return seconds since an unknown moment; they go on while the machine is suspended, monotonic ones do not."""
        return time.clock_gettime(_BOOT_TIME)

    def to_whole_second(self, seconds: float) -> float:
        """Return a pause of about `seconds` that ends with a whole monotonic second, a shorter one as it is.

        Work that is done every few seconds then wakes the process, and the Redis that it asks, once for all of it.
        """
        now = self.monotonic()
        return round(now + seconds) - now if seconds >= 1 else seconds

    def sleep(self, seconds: float) -> None:
        """Let other greenlets run for `seconds`."""
        gevent.sleep(seconds)

    def wait(self, event: Event, seconds: float | None = None) -> bool:
        """Wait until the event is set, `seconds` at most; return whether it is set."""
        return bool(event.wait(seconds))

    def timeout(self, seconds: float, error: Exception) -> AbstractContextManager[object]:
        """Return a context that raises `error` in its greenlet if it lasts longer than `seconds`."""
        return gevent.Timeout(seconds, error)

    def spawn(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> gevent.Greenlet[P, R]:
        """Make the call in a greenlet of its own."""
        return gevent.spawn(call, *args, **kwargs)

    def spawn_later(
        self, seconds: float, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> gevent.Greenlet[P, R]:
        """Make the call in a greenlet of its own, in `seconds`."""
        return gevent.spawn_later(seconds, call, *args, **kwargs)


CLOCK = Clock()
"""The clock of everything that is given no other."""
