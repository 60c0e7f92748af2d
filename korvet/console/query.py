"""What a request of the console says, read strictly: parameters of the query, pages of lists, and bodies in JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qs

import msgspec

from korvet.console.http import Request

_PARAMETERS_MAX = 16
_FROM_MAX = 10_000_000
_TYPE = "application/json"

T = TypeVar("T")


class BadRequestError(Exception):
    """A request is not valid; the message says why."""


class Query:
    """The parameters of one request, each given once."""

    def __init__(self, target: str) -> None:
        """Raise BadRequestError if `target` has no valid query."""
        text = target.partition("?")[2]
        try:
            self._values = parse_qs(
                text,
                keep_blank_values=True,
                strict_parsing=bool(text),
                errors="strict",
                max_num_fields=_PARAMETERS_MAX,
            )
        except (ValueError, UnicodeError) as error:
            raise BadRequestError("the query is not valid") from error
        for name, values in self._values.items():
            if len(values) > 1:
                raise BadRequestError(f"{name} is given twice")

    def text(self, name: str, default: str | None = None) -> str:
        """Return a parameter. Raises BadRequestError if it is missing and has no default."""
        values = self._values.get(name)
        if values is not None:
            return values[0]
        if default is None:
            raise BadRequestError(f"{name} is missing")
        return default

    def number(self, name: str, default: int | None, least: int, most: int) -> int:
        """Return a whole number within limits. Raises BadRequestError."""
        if name not in self._values and default is not None:
            return default
        return whole(self.text(name), name, least, most)


def whole(text: str, name: str, least: int, most: int) -> int:
    """Parse a whole number within limits; raises BadRequestError, which calls it `name`."""
    digits = text.removeprefix("-")
    # int() would accept far more digits than any number here has, and digits of other scripts.
    number = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= len(str(most)) else None
    if number is None or not least <= number <= most:
        raise BadRequestError(f"{name} must be a whole number from {least} to {most}")
    return number


class Page(NamedTuple):
    """A part of a list: names that contain `text`, ignoring case, from `first` on."""

    text: str
    first: int
    length: int

    @classmethod
    def of(cls, query: Query, count_max: int) -> Page:
        """Read `q`, `from` and `count`. Raises BadRequestError."""
        return cls(
            query.text("q", ""),
            query.number("from", 0, 0, _FROM_MAX),
            query.number("count", count_max, 1, count_max),
        )

    def cut(self, rows: Sequence[T], name: Callable[[T], str]) -> tuple[list[T], int]:
        """Return the rows on the page, and the number of rows on all pages."""
        wanted = self.text.casefold()
        matching = [row for row in rows if wanted in name(row).casefold()]
        return matching[self.first : self.first + self.length], len(matching)


def body(request: Request, kind: type[T]) -> T:
    """Parse a body in JSON. Raises BadRequestError."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        raise BadRequestError(f"the content type of a body must be {_TYPE}")
    try:
        return msgspec.json.decode(request.body, type=kind, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(str(error)) from error
    except RecursionError as error:
        raise BadRequestError("the JSON is nested too deeply") from error
