"""The bytes of large requests, of what is decoded, and of what is fetched, that a worker holds at once.

Each has a budget of queued.max.request.bytes. Clients that have not logged in share a small one of their own: what they
send and never finish is nobody else's.

Bytes are charged as they arrive, never by the size that a peer announces: a peer that announces much and sends little
takes nothing from others. Requests that have arrived in part could then wait for each other indefinitely; so the one
that began first never waits, and what is held may exceed the budget by that one. How large a request becomes when it
is decoded is not known before: it waits until anything is free, and may then take more than that.
"""

from __future__ import annotations

from typing import NamedTuple

from gevent.event import Event

FETCH_BYTES_MIN = 64 * 1024
"""What a fetch may hold though others hold all: all of them get on."""

FETCH_SHARE = 4
"""A fetch may hold this part of what is free: those that are not taken leave something for the others."""


LOGINS_SHARE = 8
"""All that clients send before they have logged in may hold this part of a budget."""


class OverBudgetError(Exception):
    """The worker held too many bytes of requests for too long to take in more of this one."""


class ByteBudget:
    """The budget of one worker, `bytes_max` in all; its state is changed by charges alone."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = self.free = bytes_max
        self.released = Event()
        self.charges: dict[Charge, None] = {}
        """Those that have begun, the oldest first."""


class Charge:
    """What one request holds of a budget until `close`."""

    __slots__ = ("_budget", "_taken", "_wait_seconds")

    def __init__(self, budget: ByteBudget, wait_seconds: float) -> None:
        """Begin with nothing; each addition waits for others to release bytes, `wait_seconds` at most."""
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

    @property
    def room(self) -> int:
        """How much a fetch may take."""
        return max(FETCH_BYTES_MIN, self._budget.free // FETCH_SHARE)

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


class Budgets(NamedTuple):
    """What bounds a worker's memory: bytes of large requests, what is decoded of produce requests, fetched records.

    `logins` is for the bytes of large requests of clients that have not logged in.

    They are apart, so that peers that send or receive slowly delay no small request.
    """

    received: ByteBudget
    decoded: ByteBudget
    fetched: ByteBudget
    logins: ByteBudget

    @classmethod
    def of(cls, bytes_max: int) -> Budgets:
        """Give each `bytes_max`, and logins their share."""
        received, decoded, fetched = (ByteBudget(bytes_max) for _ in range(3))
        return cls(received, decoded, fetched, ByteBudget(bytes_max // LOGINS_SHARE))
