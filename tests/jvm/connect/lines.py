"""A file that a thread appends numbered lines to, and what of it may arrive after connectors were killed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

PAUSE_SECONDS = 0.02
LINES_AT_ONCE = 5


class Lines:
    """Appends lines to a file until it is ended; a context manager. `written` counts them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self.path.touch()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Write no more."""
        self._ended.set()
        self._thread.join()

    def _write(self) -> None:
        with self.path.open("a") as file:
            while not self._ended.wait(PAUSE_SECONDS):
                numbers = range(self.written, self.written + LINES_AT_ONCE)
                file.write("".join(f"{line(number)}\n" for number in numbers))
                file.flush()
                self.written += LINES_AT_ONCE


def line(number: int) -> str:
    """Return the line of a number."""
    return f"line {number:06}"


def check(lines: Sequence[str], written: int, restarts: int) -> None:
    """Hold lines that arrived to what Connect promises: none is lost, and none comes again but after a restart.

    Then those come again, in order, that were not committed yet.
    """
    numbers = [int(item.removeprefix("line ")) for item in lines]
    assert [line(number) for number in numbers] == list(lines)
    steps = list(itertools.pairwise([-1, *numbers]))
    assert [step for step in steps if step[1] > step[0] + 1] == [], "lines were left out"
    assert max(numbers) == written - 1
    back = [step for step in steps if step[1] <= step[0]]
    assert len(back) <= restarts, back
