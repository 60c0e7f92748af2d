"""What a run has to reach: read from a TOML file, and held against locust's statistics.

Pure: knows names and numbers; `locustfile` takes them from locust.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from loadtest.harness import table
from loadtest.locust import operations
from loadtest.locust.shapes import SHAPES

EVERY = "every"
"""The table whose values hold for every shape; the table of a shape comes before it, value by value."""

_RATIO, _P99, _RATE = "failure_ratio_max", "p99_ms_max", "per_second_min"
_GROWTH, _LEFT = "process_growth_mib_max", "redis_left_mib_max"


class BadThresholdsError(ValueError):
    """A file of thresholds cannot be used; says where and why in one line."""


class Limits(NamedTuple):
    """The limits of a run: of the share of failures, and by operation of the 99th percentile (ms) and the rate (1/s).

    `process_growth_mib`: growth of a process of the broker, None: not judged; `redis_left_mib`: memory of Redis after
    all topics are deleted.
    """

    failure_ratio: float
    p99_ms: Mapping[str, float]
    per_second: Mapping[str, float]
    process_growth_mib: float | None
    redis_left_mib: float

    def of(self, users: Collection[str], formats: Collection[str]) -> Limits:
        """Return those that hold for a run with these users only, and topics of these formats."""

        def held(table: Mapping[str, float]) -> dict[str, float]:
            result = ((name, operations.ALL[name], limit) for name, limit in table.items())
            return {
                name: limit
                for name, operation, limit in result
                if operation.user in users and (not operation.type or operation.type in formats)
            }

        return self._replace(p99_ms=held(self.p99_ms), per_second=held(self.per_second))


class Measured(NamedTuple):
    """What locust has counted of one operation, or of all."""

    requests: int
    failures: int
    p99_ms: float
    per_second: float


class Verdict(NamedTuple):
    """One limit, what was reached, and whether that is enough."""

    what: str
    limit: str
    reached: str
    kept: bool


def load(path: Path, shape: str) -> Limits:
    """Read the limits of a shape. Raises BadThresholdsError."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadThresholdsError(f"{path}: {error}") from error
    if unknown := tables.keys() - {EVERY, *SHAPES}:
        raise BadThresholdsError(f"{path}: [{min(unknown)}] is no shape")
    merged: dict[str, object] = {_P99: {}, _RATE: {}}
    for name in (EVERY, shape):
        table = tables.get(name, {})
        if not isinstance(table, dict):
            raise BadThresholdsError(f"{path}: [{name}] is no table")
        if unknown := table.keys() - {_RATIO, _P99, _RATE, _GROWTH, _LEFT}:
            raise BadThresholdsError(f"{path}: [{name}] has an unknown key {min(unknown)}")
        for key, value in table.items():
            old = merged.get(key)
            merged[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    ratio = _number(path, _RATIO, merged.get(_RATIO, 0.0))
    growth = _number(path, _GROWTH, merged[_GROWTH]) if _GROWTH in merged else None
    left = _number(path, _LEFT, merged.get(_LEFT, 0.0))
    p99_ms, per_second = (_by_operation(path, key, merged[key]) for key in (_P99, _RATE))
    return Limits(ratio, p99_ms, per_second, growth, left)


def _by_operation(path: Path, key: str, table: object) -> dict[str, float]:
    if not isinstance(table, dict):
        raise BadThresholdsError(f"{path}: {key} is no table")
    if unknown := table.keys() - operations.ALL.keys():
        raise BadThresholdsError(f"{path}: {key} names {min(unknown)!r}, which is no operation")
    return {name: _number(path, f"{key} of {name!r}", value) for name, value in table.items()}


def _number(path: Path, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise BadThresholdsError(f"{path}: {key} is {value!r}, which is no number from 0")
    return float(value)


def judge(
    limits: Limits, total: Measured, by_operation: Mapping[str, Measured], errors: int = 0
) -> list[Verdict]:
    """Hold what was measured against the limits; an operation that was never measured keeps none of its own.

    `errors` are those of users themselves, not of their clients: there must be none.
    """
    ratio = total.failures / total.requests if total.requests else 1.0
    verdicts = [
        Verdict("failures", f"<= {limits.failure_ratio:.2%}", f"{ratio:.2%}", ratio <= limits.failure_ratio),
        Verdict("errors in users", "none", f"{errors:,}", errors == 0),
    ]
    for name, limit in limits.p99_ms.items():
        result = by_operation.get(name)
        reached = "never measured" if result is None else f"{result.p99_ms:,.0f} ms"
        kept = result is not None and result.p99_ms <= limit
        verdicts.append(Verdict(f"{name}, p99", f"<= {limit:,.0f} ms", reached, kept))
    for name, limit in limits.per_second.items():
        result = by_operation.get(name)
        reached = "never measured" if result is None else f"{result.per_second:,.1f}/s"
        kept = result is not None and result.per_second >= limit
        verdicts.append(Verdict(f"{name}, rate", f">= {limit:,.1f}/s", reached, kept))
    return verdicts


def summary(verdicts: list[Verdict]) -> str:
    """Return the verdicts as lines for people."""
    rows = [
        (verdict.what, verdict.limit, verdict.reached, "kept" if verdict.kept else "BROKEN")
        for verdict in verdicts
    ]
    return table(("threshold", "limit", "reached", ""), rows)
