"""The session of a connection: where it comes from, and as whom it has shown itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from korvet.config.listeners import DEFAULT_LISTENER


class Principal(NamedTuple):
    """A user as ACLs and quotas name it, `User:alice` (KafkaPrincipal)."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


def parse_principals(text: str) -> list[Principal]:
    """Read `TYPE:NAME;...`, as super.users has it: names may have commas, for they may be distinguished names."""
    parts = [item.strip().partition(":") for item in text.split(";") if item.strip()]
    return [Principal(kind, name) for kind, _, name in parts]


ANONYMOUS = Principal("User", "ANONYMOUS")
"""Who has not authenticated, as in Kafka."""


class Session:
    """One connection's client. `peer` is its address and port in one text, `listener` the name of its listener.

    `host` is its address without the port, as ACLs name it.
    """

    __slots__ = ("_on_end", "host", "listener", "peer", "principal")

    def __init__(self, peer: str, listener: str = DEFAULT_LISTENER, principal: Principal = ANONYMOUS) -> None:
        self.peer = peer
        self.host = peer.rpartition(":")[0]
        self.listener = listener
        self.principal = principal
        self._on_end: tuple[Callable[[], object], ...] = ()

    def on_end(self, call: Callable[[], object]) -> None:
        self._on_end = (*self._on_end, call)

    def end(self) -> None:
        calls, self._on_end = self._on_end, ()
        for call in calls:
            call()
