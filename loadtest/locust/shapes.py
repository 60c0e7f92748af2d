"""Shapes of load: how many users there are at what time of a run. Knows numbers only.

Each shape takes the time since the start and the length of the run (seconds) and gives a share of all users, 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

_STEPS = 10
_SPIKE_BEGINS, _SPIKE_ENDS, _BESIDE_SPIKE = 0.4, 0.6, 0.25
_SOAK_PERIOD_SECONDS, _SOAK_LOW = 300.0, 0.8


def steady(elapsed: float, seconds: float) -> float:  # noqa: ARG001 - every shape takes both
    """Take all users at once, until the end."""
    return 1.0


def ramp(elapsed: float, seconds: float) -> float:
    """Take a tenth of the users after the other, the last tenth of the time with all of them."""
    return (math.floor(min(elapsed / seconds, 0.999) * _STEPS) + 1) / _STEPS


def spike(elapsed: float, seconds: float) -> float:
    """Take a quarter of the users, but all of them in the middle fifth of the time."""
    return 1.0 if _SPIKE_BEGINS <= elapsed / seconds < _SPIKE_ENDS else _BESIDE_SPIKE


def soak(elapsed: float, seconds: float) -> float:  # noqa: ARG001 - every shape takes both
    """Take all users, but four fifths of them in every other five minutes: clients go and come all the time."""
    return 1.0 if (elapsed // _SOAK_PERIOD_SECONDS) % 2 == 0 else _SOAK_LOW


SHAPES: Mapping[str, Callable[[float, float], float]] = {
    "steady": steady,
    "ramp": ramp,
    "spike": spike,
    "soak": soak,
}


def users_at(shape: str, elapsed: float, seconds: float, users: int) -> int | None:
    """Return how many users a shape has at a time, at least one; None once the run is over."""
    if elapsed >= seconds:
        return None
    return max(round(SHAPES[shape](elapsed, seconds) * users), 1)
