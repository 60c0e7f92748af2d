"""The registry of brokers in Redis: who is live, by leases on Redis' clock, and whose keeper acts.

Knows the scripts under lua/broker and what a row looks like; nothing of leaders or of the wire. A row that cannot be
read is no broker: one log line for each such text, and the others are told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, NamedTuple, cast

import msgspec

from korvet.errors import ErrorCode, KafkaError
from korvet.storage import scripts
from korvet.storage.keys import Keys
from korvet.storage.registration import Endpoint, Registration
from korvet.storage.replies import Reply, RespError, value_of
from korvet.storage.resp import Redis, Running

_LOG = logging.getLogger(__name__)
_REGISTER = scripts.get("broker/register")
_UNREGISTER = scripts.get("broker/unregister")
_LOOK = scripts.get("broker/look")


class LiveBroker(NamedTuple):
    """A broker whose registration has not run out, and when it began, in ms of Redis' clock.

    `address` is what brokers are told apart by. `listeners` is empty where the broker registered none: then it is of a
    version that had one, without a name, at that address.
    """

    broker_id: int
    address: Endpoint
    listeners: Mapping[str, Endpoint]
    started_ms: int


class Seen(NamedTuple):
    """The live brokers at one moment, in order of their ids; `keeper` is the broker whose keeper holds the lease."""

    brokers: tuple[LiveBroker, ...]
    keeper: int | None


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A row as JSON in the registry, where the id is the field's."""

    host: Annotated[str, msgspec.Meta(min_length=1)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    until: int
    started: int
    listeners: dict[str, Endpoint] = {}


class Looking:
    """A look that is on its way."""

    def __init__(self, store: BrokerStore, running: Running) -> None:
        self._store = store
        self._running = running

    def finish(self) -> Seen:
        """Wait for the answer; to be called once. Raises KafkaError, StorageUnavailableError."""
        [reply] = self._running.finish()
        return self._store.read(reply)


class BrokerStore:
    """The registry of one namespace. Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._unreadable: set[tuple[bytes, bytes]] = set()

    def register(self, registration: Registration, lease_ms: int) -> None:
        """Register a broker, or renew its registration, for `lease_ms` from now on.

        Raises KafkaError DUPLICATE_BROKER_REGISTRATION where a live broker at another address has the id.
        """
        try:
            self._redis.script(_REGISTER, (self._keys.brokers,), registration.arguments(lease_ms, own=False))
        except RespError as error:
            raise self._malformed(str(error)) from error

    def unregister(self, registration: Registration) -> None:
        """End the registration of this start of the broker, so that nobody is sent there any more."""
        args = (registration.broker_id, registration.incarnation)
        try:
            self._redis.script(_UNREGISTER, (self._keys.brokers,), args)
        except RespError as error:
            raise self._malformed(str(error)) from error

    def begin_look(self) -> Looking:
        """Ask who is live; what is asked of Redis until the answer is awaited goes there in the same round trip."""
        call = (_LOOK, (self._keys.brokers, self._keys.keeper_lease), ())
        return Looking(self, self._redis.begin_scripts([call]))

    def read(self, reply: Reply) -> Seen:
        """Return what the answer of lua/broker/look.lua says; raises KafkaError where it says nothing."""
        try:
            now_text, holder, *flat = cast("list[bytes]", value_of(reply))
            now_ms = int(now_text)
            rows = dict(zip(flat[::2], flat[1::2], strict=True))
        except (RespError, TypeError, ValueError) as error:
            raise self._malformed(str(error)) from error
        live = []
        for name, text in rows.items():
            try:
                broker_id, row = int(name), msgspec.json.decode(text, type=_Stored)
            except (ValueError, msgspec.DecodeError) as error:
                self._tell(name, text, error)
                continue
            if row.until > now_ms:
                live.append(LiveBroker(broker_id, Endpoint(row.host, row.port), row.listeners, row.started))
        keeper, _, _ = holder.partition(b":")
        live.sort(key=lambda broker: broker.broker_id)
        return Seen(tuple(live), int(keeper) if keeper.isdigit() else None)

    def _tell(self, name: bytes, text: bytes, error: Exception) -> None:
        if (name, text) not in self._unreadable:
            self._unreadable = {row for row in self._unreadable if row[0] != name} | {(name, text)}
            _LOG.error("%s: the row of broker %r is malformed: %s", self._keys.brokers, name, error)

    def _malformed(self, what: str) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._keys.brokers}: Redis answered {what}")
