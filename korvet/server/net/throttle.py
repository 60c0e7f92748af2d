"""Charges requests to their clients' quotas, and counts the time for which each greenlet ran.

As in Kafka a produce request is charged with its size, a fetch with the size of its response, and every request with
the time that it kept this process busy, in per cent of it. What a client is throttled for is answered at once, and its
connection is muted (KIP-219). Kafka answers a throttled fetch without records; here they are read already, and sent.

Greenlets are watched only while somebody has a quota of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

import greenlet
import msgspec
from korvet_core import DataPath

from korvet.config.definition import INT32_MAX
from korvet.handlers.registry import Caller
from korvet.protocol.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from korvet.protocol.schema import Message
from korvet.protocol.wire import Buffer
from korvet.security.client_quotas import ClientQuotas
from korvet.security.quotas import Quota, QuotaTable
from korvet.security.session import Session

THROTTLED_BY = ("memory", *Quota)
"""Why a client is throttled, by the numbers that the core has for it: Redis' memory or disk is short, or a quota."""


class Throttle:
    """The quotas as dispatch needs them. `active`: somebody has one, so requests are charged.

    `watches`: somebody has one of time, so greenlets are watched.
    """

    def __init__(self, quotas: ClientQuotas) -> None:
        self.active = False
        self._core: DataPath[Any] | None = None
        self._quotas = quotas
        self.watches = False
        self._since = 0.0
        quotas.follow(self._use)

    def report_to(self, core: DataPath[Any]) -> None:
        """Have the core ask for each request what it is charged, as long as the throttle is `active`."""
        self._core = core
        core.set_metered(self.active)

    def limited(self, caller: Caller, request: Message) -> Caller:
        """Return the caller of a request with what its quota lets it fetch at once."""
        if not isinstance(request, ShareFetchRequest):
            return caller
        most = self.fetch_limit(caller.session, caller.client_id)
        return caller if most is None else msgspec.structs.replace(caller, fetch_max_bytes=most)

    def charge(
        self,
        caller: Caller,
        response: Message,
        chunks: Sequence[Buffer],
        used_s: float,
    ) -> tuple[int, Quota]:
        """Count a request that is answered, and return for how long its client is to wait (ms), and why."""
        charges = []
        if isinstance(response, ShareFetchResponse):
            charges.append((Quota.CONSUMER_BYTE_RATE, float(sum(map(len, chunks)))))
        # What cannot report a throttle time is exempt, as in Kafka: logins. So is all before a login.
        sasl = caller.sasl
        if self.watches and hasattr(response, "throttle_time_ms") and (sasl is None or sasl.complete):
            charges.append((Quota.REQUEST_PERCENTAGE, used_s * 100))
        return self._charge(caller.session.principal.name, caller.client_id, charges)

    def fetch_limit(self, session: Session, client_id: str | None) -> int | None:
        """Return how many bytes a client may fetch at once by its quota, None for any number."""
        most = self._quotas.value_max(Quota.CONSUMER_BYTE_RATE, session.principal.name, client_id)
        return None if most is None else max(1, min(int(most), INT32_MAX))

    def charge_served(
        self, quota: Quota, session: Session, client_id: str | None, size_bytes: int, used_s: float
    ) -> tuple[int, Quota]:
        """Count a request that the core has served by its bytes, or those of its response, as `charge` does."""
        charges = [(quota, float(size_bytes))]
        if self.watches:
            charges.append((Quota.REQUEST_PERCENTAGE, used_s * 100))
        return self._charge(session.principal.name, client_id, charges)

    def _charge(
        self, user: str, client_id: str | None, charges: Sequence[tuple[Quota, float]]
    ) -> tuple[int, Quota]:
        waits = [(self._quotas.charge(quota, user, client_id, value), quota) for quota, value in charges]
        return max(waits, default=(0, Quota.REQUEST_PERCENTAGE))

    def busy_s(self, began: float = 0.0) -> float:
        """Return for how long the current greenlet, being watched, has run since `began`, an earlier result."""
        return _ran(greenlet.getcurrent()) + monotonic() - self._since - began

    def _use(self, table: QuotaTable) -> None:
        self.active = bool(table.quotas)
        if self._core is not None:
            self._core.set_metered(self.active)
        watches = Quota.REQUEST_PERCENTAGE in table.quotas
        if watches != self.watches:
            self.watches, self._since = watches, monotonic()
            greenlet.settrace(self._on_switch if watches else None)

    def _on_switch(self, _event: str, greenlets: tuple[Any, Any]) -> None:
        """Count the time since the last switch for the greenlet that ran."""
        now = monotonic()
        ran = greenlets[0]
        ran.ran_s = _ran(ran) + now - self._since
        self._since = now


def _ran(item: Any) -> float:  # noqa: ANN401 - a greenlet, which has any attribute that it is given
    seconds: float = getattr(item, "ran_s", 0.0)
    return seconds
