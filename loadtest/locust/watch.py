"""Watches the broker while the load runs: memory and CPU of each process, Redis' own figure, replaced children.

Knows the broker and trends; what is too much, its caller says.
"""

from __future__ import annotations

import time

from loadtest.locust import trend
from loadtest.locust.broker import SERVER, Broker
from loadtest.locust.trend import Sample

_MIB = 1 << 20
_LEFT_SECONDS_MAX = 120.0


class Watch:
    """Samples of one run, from when it is made."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._samples: dict[str, list[Sample]] = {}
        self._children = broker.children_started()
        self._redis_before = self._redis_most = broker.redis_bytes()
        self._redis_after: int | None = None

    def look(self) -> None:
        """Take one sample."""
        now = time.monotonic()
        for name, usage in self._broker.usage().items():
            self._samples.setdefault(name, []).append(Sample(now, usage.resident, usage.cpu))
        self._redis_most = max(self._redis_most, self._broker.redis_bytes())

    def await_empty(self, left_mib_max: float) -> None:
        """Wait a while for Redis to have freed what deleted topics and groups held."""
        most = self._redis_before + int(left_mib_max * _MIB)
        self._redis_after = self._broker.await_redis_bytes(most, _LEFT_SECONDS_MAX)

    def faults(self, growth_mib_max: float | None, left_mib_max: float) -> list[str]:
        """Return what is wrong, in words; growth is not judged where there is no limit.

        The server's resident memory never is, for the log is kept there: what it has left afterwards is.
        """
        found = []
        if not self._broker.usage():
            found.append("the broker has ended")
        if (more := self._broker.children_started() - self._children) > 0:
            found.append(f"{more} of the broker's processes ended and were replaced")
        if errors := self._broker.errors():
            found.append(f"the broker has logged {len(errors)} errors, the first: {errors[0]}")
        for name, samples in self._samples.items():
            line = trend.of(samples)
            if growth_mib_max is None or line is None or name == SERVER:
                continue
            if line.growth_mib > growth_mib_max:
                found.append(f"{name} grows: {line.growth_mib:.1f} MiB in the last two thirds of the run")
        if self._redis_after is not None:
            left = (self._redis_after - self._redis_before) / _MIB
            if left > left_mib_max:
                found.append(f"Redis kept {left:.1f} MiB after topics and groups were deleted")
        return found

    def table(self) -> str:
        """Return memory and CPU of each process, and Redis' own figure, as lines for people."""
        head = f"  {'process':<12}{'MiB first':>10}{'last':>8}{'most':>8}{'growth':>8}{'CPU first':>11}{'last':>7}"
        lines = [head]
        for name, samples in self._samples.items():
            if (line := trend.of(samples)) is not None:
                lines.append(
                    f"  {name:<12}{line.first_mib:>10.1f}{line.last_mib:>8.1f}{line.most_mib:>8.1f}"
                    f"{line.growth_mib:>+8.1f}{line.cpu_first:>11.0%}{line.cpu_last:>7.0%}"
                )
        after = (
            "" if self._redis_after is None else f", {_mib(self._redis_after)} after deletion of all topics"
        )
        lines.append(
            f"  Redis used {_mib(self._redis_before)} before the load, at most {_mib(self._redis_most)}{after}"
        )
        return "\n".join(lines)


def _mib(amount: int) -> str:
    return f"{amount / _MIB:.1f} MiB"
