"""Where the time of one request goes: a stopwatch that whoever serves it presses at the end of each stage.

Knows stages and the clock; nothing of who looks at it.
"""

from __future__ import annotations

from time import monotonic

import msgspec

STAGES = ("queue", "decode", "redis", "wait", "encode")
"""Names of the stages, in this order.

queue: waiting for its turn, and for memory. decode: reading and checking it. redis: until Redis' answers are read.
wait: for what others do, that is for records, the lake or replicas. encode: making the response.
"""

QUEUE, DECODE, REDIS, WAIT, ENCODE = range(len(STAGES))


class RequestTimer(msgspec.Struct, gc=False):
    """The `seconds` of each stage, which add up to the time since the beginning; `at` is the end of the last one.

    One is made for every request: as a Struct it costs a third of what a class of its own would.
    """

    at: float
    seconds: list[float]

    def lap(self, stage: int) -> None:
        """Say that what was done since the last lap was this stage."""
        now = monotonic()
        self.seconds[stage] += now - self.at
        self.at = now


def request_timer(at: float) -> RequestTimer:
    """Return the laps of a request that begins at this time (time.monotonic)."""
    return RequestTimer(at, [0.0, 0.0, 0.0, 0.0, 0.0])


class NoTimer(RequestTimer):
    """Of requests whose stages nobody wants to know."""

    def lap(self, stage: int) -> None:
        """Do nothing."""


NO_TIMER = NoTimer(0.0, [])
