"""Results of tests, their comparison with the lists, and the files that keep them for a resumed run."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.jvm.kafka_broker.lists import Entry

ROOT = Path(__file__).parents[3]
SUBJECT = ("korvet", "lua")
"""A change of these makes results out of date."""

_UNEQUAL = re.compile(r"(.*)expected: <(.*)> but was: <(.*)>(.*)", re.DOTALL)
_FAILURE_CHARS_MAX = 500
_AROUND_DIFFERENCE_CHARS = 100


class Result(NamedTuple):
    """A line of Report.java. `word` is passed, failed, skipped or in-process."""

    method: str
    word: str
    seconds: float
    failure: str


class Judged(NamedTuple):
    """The results of a class by the lists."""

    counts: Counter[str]
    failed: list[Result]
    closed: list[Entry]
    """Entries of open.txt whose tests pass."""


def read(file: Path) -> list[Result]:
    """Return the results of a class."""
    fields = [line.split("\t") for line in file.read_text().splitlines()]
    return [Result(method, word, float(seconds), failure) for method, word, seconds, failure in fields]


def judge(
    owner: str, results: Sequence[Result], outside: Sequence[Entry], still_open: Sequence[Entry]
) -> Judged:
    """Count a class's results; a failure that a list names is counted there."""
    counts = Counter[str]()
    failed = []
    passed = set[Entry]()
    fails = set[Entry]()
    for result in results:
        [is_outside, is_open] = (
            [entry for entry in entries if entry.names(owner, result.method)]
            for entries in (outside, still_open)
        )
        word = "outside" if result.word == "in-process" else result.word
        if word == "failed":
            word = "outside" if is_outside else "open" if is_open else "failed"
            fails.update(is_open)
        elif word == "passed":
            passed.update(is_open)
        if word == "failed":
            failed.append(result)
        counts[word] += 1
    return Judged(counts, failed, sorted(passed - fails))


def shortened(failure: str) -> str:
    """Return a failure's text; of two long values only what is around their first difference."""
    match = _UNEQUAL.fullmatch(failure)
    if len(failure) <= _FAILURE_CHARS_MAX or match is None:
        return failure[:_FAILURE_CHARS_MAX]
    expected, actual = match[2], match[3]
    pairs = enumerate(zip(expected, actual, strict=False))
    same = next(
        (position for position, (one, other) in pairs if one != other), min(len(expected), len(actual))
    )
    begin = max(0, same - _AROUND_DIFFERENCE_CHARS)
    end = same + _AROUND_DIFFERENCE_CHARS
    return f"{match[1]}expected: <...{expected[begin:end]}...> but was: <...{actual[begin:end]}...>"


def version() -> str:
    """Return the name of what is tested: the commit, and a digest of what is changed besides."""
    commit = _git("rev-parse", "--short=12", "HEAD").strip()
    changes = _git("diff", "HEAD", "--", *SUBJECT) + _git(
        "ls-files", "--others", "--exclude-standard", *SUBJECT
    )
    return commit + (f"-{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout
