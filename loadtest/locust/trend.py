"""Whether memory grows without end: pure arithmetic on what was sampled.

A process takes memory while it warms up, and again each time that more of everything comes its way; then it should
stay. So the first third of the samples is left out, and a line is laid through the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_MIB = 1 << 20
_LEFT_OUT = 3
_SAMPLES_MIN = 6


class Sample(NamedTuple):
    """One look at a process: when (seconds), its resident memory (bytes), and its CPU time so far (seconds)."""

    at: float
    resident: int
    cpu: float


class Trend(NamedTuple):
    """What became of a process: memory at the first and the last look and at most (MiB), CPU in share of a core.

    `growth_mib` is by how much the line through the last two thirds rises over their length.
    """

    first_mib: float
    last_mib: float
    most_mib: float
    growth_mib: float
    cpu_first: float
    cpu_last: float


def of(samples: Sequence[Sample]) -> Trend | None:
    """Return the trend of at least six samples, None of fewer."""
    if len(samples) < _SAMPLES_MIN:
        return None
    third = len(samples) // _LEFT_OUT
    late = samples[third:]
    length = late[-1].at - late[0].at
    return Trend(
        samples[0].resident / _MIB,
        samples[-1].resident / _MIB,
        max(each.resident for each in samples) / _MIB,
        _slope(late) * length / _MIB,
        _cpu(samples[: third + 1]),
        _cpu(samples[-third - 1 :]),
    )


def _slope(samples: Sequence[Sample]) -> float:
    """Return the slope of the least squares' line through memory (bytes a second)."""
    middle = sum(each.at for each in samples) / len(samples)
    mean = sum(each.resident for each in samples) / len(samples)
    spread = sum((each.at - middle) ** 2 for each in samples)
    together = sum((each.at - middle) * (each.resident - mean) for each in samples)
    return together / spread if spread else 0.0


def _cpu(samples: Sequence[Sample]) -> float:
    length = samples[-1].at - samples[0].at
    return (samples[-1].cpu - samples[0].cpu) / length if length else 0.0
