"""The pages of the documentation, and their tables made from the code; `python -m tests.support.docs` rewrites those.

Each table stands between two marker lines, `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from prometheus_client.metrics import MetricWrapperBase

from korvet.cli import cluster, config
from korvet.cli.main import korvet
from korvet.cli.options import add_options, cluster_options, json_option
from korvet.cli.run import PROGRAM
from korvet.config.broker_configs import WITHOUT_EFFECT
from korvet.config.described import inherited_entries
from korvet.config.dynamic import Layers
from korvet.config.sources import load
from korvet.handlers.registry import HANDLERS
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

ROOT = Path(__file__).parents[2]
PAGES = {
    file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
    for pattern in ("*.md", "deploy/*.md", "deploy/helm/*/*.md", "docs/**/*.md", "loadtest/*.md")
    for file in sorted(ROOT.glob(pattern))
}
"""The text of every page, by its path in the repository."""

_BLOCK = re.compile(r"(?P<open><!-- table: (?P<name>[a-z-]+) -->\n).*?(?P<close><!-- end -->)", re.DOTALL)
# click appends the range of a number to the help of its flag.
_RANGE = re.compile(r"(?:; |(?<=\[))[-.\d]*[<=]*x[<=>]+[-.\d]+(?=\])")


def prose(text: str) -> str:
    """Return a page without its blocks of code."""
    fenced = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    return re.sub(r"^ {4,}(?![-*] ).*$", "", fenced.sub("", text), flags=re.MULTILINE)


def links(text: str) -> list[str]:
    """Return where the links of a page lead, but for those to other hosts."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(text))
    return [target for target in targets if "://" not in target]


def topic_config_table() -> str:
    """Write the topic configs as a Markdown table: name, default, what is taken, what it is."""
    settings = load(None, {}, {}).settings
    lines = ["| Topic config | Default | Taken | What it is |", "| --- | --- | --- | --- |"]
    for entry in inherited_entries(Layers(settings=settings, static=settings)):
        definition = entry.definition
        taken = ", ".join(f"`{choice}`" for choice in definition.taken)
        line = f"| `{definition.name}` | `{entry.value}` | {taken} | {definition.doc} |"
        lines.append(line.replace("``", ""))
    return "\n".join(lines) + "\n"


def metrics_table() -> str:
    """Write the metrics as a Markdown table: name as it is scraped, labels, what it is."""
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
    lines = ["| Metric | Labels | What it is |", "| --- | --- | --- |"]
    for family, labels in pairs:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        lines.append(f"| `{name}` | {', '.join(f'`{label}`' for label in labels)} | {family.documentation} |")
    return "\n".join(lines) + "\n"


def command_reference(root: click.Group) -> str:
    """Write the reference of all commands: how each is called, what it does, and a table of its flags.

    The flags of all commands that connect to a cluster are listed once, at the top.
    """
    common = _flags(add_options(click.Command(""), cluster_options, json_option))
    lines = ["Commands that connect to a cluster have these flags, besides their own:", *_flags_table(common)]
    for path, command in _leaves(root, ()):
        lines += ["", f"## {PROGRAM} {' '.join(path)}", *_paragraphs(command)]
        lines += ["", f"`{PROGRAM} {' '.join((*path, *_usage(command)))}`"]
        lines += _flags_table([each for each in _flags(command) if each not in common])
    return "\n".join(lines) + "\n"


def _leaves(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _leaves(command, (*path, name))
        else:
            yield (*path, name), command


def _usage(command: click.Command) -> list[str]:
    with click.Context(command) as context:
        # Without the first piece, [OPTIONS].
        return command.collect_usage_pieces(context)[1:]


def _paragraphs(command: click.Command) -> list[str]:
    lines: list[str] = []
    for paragraph in (command.help or "").split("\n\n"):
        lines += ["", " ".join(paragraph.split())]
    return lines


def _flags(command: click.Command) -> list[tuple[str, str]]:
    """Return the flags of a command, as its help shows them, and what each does."""
    with click.Context(command) as context:
        shown = [each.get_help_record(context) for each in command.params if isinstance(each, click.Option)]
    return [
        (flags, _RANGE.sub("", text).replace("  [", " [").removesuffix(" []"))
        for flags, text in filter(None, shown)
    ]


def _flags_table(records: list[tuple[str, str]]) -> list[str]:
    rows = [f"| `{_cell(flags)}` | {_cell(text)} |" for flags, text in records]
    return ["", "| Flag | What it does |", "| --- | --- |", *rows] if rows else []


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


TABLES: dict[str, Callable[[], str]] = {
    "settings": config.reference,
    "without-effect": lambda: config.markdown_table(WITHOUT_EFFECT.values()),
    "apis": lambda: cluster.markdown_table([handler for _, handler in sorted(HANDLERS.items())]),
    "topic-configs": topic_config_table,
    "metrics": metrics_table,
    "differences": differences_table,
    "commands": lambda: command_reference(korvet.loaded()),
}


def renewed(text: str) -> str:
    """Return the text of a page with every table rewritten."""
    return _BLOCK.sub(lambda block: block["open"] + TABLES[block["name"]]() + block["close"], text)


if __name__ == "__main__":
    for path, text in PAGES.items():
        (ROOT / path).write_text(renewed(text), encoding="utf-8")
