"""What producers know of what they wrote: kept while they run, put down in a file when they stop, read at the end.

One file per process of locust, one JSON line per producer, so that nothing is shared between processes. Knows keys and
numbers; no client and no locust.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Key(NamedTuple):
    """One sequence of records: all records of a key of a topic."""

    topic: str
    name: str


class Written(NamedTuple):
    """How many records of a key were sent, numbered from 0, and which of them were never acknowledged.

    Of the latter each may be in the log, once, or not.
    """

    sent: int
    unsure: frozenset[int]


class Page:
    """What one producer has written so far."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._sent = dict.fromkeys(keys, 0)
        self._under_way: dict[Key, set[int]] = {key: set() for key in self._sent}

    def send(self, key: Key) -> int:
        """Take the next number of a key, whose record is sent now."""
        number = self._sent[key]
        self._sent[key] += 1
        self._under_way[key].add(number)
        return number

    def acknowledge(self, key: Key, number: int) -> None:
        """Note that a record is in the log for sure."""
        self._under_way[key].discard(number)

    def write(self, directory: Path) -> None:
        """Put it down, with all that is not acknowledged by now as unsure."""
        rows = [[*key, sent, sorted(self._under_way[key])] for key, sent in self._sent.items()]
        with (directory / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows) + "\n")


def read(directory: Path) -> dict[Key, Written]:
    """Return what all producers have put down."""
    written = {}
    for path in directory.glob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            for topic, name, sent, unsure in json.loads(line):
                written[Key(topic, name)] = Written(sent, frozenset(unsure))
    return written
