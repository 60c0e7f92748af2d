"""What commands print: tables, JSON, errors, questions and progress."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import click

NONE = "-"
"""Stands in a table for a value that is absent or not known."""

_WIDTH_MAX = 20_000
_SECONDS_BETWEEN = 0.5
_KILO = 1000
_UNITS = ("kB", "MB", "GB", "TB")


def printable(text: str) -> str:
    """Return text of others fit for a terminal: characters that a terminal would act upon are escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def cell(value: object) -> str:
    """Return a value as a table shows it: None as `NONE`, the elements of a list with commas between."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return NONE if value is None else str(value)


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    click.echo(json.dumps(value, indent=2))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """Print a table on stdout; columns named in `numbers` are aligned to the right."""
    from rich import box  # noqa: PLC0415 - with --json it is not needed
    from rich.console import Console  # noqa: PLC0415 - the same
    from rich.table import Table  # noqa: PLC0415 - the same
    from rich.text import Text  # noqa: PLC0415 - the same

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold", justify="right" if title in numbers else "left")
    for row in rows:
        # Text, not markup: a name may hold brackets.
        table.add_row(*(Text(printable(each)) for each in row))
    # A program that reads the table needs whole values; a terminal needs lines that fit.
    Console(width=None if sys.stdout.isatty() else _WIDTH_MAX).print(table)


def print_rows(
    columns: Mapping[str, str], rows: Iterable[Mapping[str, object]], numbers: Sequence[str] = ()
) -> None:
    """Print the values that rows have in these columns, name -> title."""
    print_table([*columns.values()], [[cell(row[name]) for name in columns] for row in rows], numbers)


def print_error(text: str) -> None:
    """Print an error on stderr."""
    click.echo(printable(f"Error: {text}"), err=True)


def report_failures(kind: str, outcomes: Mapping[str, object]) -> None:
    """Print the outcomes that are errors on stderr and end the command with exit code 1; do nothing if none is.

    `kind` precedes each name; it is empty if the names include it.
    """
    failed = {name: each for name, each in outcomes.items() if isinstance(each, Exception)}
    for name, error in failed.items():
        subject = f"{kind} {name}" if kind else name
        # Some errors name it themselves.
        print_error(f"{subject}: {str(error).removeprefix(f'{subject}: ')}")
    if failed:
        raise click.exceptions.Exit(1)


def error_or_none(outcome: object) -> str | None:
    """Return the text of an outcome that is an error."""
    return str(outcome) if isinstance(outcome, Exception) else None


def print_outcomes(
    kind: str,
    done: str,
    outcomes: Mapping[str, Exception | None],
    *,
    as_json: bool,
    as_object: Callable[[str], dict[str, str]] | None = None,
) -> None:
    """Print which names were `done` and which failed; exit code 1 if one failed.

    In JSON a name is {kind: name}, or what `as_object` makes of it.
    """
    if as_json:
        names = as_object or (lambda name: {kind: name})
        print_json([{**names(name), "error": error_or_none(error)} for name, error in outcomes.items()])
    else:
        for name, error in outcomes.items():
            if error is None:
                click.echo(f"{done} {printable(name)}")
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


class ProgressLine:
    """A line on stderr that counts records, bytes and records per second; silent unless `shown`. Call `end` last."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._records = self._bytes = 0
        self._began = time.monotonic()
        self._next = self._began + _SECONDS_BETWEEN

    def add(self, records: int, size: int) -> None:
        """Count more records and their bytes."""
        self._records += records
        self._bytes += size
        if self._shown and time.monotonic() >= self._next:
            self._write("")
            self._next = time.monotonic() + _SECONDS_BETWEEN

    def end(self) -> None:
        """Print the final counts and end the line."""
        if self._shown:
            self._write("\n")

    def _write(self, end: str) -> None:
        seconds = max(time.monotonic() - self._began, 0.001)
        rate = round(self._records / seconds)
        text = f"{self._records:,} records, {format_bytes(self._bytes)}, {rate:,} records/s"
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
