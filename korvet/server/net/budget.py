"""A request's bytes, and the memory that serving it takes: what is decoded of it, and what is fetched for its answer.

Each has a budget of queued.max.request.bytes in a worker. The core has those of the bytes themselves: what arrives, and
what clients send before they have logged in (`korvet_core.ClientSockets`).

How large a request becomes when it is decoded is not known before: it waits until anything is free, and may then take
more than that. Requests could wait for each other indefinitely; so the one that began first never waits, and what is
held may exceed the budget by that one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gevent.event import Event

FETCH_BYTES_MIN = 64 * 1024
"""What a fetch may hold though others hold all: all of them get on."""

FETCH_SHARE = 4
"""A fetch may hold this part of what is free: those that are not taken leave something for the others."""


class OverBudgetError(Exception):
    """The worker held too many bytes of requests for too long to serve this one."""


class ByteBudget:
    """The budget of one worker, `bytes_max` in all; its state is changed by charges alone."""

    def __init__(self, bytes_max: int, wait_seconds: float) -> None:
        """Let what is over the budget wait for others to release bytes, `wait_seconds` at most."""
        self.bytes_max = self.free = bytes_max
        self.wait_seconds = wait_seconds
        self.released = Event()
        self.charges: dict[Charge, None] = {}
        """Those that have begun, the oldest first."""


class Charge:
    """What one request holds of a budget until `close`."""

    __slots__ = ("_budget", "_taken")

    def __init__(self, budget: ByteBudget) -> None:
        """Begin with nothing."""
        self._budget = budget
        self._taken = 0

    def add(self, size: int) -> None:
        """Take `size` bytes more; raises OverBudgetError if they do not become free in time."""
        budget = self._budget
        budget.charges[self] = None
        while size > budget.free and self is not next(iter(budget.charges)):
            budget.released.clear()
            if not budget.released.wait(budget.wait_seconds):
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
    """What bounds a worker's memory: bytes of what is decoded of produce requests, and of fetched records.

    They are apart, so that peers that receive slowly delay no produce request.
    """

    decoded: ByteBudget
    fetched: ByteBudget

    @classmethod
    def of(cls, bytes_max: int, wait_seconds: float) -> Budgets:
        """Give each `bytes_max`."""
        return cls(ByteBudget(bytes_max, wait_seconds), ByteBudget(bytes_max, wait_seconds))


class Frame:
    """A request's bytes, without the size, and what serving it takes of the budgets until `close`.

    `number` is that of the frame among those of its connection. `arrived` is when the last of its bytes was received,
    `came_after` when the socket was last found empty before the first (time.monotonic): they may have lain there since.
    `decoded` is charged with what serving the request needs beyond the frame until there is a response, `fetched` with
    the records of the response until it is sent. `is_client_gone` says whether the client has closed the connection;
    one that only sends no more looks the same.
    """

    __slots__ = ("arrived", "came_after", "data", "decoded", "fetched", "is_client_gone", "number")

    def __init__(
        self,
        number: int,
        data: memoryview,
        arrived: float,
        came_after: float,
        budgets: Budgets,
        is_client_gone: Callable[[], bool],
    ) -> None:
        self.number, self.data = number, data
        self.arrived, self.came_after = arrived, came_after
        self.decoded, self.fetched = Charge(budgets.decoded), Charge(budgets.fetched)
        self.is_client_gone = is_client_gone

    def close(self) -> None:
        """Release what request and response took: the response is sent, or there will be none."""
        self.decoded.close()
        self.fetched.close()
