"""Keeps one broker registered as long as it runs, so that the clients of every broker learn of it.

The supervisor has registered the broker before this begins; what a registration means is in lua/broker/register.lua. It
has a connection of its own: no task of the keeper delays a renewal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gevent.event import Event

from korvet import logs
from korvet.cluster.brokers import BrokerStore
from korvet.cluster.registration import Registration
from korvet.config.settings import Settings
from korvet.errors import KafkaError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.server.supervisor.ports import Bound, endpoints
from korvet.telemetry import metrics

_log = logs.Log(__name__)

_RENEWALS_PER_LEASE = 3
_RETRIES_PER_LEASE = 12
"""More often, for when Redis was away the leases of all brokers may have run out meanwhile."""


class Registered:
    """The registration of this start of the broker."""

    def __init__(self, settings: Settings, bound: Sequence[Bound], incarnation: str) -> None:
        """`bound` are the broker's listeners; `incarnation` distinguishes this start from all others."""
        self._registration = Registration(
            broker_id=settings.broker_id,
            listeners=endpoints(bound),
            incarnation=incarnation,
        )
        self._lease_ms = settings.broker_lease_ms
        self._redis = Redis(
            settings.redis_url,
            timeout_ms=settings.redis_timeout_ms,
            connect_timeout_ms=settings.redis_connect_timeout_ms,
        )
        self._store = BrokerStore(self._redis, Keys(settings.namespace))

    def run(self, stop: Event, leaving: Callable[[], bool]) -> None:
        """Renew the registration until `stop` is set; then, if the broker is `leaving`, end it.

        If only this process is replaced, the registration stays for the next one.
        """
        failing = False
        while not stop.is_set():
            try:
                self._store.register(self._registration, self._lease_ms)
                failing = False
            except KafkaError as error:
                # Clients of this broker are served all the same: it always lists itself.
                if not failing:
                    _log.warning("cannot register this broker", reason=error)
                failing = True
            metrics.BROKER_REGISTERED.set(int(not failing))
            renewals_per_lease = _RETRIES_PER_LEASE if failing else _RENEWALS_PER_LEASE
            stop.wait(self._lease_ms / 1000 / renewals_per_lease)
        if leaving():
            try:
                self._store.unregister(self._registration)
            except KafkaError as error:
                _log.info("could not end this broker's registration", reason=error)
        self._redis.close()
