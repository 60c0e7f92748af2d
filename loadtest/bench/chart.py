"""The charts of a run: every peer's ratio to Apache Kafka, one panel a section, and the cost of a record.

Knows matplotlib; measures nothing.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter

from loadtest.bench.cost import BROKER, REDIS, SWEEPS
from loadtest.bench.results import BASE, Figure, Results

_SECTIONS_MAX = 8
_INCHES_OF_A_ROW, _INCHES_OF_A_PANEL, _INCHES_WIDE = 0.42, 1.1, 12.0
_BARS = 0.8
# Distinguishable with every common colour blindness (Okabe and Ito).
_COLOURS = {"korvet-record": "#E69F00", "korvet-batch": "#0072B2", "redis": "#009E73"}
_COLOURS |= {"korvet-batch-tls": "#56B4E9", "kafka-tls": "#D55E00", BASE: "#000000"}
_COLOURS |= {"kfake": "#882255", "tansu": "#44AA99"}


def draw(results: Results, path: Path) -> None:
    """Write a PNG: medians as bars, minimum and maximum as whiskers, Apache Kafka as the line at 1."""
    sections: dict[str, list[Figure]] = {}
    peers = [peer for peer in results.peers if peer != BASE and peer not in results.absent]
    for figure in results.figures():
        if any(results.ratio(figure, peer) for peer in peers):
            sections.setdefault(figure.section, []).append(figure)
    if not sections:
        return
    mpl.rcParams["font.size"] = 8
    heights = [_INCHES_OF_A_PANEL + _INCHES_OF_A_ROW * len(figures) for figures in sections.values()]
    canvas = Canvas(figsize=(_INCHES_WIDE, sum(heights)), layout="constrained")
    panels = canvas.subplots(len(sections), 1, squeeze=False, height_ratios=heights)
    for panel, (section, figures) in zip(panels[:, 0], sections.items(), strict=True):
        _panel(panel, results, section, figures, peers)
    canvas.savefig(path, dpi=110)


def draw_cost(results: Results, path: Path) -> None:
    """Write an SVG of the scenario `cost`, one panel a sweep: medians, Redis as the dashed lines."""
    measured = set(results.figures())
    if not any(sweep.figure(sweep.points[0], BROKER) in measured for sweep in SWEEPS):
        return
    # Text stays text, drawn by the reader's fonts: a tenth of the size.
    mpl.rcParams |= {"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "korvet"}
    canvas = Canvas(figsize=(9.0, 6.5), layout="constrained")
    for panel, sweep in zip(canvas.subplots(2, 2).flat, SWEEPS, strict=True):
        for peer in results.peers:
            for part, style in ((BROKER, "-"), (REDIS, "--")):
                figures = ((point, sweep.figure(point, part)) for point in sweep.points)
                spans = [(point, results.value(item, peer)) for point, item in figures if item in measured]
                line = [(point, span.middle) for point, span in spans if span]
                if line:
                    label = peer if part == BROKER else f"{peer}: Redis"
                    panel.plot(*zip(*line, strict=True), style, marker=".", color=_COLOURS[peer], label=label)
        panel.set_title(f"{sweep.title}, us a record", loc="left", fontweight="bold")
        panel.set_xlabel(sweep.axis)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.xaxis.set_major_formatter(FuncFormatter(lambda point, _: f"{point:,.0f}"))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda cost, _: f"{cost:g}"))
        panel.yaxis.set_minor_formatter(
            FuncFormatter(lambda cost, _: f"{cost:g}" if f"{cost:g}"[0] in "25" else "")
        )
        panel.grid(visible=True, which="major", linewidth=0.3)
    drawn = {line.get_label(): line for panel in canvas.axes for line in panel.get_lines()}
    canvas.legend(handles=list(drawn.values()), loc="outside lower center", ncols=5)
    canvas.savefig(path, metadata={"Date": None})


def _panel(panel: Axes, results: Results, section: str, figures: list[Figure], peers: list[str]) -> None:
    thick = _BARS / max(len(peers), 1)
    for place, peer in enumerate(peers):
        spans = [(row, span) for row, figure in enumerate(figures) if (span := results.ratio(figure, peer))]
        if not spans:
            continue
        middles = [span.middle for _, span in spans]
        lows = [max(span.middle - span.low, 0.0) for _, span in spans]
        highs = [max(span.high - span.middle, 0.0) for _, span in spans]
        panel.barh(
            [row + place * thick for row, _ in spans],
            # From the line at 1, on whose side a bar lies: a logarithmic axis has no zero to begin at.
            [middle - 1 for middle in middles],
            left=1,
            height=thick * 0.9,
            xerr=[lows, highs],
            color=_COLOURS[peer],
            label=peer,
            error_kw={"linewidth": 0.8},
        )
    panel.set_title(f"{section}: ratio to Apache Kafka", loc="left", fontweight="bold")
    labels = [f"{figure.name} ({'more' if figure.more else 'less'} is better)" for figure in figures]
    panel.set_yticks([row + _BARS / 2 - thick / 2 for row in range(len(figures))], labels)
    panel.invert_yaxis()
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    panel.axvline(1.0, color="black", linewidth=1)
    panel.grid(visible=True, axis="x", which="both", linewidth=0.3)
    panel.legend(loc="best")
