"""The bytes of large requests, and of what is decoded, that a worker holds at once (queued.max.request.bytes).

Bytes are charged as they arrive, never by the size that a peer announces: a peer that announces much and sends little
takes nothing from others. Requests that have arrived in part could then wait for each other indefinitely; so the one
that began first never waits, and what is held may exceed the budget by that one. How large a request becomes when it
is decoded is not known before: it waits until anything is free, and may then take more than that.
"""

from __future__ import annotations

from typing import NamedTuple

from gevent.event import Event


class OverBudgetError(Exception):
    """The worker held too many bytes of requests for too long to take in more of this one."""


class Budgets(NamedTuple):
    """What bounds a worker's memory: the bytes of large requests, and what is decoded of produce requests.

    There are two, so that peers that fill the first by sending slowly delay no small request.
    """

    received: ByteBudget
    decoded: ByteBudget

    @classmethod
    def of(cls, bytes_max: int) -> Budgets:
        """Give each `bytes_max`."""
        return cls(ByteBudget(bytes_max), ByteBudget(bytes_max))


class ByteBudget:
    """The budget of one worker, `bytes_max` in all."""

    def __init__(self, bytes_max: int) -> None:
        self._free = bytes_max
        self._bytes_max = bytes_max
        self._released = Event()
        self._charges: dict[Charge, None] = {}

    def charge(self, wait_seconds: float) -> Charge:
        """Begin a charge; each addition waits for others to release bytes, `wait_seconds` at most."""
        return Charge(self, wait_seconds)

    def has(self, size: int) -> bool:
        """Whether `size` bytes are free now."""
        return size <= self._free

    def take(self, charge: Charge, size: int, wait_seconds: float) -> None:
        """Take `size` bytes for `charge`; raises OverBudgetError if they do not become free in time."""
        self._charges[charge] = None
        while size > self._free and charge is not next(iter(self._charges)):
            self._released.clear()
            if not self._released.wait(wait_seconds):
                message = f"requests of more than {self._bytes_max} bytes are being received or served"
                raise OverBudgetError(message)
        self._free -= size

    def reserve(self, charge: Charge, size: int) -> None:
        """Take `size` bytes for `charge`, free or not; negative: release them."""
        self._charges[charge] = None
        self._free -= size
        if size < 0:
            self._released.set()

    def release(self, charge: Charge, size: int) -> None:
        """End `charge`, which took `size` bytes."""
        self._charges.pop(charge, None)
        self._free += size
        self._released.set()


class Charge:
    """What one request holds of a budget until `close`."""

    __slots__ = ("_begun", "_budget", "_taken", "_wait_seconds")

    def __init__(self, budget: ByteBudget, wait_seconds: float) -> None:
        self._budget = budget
        self._wait_seconds = wait_seconds
        self._taken = 0
        self._begun = False

    def add(self, size: int) -> None:
        """Take `size` bytes more; raises OverBudgetError."""
        self._begun = True
        self._budget.take(self, size, self._wait_seconds)
        self._taken += size

    def reserve(self, size: int) -> None:
        """Take `size` bytes more, free or not; negative: release them."""
        self._begun = True
        self._budget.reserve(self, size)
        self._taken += size

    def close(self) -> None:
        """Release what was taken."""
        if self._begun:
            self._begun = False
            taken, self._taken = self._taken, 0
            self._budget.release(self, taken)
