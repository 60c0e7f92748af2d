"""The pages of the documentation, and their tables made from the code; `python -m tests.support.docs` rewrites those.

Each table stands between two marker lines, `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase

from korvet.cli.cluster import API_TITLES, api_cells
from korvet.cli.main import korvet
from korvet.config.broker_configs import WITHOUT_EFFECT
from korvet.config.definition import ConfigDef
from korvet.config.described import inherited_entries
from korvet.config.documentation import GROUPS
from korvet.config.dynamic import Layers
from korvet.config.settings import SETTINGS
from korvet.config.sources import load
from korvet.handlers.registry import HANDLERS
from korvet.protocol.types import ConfigType
from korvet.telemetry import gauges, metrics
from korvet.telemetry.process_metrics import ProcessCollector
from korvet.telemetry.process_table import ProcessTable
from korvet.telemetry.redis_metrics import redis_families
from korvet.telemetry.snapshot import (
    ArchiverTotals,
    LakeLagSnapshot,
    LogStatsSnapshot,
    PipelinesSnapshot,
    TablesSnapshot,
)
from korvet.telemetry.topic_metrics import TOPICS
from tests.differential.compare import differences_table
from tests.support import command_reference

ROOT = Path(__file__).parents[2]
PAGES = {
    file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
    for pattern in ("*.md", "deploy/*.md", "deploy/helm/*/*.md", "docs/**/*.md", "loadtest/*.md")
    for file in sorted(ROOT.glob(pattern))
}
"""The text of every page, by its path in the repository."""

_BLOCK = re.compile(r"(?P<open><!-- table: (?P<name>[a-z-]+) -->\n).*?(?P<close><!-- end -->)", re.DOTALL)


def prose(text: str) -> str:
    """Return a page without its blocks of code."""
    fenced = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    return re.sub(r"^ {4,}(?![-*] ).*$", "", fenced.sub("", text), flags=re.MULTILINE)


def links(text: str) -> list[str]:
    """Return where the links of a page lead, but for those to other hosts."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(text))
    return [target for target in targets if "://" not in target]


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table, each row in a line."""
    lines = (titles, ("---",) * len(titles), *rows)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def settings_reference() -> str:
    """Write all settings in their groups, each with a heading."""
    lines: list[str] = []
    for group, texts in GROUPS.items():
        lines += [f"## {group}", ""]
        for definition in map(SETTINGS.__getitem__, texts):
            default = definition.format(definition.default)
            facts = f"Default: `{default}`." if default else "Default: empty."
            lines += [
                f"### `{definition.name}`",
                "",
                f"{_text_of(definition)} {facts} Altered by: {_altered_by(definition)}.",
                "",
            ]
    return "\n".join(lines)


def settings_without_effect() -> str:
    """Write the settings that are known and do nothing."""
    rows = [
        (
            f"`{definition.name}`",
            f"`{definition.format(definition.default)}`" if definition.default != "" else "",
            _altered_by(definition),
            _text_of(definition),
        )
        for definition in WITHOUT_EFFECT.values()
    ]
    return markdown(("Setting", "Default", "Altered by", "What it is"), rows)


def _text_of(definition: ConfigDef) -> str:
    choices = definition.choices if definition.type is ConfigType.STRING else ()
    return definition.doc + (f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else "")


def _altered_by(definition: ConfigDef) -> str:
    """Return what applies a new value of a setting: clients may alter what is dynamic, at once and without SIGHUP."""
    if definition.dynamic:
        return "clients, SIGHUP" if definition.reload else "clients"
    return "SIGHUP" if definition.reload else "restart"


def topic_config_table() -> str:
    """Write the topic configs: name, default, what is taken, what it is."""
    settings = load(None, {}, {}).settings
    rows = [
        (
            f"`{entry.definition.name}`",
            f"`{entry.value}`" if entry.value else "",
            ", ".join(f"`{choice}`" for choice in entry.definition.taken),
            entry.definition.doc,
        )
        for entry in inherited_entries(Layers(settings=settings, static=settings))
    ]
    return markdown(("Topic config", "Default", "Taken", "What it is"), rows)


def metrics_table() -> str:
    """Write the metrics: name as it is scraped, labels, what it is."""
    counted = [metric for metric in vars(metrics).values() if isinstance(metric, MetricWrapperBase)]
    published = [
        *ProcessCollector(ProcessTable(), os.getpid()).collect(),
        *TOPICS.families(),
        *gauges.families_of(LogStatsSnapshot(taken_at=0, logs=[])),
        *gauges.families_of(LakeLagSnapshot(lags=[])),
        *gauges.families_of(PipelinesSnapshot(pipelines=[])),
        *gauges.families_of(ArchiverTotals()),
        *gauges.families_of(TablesSnapshot(tables=[])),
        *redis_families([]),
    ]
    pairs = [(family, metric._labelnames) for metric in counted for family in metric.describe()]
    pairs += [(family, family._labelnames) for family in published]
    rows = [
        (
            f"`{family.name}_total`" if family.type == "counter" else f"`{family.name}`",
            ", ".join(f"`{label}`" for label in labels),
            family.documentation,
        )
        for family, labels in pairs
    ]
    return markdown(("Metric", "Labels", "What it is"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings_reference,
    "without-effect": settings_without_effect,
    "apis": lambda: markdown(API_TITLES, [api_cells(handler) for _, handler in sorted(HANDLERS.items())]),
    "topic-configs": topic_config_table,
    "metrics": metrics_table,
    "differences": differences_table,
    "commands": lambda: command_reference.markdown(korvet.loaded()),
}


def renewed(text: str) -> str:
    """Return the text of a page with every table rewritten."""
    return _BLOCK.sub(lambda block: block["open"] + TABLES[block["name"]]() + block["close"], text)


if __name__ == "__main__":
    for path, text in PAGES.items():
        (ROOT / path).write_text(renewed(text), encoding="utf-8")
