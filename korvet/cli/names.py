"""Names of things in the cluster as arguments and flags: a shell can complete them, by asking the cluster.

Knows that a completion must be quick and may come up empty; not which command is being written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from korvet.cli.bootstrap import BOOTSTRAP_DEFAULT

if TYPE_CHECKING:
    from korvet.admin import AdminClient

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
        from korvet.admin import AdminClient, AdminError  # noqa: PLC0415 - only a completion needs it

        try:
            with AdminClient(bootstrap_server, timeout=_TIMEOUT_SECONDS) as admin:
                return sorted(self._ask(admin))
        except (AdminError, ValueError):
            return []


TOPIC = Name("topic", lambda admin: [each.name for each in admin.topics.list()])
GROUP = Name("group", lambda admin: [each.group_id for each in admin.groups.list()])
