"""A request's bytes, and the memory that serving it takes: the records of its answer.

Records of Fetch and of ShareFetch share a budget of queued.max.request.bytes in a worker. The core holds it, and three
more: bytes that arrive, bytes of clients without a login (`korvet_core.ClientSockets`), and decoded batches
(`korvet_core.DataPath`).
"""

from __future__ import annotations

import sys
from typing import Any

from korvet_core import DataPath


class Charge:
    """What one request holds of the budget for records until `close`."""

    __slots__ = ("_core", "_taken")

    def __init__(self, core: DataPath[Any] | None) -> None:
        """Begin with nothing; without a core nothing is fetched."""
        self._core = core
        self._taken = 0

    @property
    def room(self) -> int:
        """How many bytes a fetch may take."""
        return sys.maxsize if self._core is None else self._core.fetch_room

    def reserve(self, size: int) -> None:
        """Take `size` bytes more, free or not; negative: release them."""
        if self._core is not None:
            self._core.hold_fetched(max(size, 0), max(-size, 0))
        self._taken += size

    def close(self) -> None:
        self.reserve(-self._taken)


class Frame:
    """A request's bytes, without the size, and what serving it takes of the budget until `close`.

    `number` is that of the frame among those of its connection. `arrived` is when the last of its bytes was received,
    `came_after` when the socket was last found empty before the first (time.monotonic): they may have lain there since.
    `fetched` is charged with the records of the response until it is sent.
    """

    __slots__ = ("arrived", "came_after", "data", "fetched", "number")

    def __init__(
        self, number: int, data: memoryview, arrived: float, came_after: float, core: DataPath[Any] | None
    ) -> None:
        self.number, self.data = number, data
        self.arrived, self.came_after = arrived, came_after
        self.fetched = Charge(core)

    def close(self) -> None:
        """Release what the response took: it is sent, or there will be none."""
        self.fetched.close()
