"""The chart of a run: every peer's ratio to Apache Kafka, one panel a section. Knows matplotlib; no measurements."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter

from loadtest.bench.results import BASE, Figure, Results

_SECTIONS_MAX = 8
_INCHES_OF_A_ROW, _INCHES_OF_A_PANEL, _INCHES_WIDE = 0.42, 1.1, 12.0
_BARS = 0.8
# Distinguishable with every common colour blindness (Okabe and Ito).
_COLOURS = {"korvet-record": "#E69F00", "korvet-batch": "#0072B2", "redis": "#009E73", "mock": "#999999"}
_COLOURS |= {"korvet-batch-tls": "#56B4E9", "kafka-tls": "#D55E00"}
_COLOURS |= {"korvet-record-compiled": "#F0E442", "korvet-batch-compiled": "#CC79A7"}
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
    panel.set_yticks(
        [row + _BARS / 2 - thick / 2 for row in range(len(figures))], [_label(f) for f in figures]
    )
    panel.invert_yaxis()
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    panel.axvline(1.0, color="black", linewidth=1)
    panel.grid(visible=True, axis="x", which="both", linewidth=0.3)
    panel.legend(loc="best")


def _label(figure: Figure) -> str:
    return f"{figure.name} ({'more' if figure.more else 'less'} is better)"
