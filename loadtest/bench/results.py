"""Figures of a run: kept by measurement, peer and round; written as JSON, and as a Markdown table of ratios.

Knows numbers and names; nothing of how they were measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import NamedTuple

from loadtest.harness import number

BASE = "kafka"
"""Whose figures the ratios are against."""


class Figure(NamedTuple):
    """What is measured, and in which section of the table it stands.

    `more` is whether more is better, `compared` whether a ratio means something.
    """

    section: str
    name: str
    unit: str
    more: bool = False
    compared: bool = True


class Span(NamedTuple):
    """What several rounds gave."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Span:
        """Make one from at least one value."""
        return cls(min(values), median(values), max(values))


class Results:
    """All figures of one run."""

    def __init__(self, peers: list[str]) -> None:
        self.peers = peers
        self.notes: dict[str, str] = {}
        self.absent: dict[str, str] = {}
        self.environment: dict[str, object] = {}
        self.failures: list[str] = []
        self._values: dict[Figure, dict[str, dict[int, float]]] = {}

    def add(self, figure: Figure, peer: str, turn: int, value: float) -> None:
        """Keep what a peer reached in one round."""
        self._values.setdefault(figure, {}).setdefault(peer, {})[turn] = value

    def figures(self) -> list[Figure]:
        """Return what was measured, in the order of sections and then of measuring."""
        sections = list(dict.fromkeys(figure.section for figure in self._values))
        return sorted(self._values, key=lambda figure: sections.index(figure.section))

    def value(self, figure: Figure, peer: str) -> Span | None:
        """Return what a peer reached."""
        turns = self._values[figure].get(peer)
        return Span.of(list(turns.values())) if turns else None

    def ratio(self, figure: Figure, peer: str) -> Span | None:
        """Return a peer's figure over Apache Kafka's, taken round by round, where both have one."""
        own, base = self._values[figure].get(peer, {}), self._values[figure].get(BASE, {})
        ratios = [value / base[turn] for turn, value in own.items() if base.get(turn)]
        return Span.of(ratios) if ratios and figure.compared and peer != BASE else None

    def markdown(self) -> str:
        """Return the table: one section each, Apache Kafka first, ratios as median (min-max)."""
        columns = sorted(
            (peer for peer in self.peers if peer not in self.absent), key=lambda peer: peer != BASE
        )
        lines = [f"- `{peer}`: {note}" for peer, note in self.notes.items()]
        lines += [f"- `{peer}`: cannot be had: {why}" for peer, why in self.absent.items()]
        lines += [f"- failed: {failure}" for failure in self.failures]
        section = ""
        for figure in self.figures():
            if figure.section != section:
                section = figure.section
                lines += ["", f"### {section}", ""]
                lines += ["| | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
            cells = [self._cell(figure, peer) for peer in columns]
            lines.append(f"| {figure.name}, {figure.unit} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def _cell(self, figure: Figure, peer: str) -> str:
        value, ratio = self.value(figure, peer), self.ratio(figure, peer)
        if value is None:
            return "-"
        if ratio is not None:
            return f"{number(value.middle)}; **{ratio.middle:.2f} x** ({ratio.low:.2f}-{ratio.high:.2f})"
        return f"{number(value.middle)} ({number(value.low)}-{number(value.high)})"

    def write(self, path: Path) -> None:
        """Write everything as JSON, each value of each round."""
        rows = []
        for figure in self.figures():
            peers: dict[str, object] = {}
            for peer, turns in self._values[figure].items():
                ratio = self.ratio(figure, peer)
                peers[peer] = {
                    "rounds": list(turns.values()),
                    **Span.of(list(turns.values()))._asdict(),
                    "ratio": ratio._asdict() if ratio else None,
                }
            rows.append({**figure._asdict(), "peers": peers})
        whole = {
            "environment": self.environment,
            "notes": self.notes,
            "absent": self.absent,
            "failures": self.failures,
            "figures": rows,
        }
        path.write_text(json.dumps(whole, indent=1) + "\n")
