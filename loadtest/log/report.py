"""The figures of a run: a table for people, JSON for comparisons.

Knows numbers and names; nothing of how they were measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple


class Latencies(NamedTuple):
    """What many requests took (ms)."""

    requests: int
    p50: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latencies:
        """Make one from at least two values."""
        cuts = quantiles(seconds, n=100)
        return cls(len(seconds), cuts[49] * 1000, cuts[98] * 1000, max(seconds) * 1000)


class Row(NamedTuple):
    """One line of the table: what it is, and what each format has to say."""

    name: str
    unit: str


class Report:
    """All figures of one run, by format."""

    def __init__(self, records: int, meanwhile: str = "retention") -> None:
        """`meanwhile` is what Redis was watched during."""
        self._meanwhile = meanwhile
        self._environment = {
            "records": records,
            "cores": os.cpu_count(),
            "load_average_before": os.getloadavg(),
        }
        self._rows: dict[Row, dict[str, float]] = {}
        self._slow: dict[str, Mapping[str, float]] = {}

    def add(self, storage_format: str, name: str, unit: str, value: float) -> None:
        """Keep one figure."""
        self._rows.setdefault(Row(name, unit), {})[storage_format] = value

    def add_latencies(self, storage_format: str, name: str, latencies: Latencies) -> None:
        """Keep how long something took."""
        for part, value in (("p50", latencies.p50), ("p99", latencies.p99), ("max", latencies.longest)):
            self.add(storage_format, f"{name}: {part}", "ms", value)

    def add_slow(self, storage_format: str, slowest: Mapping[str, float]) -> None:
        """Keep which commands held Redis for a millisecond or more, and for how long at most."""
        self._slow[storage_format] = slowest
        self.add(
            storage_format, "longest command of Redis meanwhile", "ms", max(slowest.values(), default=0.0)
        )

    def markdown(self) -> str:
        """Return the table, and below it what held Redis."""
        formats = list(dict.fromkeys(one for values in self._rows.values() for one in values))
        lines = [
            "| | " + " | ".join(f"`{one}`" for one in formats) + " |",
            "| --- |" + " --- |" * len(formats),
        ]
        for row, values in self._rows.items():
            cells = (_number(values[one]) if one in values else "-" for one in formats)
            lines.append(f"| {row.name}, {row.unit} | " + " | ".join(cells) + " |")
        for one, slowest in self._slow.items():
            named = ", ".join(f"{what} {_number(ms)}" for what, ms in slowest.items())
            lines += [
                "",
                f"`{one}`: longest runs of 1 ms and more during {self._meanwhile}, ms: {named or 'none'}",
            ]
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        rows = [{**row._asdict(), "formats": values} for row, values in self._rows.items()]
        whole = {"environment": self._environment, "figures": rows, "slow": self._slow}
        path.write_text(json.dumps(whole, indent=1) + "\n")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
