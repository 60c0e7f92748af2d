"""Retention of half the log while a producer appends: how long its requests take, before and meanwhile.

Requests are sent at a fixed rate and timed from when they were due, so one that has to wait for the one before shows
it (an open loop: nothing is left out because the broker was slow).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from loadtest.log.broker import Broker
from loadtest.log.fill import Batches
from loadtest.log.redis_side import RedisSide
from loadtest.log.report import Latencies
from loadtest.log.wire import Connection

RECORDS_PER_REQUEST = 100
CHECK_INTERVAL_MS = 15_000
_LOOK_SECONDS = 0.2
_QUIET_SECONDS = 5.0
"""When the log begins where it did for so long, retention has come to its end: less than the keeper's next round.

A round finds something each time, for the log ages by a few records between two of them.
"""

_SECONDS_MAX = 600.0


class Append(NamedTuple):
    """One request of the producer: when it was due (monotonic), and the seconds from then to its answer."""

    due: float
    seconds: float


class Trimmed(NamedTuple):
    """When the log start moved and when the last entry was freed (monotonic seconds)."""

    began: float
    ended: float


class NothingTrimmedError(Exception):
    """Retention did not do in a long time what was due."""


def append_for(connection: Connection, rate: float, seconds: float) -> Latencies:
    """Append for so long and return what the requests took."""
    until = time.monotonic() + seconds
    appends = _append_while(connection, rate, lambda: time.monotonic() < until)
    return Latencies.of([append.seconds for append in appends])


def append_meanwhile(broker: Broker, side: RedisSide, rate: float) -> tuple[Latencies, Trimmed]:
    """Have the keeper trim what is due, append until that is done; returns what the requests took meanwhile.

    Raises NothingTrimmedError.
    """
    # New workers come with the new interval, and the keeper waits for one interval first: the connection is made in it.
    before = side.beginning()
    broker.begin_retention(CHECK_INTERVAL_MS)
    watch = _Watch(side, before)
    watch.start()
    with Connection(broker.address) as connection:
        appends = _append_while(connection, rate, watch.is_alive)
    if watch.trimmed is None:
        raise NothingTrimmedError(
            f"the log start did not move, or did not come to rest, in {_SECONDS_MAX:.0f} s"
        )
    began, ended = watch.trimmed
    seconds = [append.seconds for append in appends if began - _LOOK_SECONDS <= append.due <= ended]
    return Latencies.of(seconds), watch.trimmed


def _append_while(connection: Connection, rate: float, goes_on: Callable[[], bool]) -> list[Append]:
    batches = Batches(RECORDS_PER_REQUEST, 0)
    appends: list[Append] = []
    due = time.monotonic()
    while goes_on():
        time.sleep(max(0.0, due - time.monotonic()))
        connection.begin_produce(batches.starting(int(time.time() * 1000)))
        connection.finish_produce()
        appends.append(Append(due, time.monotonic() - due))
        due += 1 / rate
    return appends


class _Watch(threading.Thread):
    """Looks at where the log begins until that has stayed for some seconds."""

    def __init__(self, side: RedisSide, before: tuple[int, bytes]) -> None:
        super().__init__(daemon=True)
        self.trimmed: Trimmed | None = None
        self._side = side
        self._last = before

    def run(self) -> None:
        began = ended = 0.0
        deadline = time.monotonic() + _SECONDS_MAX
        while time.monotonic() < deadline:
            now, beginning = time.monotonic(), self._side.beginning()
            if beginning != self._last:
                began, ended = began or now, now
                self._last = beginning
            elif began and now - ended > _QUIET_SECONDS:
                self.trimmed = Trimmed(began, ended)
                return
            time.sleep(_LOOK_SECONDS)
