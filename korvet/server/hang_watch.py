"""Notices workers whose event loop stands still: they keep the clients that they have, and are led new ones to.

Knows the beats that workers leave on the scoreboard, and time; what becomes of such a worker is the crew's affair.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from korvet.server.children import Child

LOOK_SECONDS = 10.0
"""How often the supervisor looks."""

LOOKS = 3
"""Looks in a row without a beat after which a worker stands still: no request keeps a loop for so long."""


class HangWatch:
    """Looks at the beats of rows, which `beats` returns; `clock` gives monotonic seconds."""

    def __init__(self, beats: Callable[[int], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._beats = beats
        self._clock = clock
        self._seen: dict[int, tuple[int, int]] = {}
        self.look_at = clock() + LOOK_SECONDS

    def hung(self, children: Iterable[Child]) -> list[Child]:
        """Return those that have stood still for long enough by now, each once; none before the next look is due."""
        now = self._clock()
        if now < self.look_at:
            return []
        # Where this process stood still too, as with a stopped terminal or machine, nobody had a chance to beat.
        late = now > self.look_at + LOOK_SECONDS
        self.look_at = now + LOOK_SECONDS
        former, self._seen = self._seen, {}
        found = []
        for child in children:
            beats = self._beats(child.index)
            before, looks = former.get(child.pid, (0, 0))
            # Without a single beat it is only starting, or of a version that had none.
            looks = looks + 1 if beats and beats == before and not late else 0
            self._seen[child.pid] = (beats, looks)
            if looks == LOOKS:
                found.append(child)
        return found
