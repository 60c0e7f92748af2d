"""ListOffsets by timestamp: how long the answer takes, at random places of the log.

Every answer is checked: a fast wrong one is worth nothing.
"""

from __future__ import annotations

import random
import time

from loadtest.log.fill import Span
from loadtest.log.report import Latencies
from loadtest.log.wire import Connection, RefusedError


def look_up(connection: Connection, span: Span, lookups: int, since_ms: int) -> Latencies:
    """Ask for random timestamps from `since_ms` on, one after the other; returns the times from question to answer.

    Records from `since_ms` on must be in the log. Raises RefusedError for a wrong answer.
    """
    last_ms = span.first_ms + (span.records - 1) * span.step_ms
    chance = random.Random(0)
    seconds = []
    for _ in range(lookups):
        timestamp = chance.randint(since_ms, last_ms)
        began = time.perf_counter()
        found = connection.offset_for(timestamp)
        seconds.append(time.perf_counter() - began)
        if found.timestamp != span.at_or_after(timestamp):
            raise RefusedError(f"the first record from {timestamp} on is not one of {found.timestamp}")
    return Latencies.of(seconds)
