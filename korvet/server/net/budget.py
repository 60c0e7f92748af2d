"""A request's bytes, and the memory that serving it takes: what is fetched for its answer.

That has a budget of queued.max.request.bytes in a worker. The core has those of the bytes themselves, of what arrives
and of what clients send before they have logged in (`korvet_core.ClientSockets`), and of what is made of batches
(`korvet_core.DataPath`).
"""

from __future__ import annotations

from collections.abc import Callable

FETCH_BYTES_MIN = 64 * 1024
"""What a fetch may hold though others hold all: all of them get on."""

FETCH_SHARE = 4
"""A fetch may hold this part of what is free: those that are not taken leave something for the others."""


class ByteBudget:
    """The budget of one worker, `bytes_max` in all; its state is changed by charges alone."""

    def __init__(self, bytes_max: int) -> None:
        self.free = bytes_max


class Charge:
    """What one request holds of a budget until `close`."""

    __slots__ = ("_budget", "_taken")

    def __init__(self, budget: ByteBudget) -> None:
        """Begin with nothing."""
        self._budget = budget
        self._taken = 0

    @property
    def room(self) -> int:
        """How much a fetch may take."""
        return max(FETCH_BYTES_MIN, self._budget.free // FETCH_SHARE)

    def reserve(self, size: int) -> None:
        """Take `size` bytes more, free or not; negative: release them."""
        self._budget.free -= size
        self._taken += size

    def close(self) -> None:
        """Release what was taken."""
        self._budget.free += self._taken
        self._taken = 0


class Frame:
    """A request's bytes, without the size, and what serving it takes of the budget until `close`.

    `number` is that of the frame among those of its connection. `arrived` is when the last of its bytes was received,
    `came_after` when the socket was last found empty before the first (time.monotonic): they may have lain there since.
    `fetched` is charged with the records of the response until it is sent. `is_client_gone` says whether the client has
    closed the connection; one that only sends no more looks the same.
    """

    __slots__ = ("arrived", "came_after", "data", "fetched", "is_client_gone", "number")

    def __init__(
        self,
        number: int,
        data: memoryview,
        arrived: float,
        came_after: float,
        fetched: ByteBudget,
        is_client_gone: Callable[[], bool],
    ) -> None:
        self.number, self.data = number, data
        self.arrived, self.came_after = arrived, came_after
        self.fetched = Charge(fetched)
        self.is_client_gone = is_client_gone

    def close(self) -> None:
        """Release what the response took: it is sent, or there will be none."""
        self.fetched.close()
