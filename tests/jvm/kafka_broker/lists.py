"""The lists of tests: which classes are run, which of their tests cannot pass, and which must pass one day.

A line of outside.txt or open.txt is CLASS#METHOD: REASON. METHOD stands for all invocations of a test with parameters,
METHOD#2 for the second one; in METHOD * stands for any characters.

- outside.txt: no broker outside of the test's process can pass, or Korvet documents another behaviour.
- open.txt: faults of Korvet. It only shrinks: a run fails if one of its tests passes.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Entry(NamedTuple):
    """A line of a list."""

    owner: str
    method: str
    reason: str

    def names(self, owner: str, method: str) -> bool:
        """Return whether the test is one of the entry's."""
        patterns = self.method, f"{self.method}#*"
        return self.owner == owner and any(fnmatchcase(method, pattern) for pattern in patterns)


def classes() -> list[str]:
    """Return the classes that a whole run has."""
    return (HERE / "classes.txt").read_text().splitlines()


def entries(name: str) -> list[Entry]:
    """Return the lines of outside.txt or open.txt."""
    return [entry_of(line) for line in (HERE / name).read_text().splitlines()]


def entry_of(line: str) -> Entry:
    """Return a line's entry; ValueError if it is none."""
    test, _, reason = line.partition(": ")
    owner, _, method = test.partition("#")
    if not (method and reason.strip()):
        raise ValueError(f"{line!r} is not CLASS#METHOD: REASON")
    return Entry(owner, method, reason)
