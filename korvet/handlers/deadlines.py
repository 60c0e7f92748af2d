"""How long a request may be worked at whose sender says how long it waits."""

from __future__ import annotations


def work_until(timeout_ms: int, now: float) -> float:
    """Return the moment when to stop, where `now` (monotonic seconds) is when a request with that timeout began.

    Clients count the same time from when they send, give up exactly then, and never hear of what was done: half of it
    is for the way.
    """
    return now + timeout_ms / 1000 / 2
