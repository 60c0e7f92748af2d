"""Flags and arguments that several commands share, and how their values are read.

A value that cannot be read is a UsageError. Times are ISO 8601, UTC if no zone is given, and milliseconds since 1970
inside. Names of topics and groups are completed by asking the cluster.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.shell_completion import CompletionItem

from korvet.admin.client import AdminClient
from korvet.admin.errors import AdminError, UnresolvedError
from korvet.admin.security import PLAINTEXT, ClientSecurity, from_configs, read_properties
from korvet.cli.output import json_flag, printable
from korvet.cli.run import CommandGroup

if TYPE_CHECKING:
    _ParamType = click.ParamType[str]
else:
    # Before click 8.3 it takes no type.
    _ParamType = click.ParamType

Command = TypeVar("Command", bound=Callable[..., object])
K = TypeVar("K")
T = TypeVar("T")

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By their numbers in Kafka's batches."""

INT32_MAX = 2**31 - 1
PARTITION = BROKER = click.IntRange(0, INT32_MAX)

_SILENT_SECONDS = 2.0
_COMPLETION_SECONDS_MAX = 0.5
_NAMES_FRESH_SECONDS = 5.0
_EPOCH = datetime.fromtimestamp(0, UTC)
_TOPIC = re.compile(r"(?P<name>[^:]+)(?::(?P<indexes>\d+(?:,\d+)*))?", re.ASCII)
_BROKERS = re.compile(r"\d+(?:[,:]\d+)*", re.ASCII)


def _refuse_nan(_context: click.Context, _parameter: click.Parameter, seconds: float) -> float:
    """Refuse what passes every check of a range."""
    if math.isnan(seconds):
        raise click.BadParameter(f"{seconds} is no number of seconds")
    return seconds


class _CommandConfig(click.Path):
    """A file of client configs, as Kafka's tools take it."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - the same
        if isinstance(value, ClientSecurity):
            return value
        try:
            return from_configs(read_properties(Path(value)))
        except ValueError as error:
            self.fail(printable(str(error)), param, ctx)


class ClusterName(_ParamType):
    """A name of a thing in the cluster. Any text is accepted: `list_names` asks the cluster for completions only."""

    def __init__(self, kind: str, list_names: Callable[[AdminClient], Iterable[str]]) -> None:
        self.name = kind
        self._list_names = list_names
        # Whom a shell asked, until when the answer is fresh, and the answer: it asks at each key.
        self._cached: tuple[tuple[str, ClientSecurity], float, list[str]] = (("", PLAINTEXT), 0.0, [])

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return the names that begin with `incomplete`, none if the cluster does not answer in time."""
        given = ctx.params.get(param.name or "")
        before = set(given) if isinstance(given, tuple | list) else set()
        security = ctx.params.get("security") or PLAINTEXT
        # As of any flag that is given twice, the last one counts.
        server = ctx.obj or ctx.params.get("bootstrap_server") or BOOTSTRAP_DEFAULT
        names = self._names(server, security)
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and name not in before]

    def _names(self, bootstrap_server: str, security: ClientSecurity) -> list[str]:
        cached_for, fresh_until, names = self._cached
        if cached_for != (bootstrap_server, security) or time.monotonic() > fresh_until:
            try:
                with AdminClient(
                    bootstrap_server, timeout=_COMPLETION_SECONDS_MAX, security=security
                ) as admin:
                    names = sorted(self._list_names(admin))
            except (AdminError, ValueError):
                names = []
            self._cached = ((bootstrap_server, security), time.monotonic() + _NAMES_FRESH_SECONDS, names)
        return names


TOPIC = ClusterName("topic", lambda admin: [topic.name for topic in admin.topics.list()])
GROUP = ClusterName("group", lambda admin: [group.group_id for group in admin.groups.list()])


def option(
    flags: str,
    text: str,
    kind: Any = None,  # noqa: ANN401 - a type as click takes it
    *,
    name: str | None = None,
    **more: Any,  # noqa: ANN401 - what else click takes
) -> Callable[[Command], Command]:
    """Return an option, written as its help shows it: `-p, --partition N`. Without a value (N) it is a switch.

    `name` is the parameter that gets it, by default the long flag's. Help has a default that is given here.
    """
    names = [word.removesuffix(",") for word in flags.split() if word.startswith("-")]
    *_, last = flags.split()
    metavar = None if last.startswith("-") else last
    is_switch = metavar is None and kind is None and "default" not in more
    declared = [*names, *filter(None, [name])]
    more = {"show_default": "default" in more, "is_flag": is_switch or None, **more}
    return click.option(*declared, metavar=metavar, type=kind, help=text, **more)


def repeated(flags: str, text: str, kind: Any = None, **more: Any) -> Callable[[Command], Command]:  # noqa: ANN401 - the same
    """Return an option that may be given several times; its help is `text`, and says so."""
    return option(flags, f"{text}; may be repeated.", kind, multiple=True, **more)


json_option = json_flag()
yes_option = option("-y, --yes", "Do not ask for confirmation.")
validate_option = option("--validate-only", "Check only whether it could be done.")
partitions_option = repeated("-p, --partition N", "Only this partition", PARTITION, name="partitions")
compression_option = option(
    "-z, --compression", "How batches are compressed.", click.Choice(CODECS), default="none"
)


def add_options(command: Command, *options: Callable[[Command], Command]) -> Command:
    """Give a command these options; its help has them in this order."""
    for declared in reversed(options):
        command = declared(command)
    return command


class ClusterTarget(NamedTuple):
    """The cluster of a command, and how long each request to it may take, in seconds."""

    bootstrap_server: str
    timeout: float
    security: ClientSecurity


