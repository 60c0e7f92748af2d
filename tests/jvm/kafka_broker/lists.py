"""The lists of tests: the classes to run, tests that cannot pass, and tests that must pass one day.

A line of the last three is CLASS#METHOD,METHOD: REASON. METHOD stands for all invocations of a test with parameters,
METHOD#2 for the second one; * stands for any characters.

- classes.txt: the classes of a whole run.
- outside.txt: no broker outside of the test's process can pass, or Korvet documents another behaviour.
- outside_time.txt: the same in the layout `time` alone, whose offsets have gaps.
- open.txt: faults of Korvet. It only shrinks: a run fails if one of its tests passes.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Entry(NamedTuple):
    """A test of a list; `owner` is its class."""

    owner: str
    method: str
    reason: str

    def names(self, owner: str, method: str) -> bool:
        """Return whether the test is one of the entry's."""
        patterns = self.method, f"{self.method}#*"
        return fnmatchcase(owner, self.owner) and any(fnmatchcase(method, pattern) for pattern in patterns)


def classes() -> list[str]:
    """Return the classes that a whole run has."""
    return (HERE / "classes.txt").read_text().splitlines()


def entries(name: str) -> list[Entry]:
    """Return the entries of a list."""
    return [entry for line in (HERE / name).read_text().splitlines() for entry in entries_of(line)]


def outside(layout: str) -> list[Entry]:
    """Return the entries of outside.txt, and those for the layout `time` alone."""
    return entries("outside.txt") + (entries("outside_time.txt") if layout == "time" else [])


def entries_of(line: str) -> list[Entry]:
    """Return the entries of a line, one for each METHOD; ValueError for another form."""
    tests, _, reason = line.partition(": ")
    owner, _, methods = tests.partition("#")
    if not (methods and reason.strip()):
        raise ValueError(f"{line!r} is not CLASS#METHOD,METHOD: REASON")
    return [Entry(owner, method, reason) for method in methods.split(",")]
