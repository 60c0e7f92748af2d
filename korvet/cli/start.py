"""Where reading of a log begins, as an operator writes it, and what that comes to in each partition.

Knows the forms of `--offset` and asks an admin client; not how records are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import click

from korvet.cli.times import milliseconds_of

if TYPE_CHECKING:
    from korvet.admin import AdminClient, TopicPartition

FORMS = "beginning, end, N, -N, a time as 2026-01-31T12:00:00Z, or @MS in ms since 1970"

_OFFSET_MAX = 2**63 - 1
_NUMBER = re.compile(r"(?P<sign>[-@]?)(?P<digits>\d{1,19})", re.ASCII)


class Start(NamedTuple):
    """Where to begin: one of these is set, or none for the beginning. `time` is in ms since 1970."""

    end: bool = False
    offset: int | None = None
    last: int | None = None
    time: int | None = None


class Span(NamedTuple):
    """A part of a log: the offset of its first record, or of a later one where there is none, and the end."""

    begin: int
    end: int


BEGINNING = Start()
END = Start(end=True)
OF_A_GROUP = (BEGINNING, END)


def read(text: str | None) -> Start:
    """Read what --offset says, nothing being the beginning; raises UsageError."""
    if text is None or text == "beginning":
        return BEGINNING
    if text == "end":
        return END
    match = _NUMBER.fullmatch(text)
    number = int(match["digits"]) if match else 0
    if match and number <= _OFFSET_MAX:
        return {"": Start(offset=number), "-": Start(last=number), "@": Start(time=number)}[match["sign"]]
    try:
        return Start(time=milliseconds_of(text))
    except ValueError as error:
        raise click.UsageError(f"--offset takes {FORMS}; not {text!r}") from error


def spans(admin: AdminClient, places: Iterable[TopicPartition], begins: Start) -> dict[TopicPartition, Span]:
    """Return for each partition where to begin and where it ends now; with Start.last, all of it. Raises AdminError."""
    from korvet.admin import EARLIEST, LATEST, settled  # noqa: PLC0415 - other commands start without it

    wanted = list(places)
    first = settled(admin.offsets.at(dict.fromkeys(wanted, EARLIEST)))
    end = settled(admin.offsets.at(dict.fromkeys(wanted, LATEST)))
    timed = {}
    if begins.time is not None:
        timed = settled(admin.offsets.at(dict.fromkeys(wanted, begins.time)))

    def span(place: TopicPartition) -> Span:
        low, high = first[place].offset, end[place].offset
        if begins.end or begins.last == 0:
            return Span(high, high)
        if begins.offset is not None:
            return Span(min(max(begins.offset, low), high), high)
        if begins.time is not None:
            found = timed[place].offset
            return Span(high if found < 0 else max(found, low), high)
        return Span(low, high)

    return {place: span(place) for place in wanted}
