"""The figures of a run: a table for people, JSON for comparisons. Knows numbers and names only."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles


class Report:
    """All figures of one run, in the order in which they were measured."""

    def __init__(self) -> None:
        self._environment = {"cores": os.cpu_count(), "load_average_before": os.getloadavg()}
        self._figures: list[tuple[str, str, float]] = []

    def add(self, name: str, unit: str, value: float) -> None:
        """Keep one figure."""
        self._figures.append((name, unit, value))

    def add_times(self, name: str, seconds: Sequence[float]) -> None:
        """Keep how long something took, of at least two values."""
        cuts = quantiles(seconds, n=100, method="inclusive")
        for part, value in (("p50", cuts[49]), ("p99", cuts[98]), ("max", max(seconds))):
            self.add(f"{name}: {part}", "ms", value * 1000)

    def markdown(self) -> str:
        """Return the table."""
        lines = ["| | |", "| --- | --- |"]
        for name, unit, value in self._figures:
            lines.append(f"| {name}, {unit} | {_number(value)} |" if unit else f"| {name} | {value:.0f} |")
        load = self._environment["load_average_before"]
        return "\n".join([*lines, "", f"Load of the machine before: {load}"]) + "\n"

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        figures = [{"name": name, "unit": unit, "value": value} for name, unit, value in self._figures]
        path.write_text(json.dumps({"environment": self._environment, "figures": figures}, indent=1) + "\n")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
