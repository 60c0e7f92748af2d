"""Long lists, a page at a time: what has a text in its name, from one place on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from korvet.server.console.query import Query

_FROM_MAX = 10_000_000

T = TypeVar("T")


class Page(NamedTuple):
    """Which part of a list is wanted: names that hold `text`, whatever their case, from `first` on."""

    text: str
    first: int
    length: int

    @classmethod
    def of(cls, query: Query, count_max: int) -> Page:
        """Read `q`, `from` and `count`. Raises BadQuestionError."""
        return cls(
            query.text("q", ""),
            query.number("from", 0, 0, _FROM_MAX),
            query.number("count", count_max, 1, count_max),
        )

    def cut(self, every: Sequence[T], name: Callable[[T], str]) -> tuple[list[T], int]:
        """Return what is on the page, and how many there are on all pages."""
        wanted = self.text.casefold()
        found = [each for each in every if wanted in name(each).casefold()]
        return found[self.first : self.first + self.length], len(found)
