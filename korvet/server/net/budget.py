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
    """The budget of one worker, `bytes_max` in all; its state is changed by charges alone."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = self.free = bytes_max
        self.released = Event()
        self.charges: dict[Charge, None] = {}
        """Those that have begun, the oldest first."""

    def charge(self, wait_seconds: float) -> Charge:
        """Begin a charge; each addition waits for others to release bytes, `wait_seconds` at most."""
        return Charge(self, wait_seconds)

    def has(self, size: int) -> bool:
        """Whether `size` bytes are free now."""
        return size <= self.free


class Charge:
    """What one request holds of a budget until `close`."""

    __slots__ = ("_budget", "_taken", "_wait_seconds")

    def __init__(self, budget: ByteBudget, wait_seconds: float) -> None:
        self._budget = budget
        self._wait_seconds = wait_seconds
        self._taken = 0

    def add(self, size: int) -> None:
        """Take `size` bytes more; raises OverBudgetError if they do not become free in time."""
        budget = self._budget
        budget.charges[self] = None
        while size > budget.free and self is not next(iter(budget.charges)):
            budget.released.clear()
            if not budget.released.wait(self._wait_seconds):
                raise OverBudgetError(
                    f"requests of more than {budget.bytes_max} bytes are being received or served"
                )
        budget.free -= size
        self._taken += size

    def reserve(self, size: int) -> None:
        """Take `size` bytes more, free or not; negative: release them."""
        budget = self._budget
        budget.charges[self] = None
        budget.free -= size
        self._taken += size
        if size < 0:
            budget.released.set()

    def close(self) -> None:
        """Release what was taken."""
        charges = self._budget.charges
        if charges and self in charges:
            del charges[self]
            self._budget.free += self._taken
            self._taken = 0
            self._budget.released.set()
