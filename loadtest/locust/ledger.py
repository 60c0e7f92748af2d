"""What producers write and know of it: kept while they run, put down in a file when they stop, read at the end.

The value of a record has its number within its key and when it was sent, filled up to the size that was asked for.
One file per process of locust, one JSON line per producer, so that nothing is shared between processes. Knows keys and
numbers; no client and no locust.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct(">qq")
SIZE_MIN = _HEAD.size
"""The least size of a value (bytes)."""


class Stamp(NamedTuple):
    """What a value says: the number of the record within its key, from 0, and the time it was sent (ns, Unix time)."""

    sequence: int
    sent_ns: int


def padding(size: int) -> bytes:
    """Return what fills a value up to `size` bytes: text, as most values are, so that compression has something."""
    text = b'{"order":"4711","customer":"Example & Co","amount":129.95,"currency":"EUR"},'
    wanted = max(size - SIZE_MIN, 0)
    return (text * (wanted // len(text) + 1))[:wanted]


def value(stamp: Stamp, filler: bytes) -> bytes:
    """Return the value of a record."""
    return _HEAD.pack(*stamp) + filler


def parse(value: bytes | None) -> Stamp | None:
    """Return what a value says, None for one that no producer of this load has written."""
    if value is None or len(value) < SIZE_MIN:
        return None
    return Stamp(*_HEAD.unpack_from(value))


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
