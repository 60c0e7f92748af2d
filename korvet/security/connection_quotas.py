"""How many connections a broker, its listeners and single addresses may have, and how fast new ones (KIP-402, KIP-612).

As in Kafka: what is over a limit of the broker or of a listener waits until it is accepted; what is over a limit of its
address is closed, at once if there are too many and after a delay if they come too fast. All workers of a broker count
together (usage.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.config.definition import INT32_MAX
from korvet.config.settings import Settings
from korvet.config.values import canonical_address, parse_connection_limits
from korvet.security.client_quotas import ClientQuotas
from korvet.security.quotas import Quota
from korvet.security.usage import entry_key

_RATE = Quota.CONNECTION_CREATION_RATE
_BROKER = ""


class ConnectionQuotas:
    """The limits of one worker. A listener is named by its place among all of them."""

    def __init__(self, quotas: ClientQuotas, listeners: Sequence[str], settings: Settings) -> None:
        self._quotas = quotas
        self._usage = quotas.usage
        self._names = list(listeners)
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Apply other limits; open connections stay."""
        self._max = settings.max_connections
        self._of_address = settings.max_connections_per_ip
        self._overrides = parse_connection_limits(settings.max_connections_per_ip_overrides)
        own = [settings.for_listener(name) for name in self._names]
        self._of_listeners = [value.max_connections for value in own]
        self._rates = [value.max_connection_creation_rate for value in own]
        self._rate = settings.max_connection_creation_rate

    def count_new(self, listener: int) -> float:
        """Count a connection that begins, and return for how long it has to wait (ms): one window at most."""
        waits = [
            self._quotas.count(_RATE, name).throttle_ms(rate)
            for name, rate in ((_BROKER, self._rate), (self._names[listener], self._rates[listener]))
            if rate < INT32_MAX
        ]
        return min(max(waits, default=0.0), self._usage.windows.size_ms)

    def count_address(self, listener: int, address: str) -> float:
        """Count the connection for its address too; if that has to wait (ms), the connection is to be closed.

        It then counts for nobody.
        """
        bound = self._quotas.table.address_limit(address)
        if bound is None:
            return 0.0
        rate = self._quotas.count(_RATE, "", address)
        if rate.value <= bound:
            return 0.0
        self._quotas.count(_RATE, "", address, value=-1)
        for name, limit in ((_BROKER, self._rate), (self._names[listener], self._rates[listener])):
            if limit < INT32_MAX:
                self._quotas.count(_RATE, name, value=-1)
        return min(rate.throttle_ms(bound), self._usage.windows.size_ms)

    def open(self, listener: int, address: str) -> bool:
        """Count a connection as open, unless broker or listener has as many as it may."""
        key = entry_key(address)
        # Counted first: of two workers that look at the same time none may see room that is there once.
        self._usage.connect(listener, key, 1)
        if (
            self._usage.connections() <= self._max
            and self._usage.listener_connections(listener) <= self._of_listeners[listener]
        ):
            return True
        self._usage.connect(listener, key, -1)
        return False

    def close(self, listener: int, address: str) -> None:
        """Count an open connection no more."""
        self._usage.connect(listener, entry_key(address), -1)

    def address_limit_exceeded(self, address: str) -> int | None:
        """Return how many connections an address may have, if it has more open; else None."""
        limit = self._overrides.get(address, self._of_address)
        has_more = limit < INT32_MAX and self._usage.address_connections(entry_key(address)) > limit
        return limit if has_more else None


def address_of(peer: tuple[object, ...]) -> str:
    """Return the address of a socket's peer as quotas name it; without the zone of a link-local one."""
    return canonical_address(str(peer[0]).partition("%")[0])
