"""The existing metrics, and the metrics in an expression of PromQL."""

from __future__ import annotations

import re
from functools import cache

from tests.support import docs

_ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<labels>[^|]*) \|", re.MULTILINE)
_ASKED = re.compile(r"(?<![\w:])(korvet_\w+)(?!\w*:)(?:\{(?P<labels>[^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_PARTS_OF_HISTOGRAMS = ("_bucket", "_sum", "_count")
# What Prometheus adds to every series, and what it calls a histogram's bucket.
_ADDED = {"job", "instance", "le"}


@cache
def labels_by_name() -> dict[str, set[str]]:
    """Return the labels of every metric that a broker has, by its name as it is scraped."""
    rows = _ROW.finditer(docs.metrics_table())
    return {row["name"]: set(re.findall(r"`(\w+)`", row["labels"])) for row in rows}


def unknown(expression: str) -> list[str]:
    """Return what an expression asks for and no broker has: metrics, and labels that a selector names."""
    known = labels_by_name()
    wrong: list[str] = []
    for asked in _ASKED.finditer(expression):
        name = asked[1]
        base = next((name.removesuffix(part) for part in _PARTS_OF_HISTOGRAMS if name.endswith(part)), name)
        labels = known.get(name, known.get(base))
        if labels is None:
            wrong.append(name)
        else:
            named = set(_LABEL.findall(asked["labels"] or ""))
            wrong += [f"{name}{{{label}}}" for label in sorted(named - labels - _ADDED)]
    return wrong
