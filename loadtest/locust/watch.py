"""Watches the broker while the load runs: memory and CPU of each process, Redis' own figure, replaced children.

Knows what the broker logs of its children, and /proc by way of psutil; what is too much, its caller says. A process
takes memory while it warms up, and again each time that more of everything comes its way; then it should stay. So for
its trend the first third of the samples is left out, and a line is laid through the rest.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import linear_regression
from typing import NamedTuple

import psutil
import redis

from loadtest import harness
from loadtest.harness import table

SERVER = "redis"
"""What the embedded server is called among the processes."""

_STARTED = re.compile(r"supervisor started child=(\S+) pid=(\d+)")
_ERROR = re.compile(r"^\S+Z ERROR +(.*)$", re.MULTILINE)
_MIB = 1 << 20
_LEFT_SECONDS_MAX = 120.0
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


def trend_of(samples: Sequence[Sample]) -> Trend | None:
    """Return the trend of at least six samples, None of fewer."""
    if len(samples) < _SAMPLES_MIN:
        return None
    third = len(samples) // _LEFT_OUT
    late = samples[third:]
    slope = linear_regression([item.at for item in late], [item.resident for item in late]).slope
    return Trend(
        samples[0].resident / _MIB,
        samples[-1].resident / _MIB,
        max(sample.resident for sample in samples) / _MIB,
        slope * (late[-1].at - late[0].at) / _MIB,
        _cpu(samples[: third + 1]),
        _cpu(samples[-third - 1 :]),
    )


def _cpu(samples: Sequence[Sample]) -> float:
    length = samples[-1].at - samples[0].at
    return (samples[-1].cpu - samples[0].cpu) / length if length else 0.0


class Broker(harness.Broker):
    """A broker that says of itself what it takes."""

    def __init__(self, directory: Path, settings: Iterable[str] = ()) -> None:
        super().__init__(directory, settings)
        self._redis: redis.Redis = redis.Redis(unix_socket_path=str(self.data_dir / "server.sock"))

    def __exit__(self, *_: object) -> None:
        self._redis.close()
        super().__exit__()

    def children_started(self) -> int:
        """Return how many children there have been so far; more than at first means that some were replaced."""
        return len(_STARTED.findall(self._said()))

    def errors(self) -> list[str]:
        """Return what it has logged as errors so far, a line each."""
        return _ERROR.findall(self._said())

    def _said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def samples(self) -> dict[str, Sample]:
        """Return what each living process takes, by name: supervisor, worker-1, redis; empty once it has ended."""
        now = time.monotonic()
        names = {int(pid): name for name, pid in _STARTED.findall(self._said())} | {self.pid: "supervisor"}
        result = {}
        try:
            supervisor = psutil.Process(self.pid)
            for process in (supervisor, *supervisor.children(recursive=True)):
                name = names.get(process.pid, SERVER)
                if name == SERVER and process.parent() != supervisor:
                    continue  # The server's own child, which rewrites its log.
                times = process.cpu_times()
                result[name] = Sample(now, process.memory_info().rss, times.user + times.system)
        except psutil.NoSuchProcess:
            return {}
        return result

    def redis_bytes(self) -> int:
        """Return what Redis says that it uses (bytes), 0 where it does not answer."""
        try:
            return int(self._redis.info("memory")["used_memory"])
        except redis.RedisError:
            return 0


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
        for name, sample in self._broker.samples().items():
            self._samples.setdefault(name, []).append(sample)
        self._redis_most = max(self._redis_most, self._broker.redis_bytes())

    def await_empty(self, left_mib_max: float) -> None:
        """Wait a while for Redis to have freed what deleted topics and groups held."""
        most = self._redis_before + int(left_mib_max * _MIB)
        deadline = time.monotonic() + _LEFT_SECONDS_MAX
        while (used := self._broker.redis_bytes()) > most and time.monotonic() < deadline:
            time.sleep(0.2)
        self._redis_after = used

    def faults(self, growth_mib_max: float | None, left_mib_max: float) -> list[str]:
        """Return what is wrong, in words; growth is not judged where there is no limit.

        The server's resident memory never is, for the log is kept there: what it has left afterwards is.
        """
        result = []
        if not self._broker.samples():
            result.append("the broker has ended")
        if (more := self._broker.children_started() - self._children) > 0:
            result.append(f"{more} of the broker's processes ended and were replaced")
        if errors := self._broker.errors():
            result.append(f"the broker has logged {len(errors)} errors, the first: {errors[0]}")
        for name, samples in self._samples.items():
            line = trend_of(samples)
            if growth_mib_max is None or line is None or name == SERVER:
                continue
            if line.growth_mib > growth_mib_max:
                result.append(f"{name} grows: {line.growth_mib:.1f} MiB in the last two thirds of the run")
        if self._redis_after is not None:
            left = (self._redis_after - self._redis_before) / _MIB
            if left > left_mib_max:
                result.append(f"Redis kept {left:.1f} MiB after topics and groups were deleted")
        return result

    def summary(self) -> str:
        """Return memory and CPU of each process, and Redis' own figure, as lines for people."""
        trends = {name: trend_of(samples) for name, samples in self._samples.items()}
        rows = [(name, *line) for name, line in trends.items() if line is not None]
        lines = (
            [table(("process", "MiB first", "last", "most", "growth", "cores first", "last"), rows)]
            if rows
            else []
        )
        after = (
            "" if self._redis_after is None else f", {_mib(self._redis_after)} after deletion of all topics"
        )
        used = (
            f"Redis used {_mib(self._redis_before)} before the load, at most {_mib(self._redis_most)}{after}"
        )
        return "\n".join([*lines, used])


def _mib(amount: int) -> str:
    return f"{amount / _MIB:.1f} MiB"
