"""Where the time of one request goes: a stopwatch that whoever serves it presses at the end of each stage.

Knows stages and the clock; nothing of who looks at it.
"""

from __future__ import annotations

from time import monotonic

STAGES = ("queue", "decode", "redis", "wait", "encode")
"""Names of the stages, in this order.

queue: waiting for its turn, and for memory. decode: reading and checking it. redis: until Redis' answers are read.
wait: for what others do, that is for records, the lake or replicas. encode: making the response.
"""

QUEUE, DECODE, REDIS, WAIT, ENCODE = range(len(STAGES))


class Laps:
    """The seconds of each stage, which add up to the time since the beginning."""

    __slots__ = ("_at", "seconds")

    def __init__(self, begun: float) -> None:
        """Begin at `begun` (time.monotonic)."""
        self._at = begun
        self.seconds = [0.0, 0.0, 0.0, 0.0, 0.0]

    def lap(self, stage: int) -> None:
        """Say that what was done since the last lap was this stage."""
        now = monotonic()
        self.seconds[stage] += now - self._at
        self._at = now


class Untimed(Laps):
    """Of requests whose stages nobody wants to know."""

    def lap(self, stage: int) -> None:
        """Do nothing."""


UNTIMED = Untimed(0.0)
