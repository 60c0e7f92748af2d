"""How often a server has run each command, for all its clients: what a request costs, counted where it arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def commands_of(raw: Any) -> Iterator[Counter[str]]:
    """Give the commands that run meanwhile, by their names; they are in it at the end."""
    counts = Counter[str]()
    before = _run(raw)
    yield counts
    counts.update(_run(raw) - before)


def _run(raw: Any) -> Counter[str]:
    stats = raw.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): item["calls"] for name, item in stats.items()})
