"""What a request of the console asks for, read strictly: parameters of the query, and bodies in JSON.

Knows text, numbers and their limits; nothing of what they are for.
"""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import parse_qs

import msgspec

from korvet.console.http import Request

_PARAMETERS_MAX = 16
_TYPE = "application/json"

T = TypeVar("T")


class BadRequestError(Exception):
    """What was asked cannot be understood; the message says what of it."""


class Query:
    """The parameters of one request, each given once."""

    def __init__(self, target: str) -> None:
        """Raise BadQuestionError for what is no query."""
        try:
            self._values = parse_qs(
                target.partition("?")[2],
                keep_blank_values=True,
                strict_parsing=bool(target.partition("?")[2]),
                errors="strict",
                max_num_fields=_PARAMETERS_MAX,
            )
        except (ValueError, UnicodeError) as error:
            raise BadRequestError("the query cannot be read") from error
        for name, values in self._values.items():
            if len(values) > 1:
                raise BadRequestError(f"{name} is given twice")

    def text(self, name: str, default: str | None = None) -> str:
        """Return a parameter. Raises BadQuestionError where it is missing and has no default."""
        values = self._values.get(name)
        if values is not None:
            return values[0]
        if default is None:
            raise BadRequestError(f"{name} is missing")
        return default

    def number(self, name: str, default: int | None, least: int, most: int) -> int:
        """Return a whole number within limits. Raises BadQuestionError."""
        if name not in self._values and default is not None:
            return default
        return whole(self.text(name), name, least, most)


def whole(text: str, name: str, least: int, most: int) -> int:
    """Read a whole number within limits; raises BadQuestionError. `name` is what it is called there."""
    digits = text.removeprefix("-")
    # Python would read far more digits than any number here has, and other scripts' digits too.
    number = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= len(str(most)) else None
    if number is None or not least <= number <= most:
        raise BadRequestError(f"{name}: a whole number from {least} to {most}")
    return number


def body(request: Request, kind: type[T]) -> T:
    """Read a body in JSON. Raises BadQuestionError."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        raise BadRequestError(f"a body is {_TYPE}")
    try:
        return msgspec.json.decode(request.body, type=kind, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(str(error)) from error
    except RecursionError as error:
        raise BadRequestError("JSON within JSON without end") from error
