"""How topics, partitions, brokers and settings are written on a command line; what is written wrong is a UsageError.

Times as an operator writes and reads them: ISO 8601, UTC where no zone is given; milliseconds since 1970 inside.

Names of things in the cluster as arguments and flags: a shell can complete them, by asking the cluster.

Knows that a completion must be quick and may come up empty; not which command is being written.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from korvet.cli.bootstrap import BOOTSTRAP_DEFAULT

if TYPE_CHECKING:
    from korvet.admin.client import AdminClient
    from korvet.admin.types import TopicPartition

_TOPIC = re.compile(r"(?P<name>[^:]+)(?::(?P<indexes>\d+(?:,\d+)*))?", re.ASCII)
_NUMBERS = re.compile(r"\d+(?:[,:]\d+)*", re.ASCII)
_INDEX_MAX = 2**31 - 1


def topics(flag: str, texts: Sequence[str]) -> dict[str, list[int]]:
    """Read `orders` and `orders:0,1`: topic -> partitions, none of them meaning all."""
    found: dict[str, list[int]] = {}
    for text in texts:
        match = _TOPIC.fullmatch(text)
        if match is None:
            raise click.UsageError(f"{flag} takes orders or orders:0,1, not {text!r}")
        indexes = [int(each) for each in (match["indexes"] or "").split(",") if each]
        if any(index > _INDEX_MAX for index in indexes):
            raise click.UsageError(f"{flag} {text} names a partition that no topic can have")
        if match["name"] in found:
            raise click.UsageError(f"{flag} names {match['name']} twice")
        found[match["name"]] = indexes
    return found


def partitions(admin: AdminClient, wished: dict[str, list[int]]) -> list[TopicPartition]:
    """Return the partitions of `topics`, every one of a topic where none is named; raises AdminError."""
    from korvet.admin.types import TopicPartition  # noqa: PLC0415 - other commands start without it

    topology = admin.topology(wished)
    found = []
    for topic, indexes in wished.items():
        if topic in topology.failed and not indexes:
            raise topology.failed[topic]
        found += [TopicPartition(topic, index) for index in indexes or topology.partitions[topic]]
    return found


def numbers(what: str, text: str) -> list[int]:
    """Read brokers, with commas or colons between."""
    if not _NUMBERS.fullmatch(text) or any(int(each) > _INDEX_MAX for each in re.split("[,:]", text)):
        raise click.UsageError(f"{what} takes ids of brokers, as 0,1, not {text!r}")
    return [int(each) for each in re.split("[,:]", text)]


def settings(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE of settings, each name once."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{flag} takes NAME=VALUE, not {text!r}")
        if name in found:
            raise click.UsageError(f"{flag} names {name} twice")
        found[name] = value
    return found


_EPOCH = datetime.fromtimestamp(0, UTC)


def milliseconds_of(text: str) -> int:
    """Return the milliseconds since 1970 of a time in ISO 8601; raises ValueError, also for one before 1970."""
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)
    if milliseconds < 0:
        raise ValueError(f"{text} lies before 1970")
    return milliseconds


def time_of(milliseconds: int) -> str:
    """Return a time as ISO 8601 in UTC; the bare number where it is beyond the years that have four digits."""
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


if TYPE_CHECKING:
    from korvet.admin.client import AdminClient

    _ParamType = click.ParamType[str]
else:
    # Before click 8.3 it takes no type.
    _ParamType = click.ParamType

_TIMEOUT_SECONDS = 0.5
_KNOWN_SECONDS = 5.0


class Name(_ParamType):
    """A name of one kind, which `ask` lists. Any text is taken: the cluster is asked for completions only."""

    def __init__(self, kind: str, ask: Callable[[AdminClient], Iterable[str]]) -> None:
        self.name = kind
        self._ask = ask
        # One cluster's names, and until when they are good enough: a shell asks at each key.
        self._known: tuple[str, float, list[str]] = ("", 0.0, [])

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return the names that begin so, none where the cluster does not tell them in time."""
        given = ctx.params.get(param.name or "")
        before = set(given) if isinstance(given, tuple | list) else set()
        names = self._names(ctx.params.get("bootstrap_server") or BOOTSTRAP_DEFAULT)
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and name not in before]

    def _names(self, bootstrap_server: str) -> list[str]:
        of, until, names = self._known
        if of != bootstrap_server or time.monotonic() > until:
            names = self._asked(bootstrap_server)
            self._known = (bootstrap_server, time.monotonic() + _KNOWN_SECONDS, names)
        return names

    def _asked(self, bootstrap_server: str) -> list[str]:
        from korvet.admin.client import AdminClient  # noqa: PLC0415 - only a completion needs it
        from korvet.admin.errors import AdminError  # noqa: PLC0415 - only a completion needs it

        try:
            with AdminClient(bootstrap_server, timeout=_TIMEOUT_SECONDS) as admin:
                return sorted(self._ask(admin))
        except (AdminError, ValueError):
            return []


TOPIC = Name("topic", lambda admin: [each.name for each in admin.topics.list()])
GROUP = Name("group", lambda admin: [each.group_id for each in admin.groups.list()])
