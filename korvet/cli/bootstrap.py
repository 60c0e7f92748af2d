"""The flags and the manners of the commands that ask a Kafka broker: where it is, how long it may take, what failed.

Knows that errors become one line on stderr and exit code 1; nothing of what is asked.

A command with commands below it: its help tells of each in whole sentences, however narrow the terminal is.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from korvet.admin.client import AdminClient

_Command = TypeVar("_Command", bound=Callable[..., object])
BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
_SILENT_SECONDS = 2.0
_WIDTH_MAX = 20_000


class _Seconds(click.FloatRange):
    """A time; NaN, which no range keeps out, is none."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds


def cluster_options(command: _Command) -> _Command:
    """Give a command the flags that `connected` takes."""
    command = click.option(
        "--timeout",
        type=_Seconds(min=0, min_open=True),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long each question to the cluster may take, with all its tries.",
    )(command)
    return click.option(
        "--bootstrap-server",
        "-b",
        default=BOOTSTRAP_DEFAULT,
        show_default=True,
        metavar="HOST:PORT[,...]",
        help="Brokers to begin with.",
    )(command)


def broker_options(command: _Command) -> _Command:
    """Give a command the flags that `connected` takes, and --json."""
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)
    return cluster_options(command)


def yes_option(command: _Command) -> _Command:
    """Give a command the flag --yes, for `confirmed`."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask first.")(command)


def confirmed(question: str, nothing: str, *, yes: bool) -> None:
    """Return once a destruction is agreed to, by --yes or at the terminal.

    Otherwise raises ClickException with `nothing`, which says that nothing was done. What is piped into a command is
    no agreement: it may have been meant for another one.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException(f"{nothing}: this asks at a terminal first, or takes --yes")
    try:
        agreed = click.confirm(shown(question), err=True)
    except click.Abort as error:
        raise click.ClickException(nothing) from error
    if not agreed:
        raise click.ClickException(nothing)


@contextlib.contextmanager
def connected(bootstrap_server: str, timeout: float) -> Iterator[AdminClient]:
    """Give an admin client; what fails with it becomes one line and exit code 1, a wrong address exit code 2.

    One line on stderr tells why a command goes on waiting.
    """
    from korvet.admin.client import AdminClient  # noqa: PLC0415 - other commands start without it
    from korvet.admin.errors import AdminError  # noqa: PLC0415 - other commands start without it

    try:
        client = AdminClient(bootstrap_server, timeout=timeout, on_retry=_Patience(timeout).tell)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--bootstrap-server") from error
    try:
        with client:
            yield client
    except AdminError as error:
        raise click.ClickException(shown(str(error))) from error


class _Patience:
    """Says once why a command waits, and for how long it will: as after a slip in the port."""

    def __init__(self, timeout: float) -> None:
        self._silent_until_left = timeout - _SILENT_SECONDS
        self._told = False

    def tell(self, error: Exception, seconds_left: float) -> None:
        """Take note of another try; see AdminClient."""
        if not self._told and seconds_left < self._silent_until_left:
            self._told = True
            click.echo(shown(f"{error}; trying for {seconds_left:.0f} s more"), err=True)


def shown(text: str) -> str:
    """Return text of others fit for a terminal: what a terminal would act upon is escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def failures_told(kind: str, failed: Mapping[str, Exception]) -> None:
    """Print what failed on stderr, a line each, and end the command with exit code 1; return where nothing did.

    `kind` stands before each name; the empty one where names tell it themselves.
    """
    for name, error in failed.items():
        whose = f"{kind} {name}" if kind else name
        # An answer without words has been given the name for its text.
        click.echo(shown(f"Error: {whose}: {str(error).removesuffix(f': {whose}')}"), err=True)
    if failed:
        raise click.exceptions.Exit(1)


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
        table.add_row(*(Text(shown(cell)) for cell in row))
    # A program that reads the table wants whole values; a terminal, lines that fit.
    Console(width=None if sys.stdout.isatty() else _WIDTH_MAX).print(table)


class Group(click.Group):
    """A group whose help wraps what click would cut short with dots."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, each with the first sentence of its own help."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(limit=sys.maxsize)) for name, command in found if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
