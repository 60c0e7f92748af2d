"""What commands print besides tables: JSON, outcomes, errors, questions and progress."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import click
import msgspec

_JSON = "korvet.json"
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


def printed_json(value: object, *, compact: bool = False) -> bool:
    """Print a value as JSON, if that is wanted, indented or in one line; returns whether it is.

    An error in the value is its text.
    """
    if json_wanted() and compact:
        click.echo(msgspec.json.encode(value))
    elif json_wanted():
        click.echo(json.dumps(msgspec.to_builtins(value, enc_hook=str), indent=2))
    return json_wanted()


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
