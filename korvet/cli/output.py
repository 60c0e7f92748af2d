"""What commands print: tables, JSON, errors, questions and progress."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from operator import attrgetter
from typing import Any, NamedTuple, Self
from unicodedata import combining, east_asian_width

import click
import msgspec

NONE = "-"
"""Stands in a table for a value that is absent or not known."""

_JSON = "korvet.json"
_GAP = "  "
_COLUMN_WIDTH_MIN = 6
_SECONDS_BETWEEN = 0.5
_SECONDS_BETWEEN_LINES = 30.0
_KILO = 1000
_UNITS = ("kB", "MB", "GB", "TB")


def printable(text: str) -> str:
    """Return text of others fit for a terminal: characters that a terminal would act upon are escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def json_flag(text: str = "Print JSON instead of a table.") -> Callable[[Any], Any]:
    """Return the option --json, which `json_wanted` reads: no command passes it on."""

    def note(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - as click has it
        context.meta[_JSON] = value

    return click.option("--json", is_flag=True, expose_value=False, callback=note, help=text)


def json_wanted() -> bool:
    """Whether the command that runs was given --json."""
    return bool(click.get_current_context().meta.get(_JSON))


class Column(NamedTuple):
    """A field of results.

    `source` is the attribute that has it, dotted if it is one of an attribute, or a function of the result; by default
    the name. A column without a title (None) is in JSON only. `text` writes a value, other than None, for tables.
    """

    name: str
    source: str | Callable[[Any], object] = ""
    title: str | None = ""
    right: bool = False
    text: Callable[[Any], object] | None = None

    def value(self, row: Any) -> object:  # noqa: ANN401 - a struct, or a mapping by the names of columns
        """Return the value that JSON has."""
        if isinstance(row, Mapping):
            return row[self.name]
        source = self.source or self.name
        return source(row) if callable(source) else attrgetter(source)(row)

    def cell(self, row: Any) -> str:  # noqa: ANN401 - the same
        """Return the value as a table shows it."""
        value = self.value(row)
        return cell(value if value is None or self.text is None else self.text(value))

    @property
    def heading(self) -> str:
        """The title; by default made of the name."""
        return self.title or self.name.capitalize().replace("_", " ")


number = partial(Column, right=True)
"""A column that is aligned to the right."""


def texts(*names: str) -> tuple[Column, ...]:
    """Return columns of text."""
    return tuple(map(Column, names))


def numbers(*names: str) -> tuple[Column, ...]:
    """Return columns of numbers."""
    return tuple(map(number, names))


def hidden(*names: str) -> tuple[Column, ...]:
    """Return columns that only JSON has."""
    return tuple(Column(name, title=None) for name in names)


def cell(value: object) -> str:
    """Return a value as a table shows it: None as `NONE`, a list with commas, a number to three decimals."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return NONE if value is None else str(value)


def printed_json(value: object, *, compact: bool = False) -> bool:
    """Print a value as JSON, if that is wanted, indented or in one line; returns whether it is.

    An error in the value is its text.
    """
    if json_wanted() and compact:
        click.echo(msgspec.json.encode(value))
    elif json_wanted():
        click.echo(json.dumps(msgspec.to_builtins(value, enc_hook=str), indent=2))
    return json_wanted()


def as_objects(rows: Iterable[object], columns: Sequence[Column]) -> list[dict[str, object]]:
    """Return results as JSON shows them."""
    return [{column.name: column.value(row) for column in columns} for row in rows]


def print_result(
    rows: Collection[object], columns: Sequence[Column], *, empty: str = "none", shown: Sequence[str] = ()
) -> None:
    """Print results as JSON, if that is wanted, or as `tabulate` does."""
    if not printed_json(as_objects(rows, columns)):
        tabulate(rows, columns, empty=empty, shown=shown)


def tabulate(
    rows: Iterable[object], columns: Sequence[Column], *, empty: str = "none", shown: Sequence[str] = ()
) -> None:
    """Print results as a table; `shown` are the names of its columns in their order, by default all with a title."""
    by_name = {column.name: column for column in columns if column.title is not None}
    ordered = [by_name[name] for name in shown or by_name]
    cells = [[column.cell(row) for column in ordered] for row in rows]
    right = [column.heading for column in ordered if column.right]
    print_table([column.heading for column in ordered], cells, right, empty=empty)


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = (), *, empty: str = "none"
) -> None:
    """Print a table on stdout, or `empty` if it has no rows; columns named in `numbers` are aligned to the right.

    A terminal gets a rule below the titles, and lines that fit: a long cell takes several. A program gets each row as
    one line.
    """
    if not rows:
        click.echo(empty)
        return
    table = [[printable(text) for text in row] for row in (titles, *rows)]
    widths = [max(map(_width, column)) for column in zip(*table, strict=True)]
    if sys.stdout.isatty():
        widths = _fitted(widths, shutil.get_terminal_size().columns)
        table.insert(1, ["─" * width for width in widths])
    lines: list[str] = []
    for row in table:
        folded = [_folded(text, width) for text, width in zip(row, widths, strict=True)]
        for line in zip_longest(*folded, fillvalue=""):
            columns = zip(titles, line, widths, strict=True)
            padded = (_padded(text, width, right=title in numbers) for title, text, width in columns)
            lines.append(_GAP.join(padded).rstrip())
    click.echo("\n".join(lines))


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(char) in "WF" else not combining(char) for char in text)


# Own code: rich narrows columns like this, but takes 52 ms of CPU more for `topics list` (+22 %), and 2.7 s instead of
# 0.06 s for 10,000 rows. prettytable narrows all columns alike, numbers too, tabulate none.
def _fitted(widths: Sequence[int], room: int) -> list[int]:
    """Narrow the widest columns until all of them fit into `room`, or none can be narrower."""
    fitted = [min(width, room) for width in widths]
    room -= len(_GAP) * (len(widths) - 1)
    while sum(fitted) > room and max(fitted) > _COLUMN_WIDTH_MIN:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


def _folded(text: str, width: int) -> list[str]:
    """Return the lines of a cell, broken between words if there are some."""
    if _width(text) <= width:
        return [text]
    return textwrap.wrap(text, width if text.isascii() else max(width // 2, 1), break_on_hyphens=False)


def _padded(text: str, width: int, *, right: bool) -> str:
    blanks = " " * (width - _width(text))
    return blanks + text if right else text + blanks


def print_error(text: str) -> None:
    """Print an error on stderr."""
    click.echo(printable(f"Error: {text}"), err=True)


def report_failures(kind: str, outcomes: Mapping[Any, object]) -> None:
    """Print the outcomes that are errors on stderr and end the command with exit code 1; do nothing if none is.

    `kind` precedes each name; it is empty if the names include it.
    """
    failed = {name: error for name, error in outcomes.items() if isinstance(error, Exception)}
    for name, error in failed.items():
        subject = f"{kind} {name}" if kind else str(name)
        # Some errors name it themselves.
        print_error(f"{subject}: {str(error).removeprefix(f'{subject}: ')}{_suggestion(str(error))}")
    if failed:
        raise click.exceptions.Exit(1)


def _suggestion(text: str) -> str:
    """Return the config of topics that is meant by an error about an unknown one, to follow the error."""
    unknown = re.search(r"Unknown topic config name: (\S+)", text)
    if unknown is None:
        return ""
    from korvet.config.topic_configs import TOPIC_CONFIGS  # noqa: PLC0415 - other commands start without it

    near = difflib.get_close_matches(unknown[1], TOPIC_CONFIGS, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def print_outcomes(
    kind: str, done: str, outcomes: Mapping[Any, Exception | None], objects: Iterable[Mapping[str, str]] = ()
) -> None:
    """Print which names were `done` and which failed; exit code 1 if one failed.

    In JSON a name is {kind: name}, or the one of `objects` in its place.
    """
    named = list(objects) or [{kind: str(name)} for name in outcomes]
    errors = zip(named, outcomes.values(), strict=True)
    if not printed_json([{**names, "error": error} for names, error in errors]):
        for name, error in outcomes.items():
            if error is None:
                click.echo(f"{done} {printable(str(name))}")
    report_failures(kind, outcomes)


def confirm(question: str, refusal: str, *, yes: bool) -> None:
    """Return once a destructive change is confirmed, by --yes or at the terminal.

    Otherwise raises ClickException with `refusal`, which says that nothing was done. Piped input is no confirmation:
    it may be meant for another command.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException(f"{refusal}: confirm at a terminal, or give --yes")
    try:
        agreed = click.confirm(printable(question), err=True)
    except click.Abort as error:
        raise click.ClickException(refusal) from error
    if not agreed:
        raise click.ClickException(refusal)


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say on stderr what takes long and for how many seconds, until the block ends.

    At a terminal the seconds count in one line. Elsewhere there is a line at the begin, each half a minute, and at the
    end: what reads them should not take the silence for a hang.
    """
    terminal = sys.stderr.isatty()
    line, pause = ("\r{}: {:.0f} s\x1b[K", 1.0) if terminal else ("{}: {:.0f} s\n", _SECONDS_BETWEEN_LINES)
    began, ended = time.monotonic(), threading.Event()

    def show(end: str = "") -> None:
        sys.stderr.write(line.format(what, time.monotonic() - began) + end)
        sys.stderr.flush()

    def count() -> None:
        show()
        while not ended.wait(pause):
            show()

    counting = threading.Thread(target=count, daemon=True)
    counting.start()
    try:
        yield
    finally:
        ended.set()
        counting.join()
        show("\n" if terminal else "")


class ProgressLine:
    """A line on stderr, if that is a terminal, that counts records, bytes and records per second until its block ends.

    It is not shown beside what the terminal shows anyway: `shown` is False then.
    """

    def __init__(self, *, shown: bool = True) -> None:
        self._shown = shown and sys.stderr.isatty()
        self.records = self._bytes = 0
        self._began = time.monotonic()
        self._next = self._began + _SECONDS_BETWEEN

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._write("\n")

    def add(self, records: int, size: int) -> None:
        """Count more records and their bytes."""
        self.records += records
        self._bytes += size
        if self._shown and time.monotonic() >= self._next:
            self._write("")
            self._next = time.monotonic() + _SECONDS_BETWEEN

    def _write(self, end: str) -> None:
        seconds = max(time.monotonic() - self._began, 0.001)
        rate = round(self.records / seconds)
        text = f"{self.records:,} records, {format_bytes(self._bytes)}, {rate:,} records/s"
        sys.stderr.write(f"\r{text}\x1b[K{end}")
        sys.stderr.flush()


def format_bytes(size: float) -> str:
    """Return a number of bytes for people: 12 B, 3.4 kB, 5.6 MB."""
    if size < _KILO:
        return f"{size:.0f} B"
    unit = -1
    while size >= _KILO and unit < len(_UNITS) - 1:
        size /= _KILO
        unit += 1
    return f"{size:.1f} {_UNITS[unit]}"
