"""Holds what is in the logs against what was written: nothing lost, nothing doubled, everything in order.

Pure: takes records one after the other, as they stand in each partition, and counts faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from loadtest.locust.ledger import Key, Written

_EXAMPLES_MAX = 10

LOST, DOUBLED, OUT_OF_ORDER = "lost", "doubled", "out of order"
ELSEWHERE, UNKNOWN = "in a second partition", "written by nobody"


class _Seen:
    """What was read of one key: up to which number, what was missing on the way, which of the unsure ones came."""

    def __init__(self, written: Written, partition: int) -> None:
        self.written = written
        self.partition = partition
        self.next = 0
        self.missing: set[int] = set()
        self.unsure: set[int] = set()


class Sequences:
    """All keys of a run. A record whose sending failed may be there or not, and anywhere, but not twice."""

    def __init__(self, written: Mapping[Key, Written]) -> None:
        self.faults: Counter[str] = Counter()
        self.examples: list[str] = []
        self.records = 0
        self._written = written
        self._seen: dict[Key, _Seen] = {}

    def record(self, key: Key, partition: int, number: int) -> None:
        """Take the next record of a partition."""
        self.records += 1
        seen = self._seen.get(key)
        if seen is None:
            if key not in self._written:
                self._fault(UNKNOWN, key, number)
                return
            seen = self._seen[key] = _Seen(self._written[key], partition)
        if partition != seen.partition:
            self._fault(ELSEWHERE, key, number)
        if number == seen.next and number < seen.written.sent and number not in seen.written.unsure:
            seen.next += 1
        else:
            self._unexpected(seen, key, number)

    def _unexpected(self, seen: _Seen, key: Key, number: int) -> None:
        if not 0 <= number < seen.written.sent:
            self._fault(UNKNOWN, key, number)
        elif number in seen.written.unsure:
            if number in seen.unsure:
                self._fault(DOUBLED, key, number)
            seen.unsure.add(number)
        elif number in seen.missing:
            seen.missing.discard(number)
            self._fault(OUT_OF_ORDER, key, number)
        elif number < seen.next:
            self._fault(DOUBLED, key, number)
        else:
            seen.missing.update(set(range(seen.next, number)) - seen.written.unsure)
            seen.next = number + 1

    def finish(self) -> None:
        """Count what is missing, once all records were taken."""
        for key, written in self._written.items():
            seen = self._seen.get(key) or _Seen(written, -1)
            missing = seen.missing | (set(range(seen.next, written.sent)) - written.unsure)
            for number in sorted(missing):
                self._fault(LOST, key, number)

    def _fault(self, kind: str, key: Key, number: int) -> None:
        self.faults[kind] += 1
        if len(self.examples) < _EXAMPLES_MAX:
            self.examples.append(f"{kind}: record {number} of key {key.name} in {key.topic}")