_CLUSTER = (
    option(
        "-b, --bootstrap-server HOST:PORT[,...]", "Brokers to connect to first.", default=BOOTSTRAP_DEFAULT
    ),
    option(
        "--timeout SECONDS",
        "How long each request to the cluster may take, including retries.",
        click.FloatRange(min=0, min_open=True),
        default=30.0,
        callback=_refuse_nan,
    ),
    option(
        "--command-config FILE",
        "Client configs security.*, ssl.* and sasl.*, as Kafka's tools take them.",
        _CommandConfig(dir_okay=False),
        name="security",
        default=PLAINTEXT,
        show_default=False,
    ),
)


class ClusterCommand(click.Command):
    """A command with the flags that name a cluster, as its argument `cluster`."""

    flags = click.command(add_options(lambda: None, *_CLUSTER)).params

    def __init__(self, name: str, params: list[click.Parameter], **attributes: Any) -> None:  # noqa: ANN401 - as click has it
        super().__init__(name, params=[*params, *self.flags], **attributes)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - the same
        """Run the command."""
        ctx.params["cluster"] = ClusterTarget(*map(ctx.params.pop, ClusterTarget._fields))
        return super().invoke(ctx)


class AdminCommand(ClusterCommand):
    """A command with the flags of `ClusterCommand` and --json, whose argument `admin` is a client of the cluster."""

    flags = click.command(add_options(lambda: None, *_CLUSTER, json_option)).params

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - the same
        """Run the command."""
        with connected(ClusterTarget(*map(ctx.params.pop, ClusterTarget._fields))) as ctx.params["admin"]:
            return click.Command.invoke(self, ctx)


class AdminGroup(CommandGroup):
    """A group of commands that have an admin client."""

    command_class = AdminCommand


@contextlib.contextmanager
def connected(cluster: ClusterTarget) -> Iterator[AdminClient]:
    """Give an admin client. Its errors end the command with one line and exit code 1, a wrong address with 2.

    A command that has waited for a moment prints once on stderr why it goes on waiting: often a slip in the port.
    """
    notified = False

    def on_retry(error: AdminError, seconds_left: float) -> None:
        nonlocal notified
        if (
            not notified
            and not isinstance(error, UnresolvedError)
            and seconds_left < cluster.timeout - _SILENT_SECONDS
        ):
            notified = True
            click.echo(printable(f"{error}; retrying for {seconds_left:.0f} s more"), err=True)

    try:
        client = AdminClient(
            cluster.bootstrap_server, timeout=cluster.timeout, on_retry=on_retry, security=cluster.security
        )
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--bootstrap-server") from error
    try:
        with client:
            yield client
    except AdminError as error:
        is_refused = isinstance(error.__cause__, ConnectionRefusedError)
        asked = "; does a broker run there?" if is_refused else ""
        raise click.ClickException(f"{printable(str(error))}{asked}") from error


def without_errors(outcomes: Mapping[K, T | AdminError]) -> dict[K, T]:
    """Return the outcomes that are no errors."""
    return {key: outcome for key, outcome in outcomes.items() if not isinstance(outcome, AdminError)}


def parse_topics(flag: str, texts: Sequence[str]) -> dict[str, list[int]]:
    """Read `orders` and `orders:0,1` as topic -> partitions; an empty list stands for all partitions."""
    partitions: dict[str, list[int]] = {}
    for text in texts:
        match = _TOPIC.fullmatch(text)
        if match is None:
            raise click.UsageError(f"{flag} takes orders or orders:0,1, not {text!r}")
        indexes = [int(index) for index in (match["indexes"] or "").split(",") if index]
        if any(index > INT32_MAX for index in indexes):
            raise click.UsageError(f"{flag} {text}: a partition is at most {INT32_MAX}")
        if match["name"] in partitions:
            raise click.UsageError(f"{flag} names {match['name']} twice")
        partitions[match["name"]] = indexes
    return partitions


def parse_brokers(flag: str, text: str) -> list[int]:
    """Read broker ids, separated by commas or colons."""
    brokers = [int(broker) for broker in re.split("[,:]", text)] if _BROKERS.fullmatch(text) else []
    if not brokers or max(brokers) > INT32_MAX:
        raise click.UsageError(f"{flag} takes broker ids as 0,1, not {text!r}")
    return brokers


def parse_settings(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE, each name once."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{flag} takes NAME=VALUE, not {text!r}")
        if name in settings:
            raise click.UsageError(f"{flag} names {name} twice")
        settings[name] = value
    return settings


def parse_time(text: str) -> int:
    """Return the milliseconds since 1970 of a time in ISO 8601. Raises ValueError, also for a time before 1970."""
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)
    if milliseconds < 0:
        raise ValueError(f"{text} is before 1970")
    return milliseconds


def parse_time_of(flag: str, text: str) -> int:
    """Return the milliseconds since 1970 of the time that a flag gives."""
    try:
        return parse_time(text)
    except ValueError as error:
        message = f"{flag} takes 2026-01-31T12:00:00+01:00, from 1970 on, not {text!r}"
        raise click.UsageError(message) from error


def parse_as_of(text: str | None) -> int | datetime | None:
    """Return the version of a table that --as-of gives, or a time. Raises UsageError."""
    if text is None or text.isdigit():
        return None if text is None else int(text)
    return _EPOCH + timedelta(milliseconds=parse_time_of("--as-of", text))


def format_time(milliseconds: int) -> str:
    """Return a time as ISO 8601 in UTC; the bare number after the year 9999."""
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
