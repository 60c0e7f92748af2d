"""The registration of a broker: its id, and the address that it advertises on each of its listeners.

Apart from brokers.py, which loads gevent for Redis: the supervisor registers its broker too, and never loads gevent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec

from korvet.cluster.data_format import OWN, READABLE_FORMAT_MIN


class Endpoint(NamedTuple):
    """The host and port that a listener advertises."""

    host: Annotated[str, msgspec.Meta(min_length=1)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class BrokerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row as JSON in the registry, where the id is the field's; a build before formats has no version in it.

    `started`, `until` and `listed` are ms since 1970 on Redis' clock. A broker that has stopped is `listed` until then,
    one that is `starting` accepts no connections yet: clients find both in metadata, but they lead nothing.
    """

    host: Annotated[str, msgspec.Meta(min_length=1)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    until: int
    started: int
    listeners: dict[str, Endpoint] = {}
    version: str | None = None
    format: int | None = None
    listed: int = 0
    starting: bool = False


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a broker: its id, the addresses by the names of its listeners, and the id of this start.

    The address of its first listener identifies the broker, and stays the same at its next start.
    """

    broker_id: int
    listeners: Mapping[str, Endpoint]
    incarnation: str

    def arguments(self, lease_ms: int, *, own: bool, starting: bool = False) -> tuple[int | str | bytes, ...]:
        """Return the ARGV of lua/broker/register.lua; `own`: only an earlier start of this broker can have the id."""
        host, port = next(iter(self.listeners.values()))
        listeners = msgspec.json.encode(self.listeners)
        who = (self.broker_id, host, port, self.incarnation, lease_ms, "own" if own else "ask", listeners)
        state = "starting" if starting else "serving"
        return *who, *msgspec.structs.astuple(OWN), READABLE_FORMAT_MIN, state
