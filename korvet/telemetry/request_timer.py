"""Where the time of one request goes: a stopwatch that is pressed at the end of each stage."""

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

    def end_stage(self, stage: int) -> None:
        """Count the time since the end of the last stage as this one's."""
        now = monotonic()
        self.seconds[stage] += now - self.at
        self.at = now


def request_timer(moment: float) -> RequestTimer:
    """Return the timer of a request that begins at this time (time.monotonic)."""
    return RequestTimer(moment, [0.0, 0.0, 0.0, 0.0, 0.0])


class NoTimer(RequestTimer):
    """For requests whose stages are not measured."""

    def end_stage(self, stage: int) -> None:
        """Do nothing."""


NO_TIMER = NoTimer(0.0, [])
