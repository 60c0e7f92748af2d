"""What a broker registers: its id, and what the clients of each of its listeners are told.

Knows the arguments of lua/broker/register.lua; nothing of connections, so that the supervisor may use it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec


class Endpoint(NamedTuple):
    """What the clients of one listener are told: a host and a port."""

    host: Annotated[str, msgspec.Meta(min_length=1)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a broker: its id, what clients are told by the names of its listeners, and what no other start has.

    By the first of its listeners brokers are told apart: at the next start it is to be the same.
    """

    broker_id: int
    listeners: Mapping[str, Endpoint]
    incarnation: str

    def arguments(self, lease_ms: int, *, own: bool) -> tuple[int | str | bytes, ...]:
        """Return the ARGV of lua/broker/register.lua; `own`: nobody but an earlier self can have the id."""
        host, port = next(iter(self.listeners.values()))
        listeners = msgspec.json.encode(self.listeners)
        how = "own" if own else "ask"
        return self.broker_id, host, port, self.incarnation, lease_ms, how, listeners
