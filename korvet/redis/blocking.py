"""redis-py, for processes that may block: supervisor, ops, doctor, and the lake by blocking_driver.py.

Workers and keeper use `client.Redis`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.connection import (
    AbstractConnection,
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.crc import key_slot
from redis.exceptions import NoPermissionError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool

from korvet.config.settings import Settings
from korvet.errors import ConfigError
from korvet.redis import url as redis_url
from korvet.redis.url import RedisAddress, RedisTarget

Result = TypeVar("Result")

_ASKED_AT_ONCE_MAX = 32


class SlotRange(NamedTuple):
    """Slots of a cluster, both ends among them, and the name of their master."""

    first: int
    last: int
    master: str


class Masters:
    """The servers that keep records, each with a client: one Redis, or the masters of a cluster as they are now.

    A client tries each command once, with the settings' time limits. Nothing connects before the first use. Every
    method raises redis.RedisError if no node of a cluster says which they are.
    """

    def __init__(self, settings: Settings) -> None:
        """Raise ConfigError for a malformed URL."""
        self._settings = settings
        self._target = redis_url.parse_url(settings.redis_url)
        self.is_cluster = self._target.kind == "cluster"
        self._clients: dict[str, redis.Redis] = {}
        self.answered = ""
        """The node of a cluster that named the masters last."""
        if not self.is_cluster:
            self._clients[""] = connect(self._target, settings)

    def all(self) -> dict[str, redis.Redis]:
        """Return the client of each by its name, HOST:PORT; that of one Redis has none."""
        return dict(sorted(self._read()[1].items())) if self.is_cluster else dict(self._clients)

    def of(self, key: str) -> redis.Redis:
        """Return the client of the one that has a key."""
        return self._having(key)[1]

    def name_of(self, key: str) -> str:
        return self._having(key)[0]

    def each(self, ask: Callable[[redis.Redis], Result]) -> dict[str, Result | redis.RedisError]:
        """Return what `ask` returns for each, or raises, by name; all are asked at once: none waits for another."""

        def outcome(client: redis.Redis) -> Result | redis.RedisError:
            try:
                return ask(client)
            except redis.RedisError as error:
                return error

        clients = self.all()
        if len(clients) == 1:
            return {name: outcome(client) for name, client in clients.items()}
        with ThreadPoolExecutor(min(len(clients), _ASKED_AT_ONCE_MAX)) as threads:
            return dict(zip(clients, threads.map(outcome, clients.values()), strict=True))

    def slots(self) -> list[SlotRange]:
        """Return the slots of the cluster that have a master."""
        return self._read()[0]

    def close(self) -> None:
        """Close all connections."""
        for client in list(self._clients.values()):
            client.close()

    def _having(self, key: str) -> tuple[str, redis.Redis]:
        if not self.is_cluster:
            return "", self._clients[""]
        slot = key_slot(key.encode())
        slots, clients = self._read()
        for slot_range in slots:
            if slot_range.first <= slot <= slot_range.last:
                return slot_range.master, clients[slot_range.master]
        raise redis.ConnectionError(f"no master of the cluster has slot {slot}")

    def _read(self) -> tuple[list[SlotRange], dict[str, redis.Redis]]:
        """Return the slots of the cluster and the clients of their masters; those of former masters are closed."""
        failure: redis.RedisError | None = None
        for asked, client in self._askable():
            try:
                # As two words the client leaves the answer as it is.
                answer: Any = client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]  # untyped there
            except redis.RedisError as error:
                failure = error
                continue
            slot_ranges: list[SlotRange] = []
            clients: dict[str, redis.Redis] = {}
            for first, last, (host, port, _, *more), *_ in answer:
                # If a node is to be called by its hostname, and was given none, its other names stand last.
                name = (
                    host if host != b"?" else dict(zip(more[0][::2], more[0][1::2], strict=True)).get(b"ip")
                )
                # A node that does not know its own name leaves it to the client.
                known = name.decode(errors="replace") if name else asked.rpartition(":")[0].strip("[]")
                address = self._target.at(known, port)
                clients[str(address)] = self._client(address)
                slot_ranges.append(SlotRange(first, last, str(address)))
            # One that was taken out of the cluster answers too.
            if slot_ranges:
                self.answered = asked
                # Another thread may do the same at the same time.
                for name in set(self._clients) - set(clients):
                    if (former := self._clients.pop(name, None)) is not None:
                        former.close()
                return slot_ranges, clients
        raise failure or redis.ConnectionError("the nodes have no slots")

    def _askable(self) -> Iterator[tuple[str, redis.Redis]]:
        # First the one that did answer, for another may hang; then those of the URL: the others may have left.
        known, named = dict(self._clients), {str(address): address for address in self._target.addresses}
        first = [self.answered] if self.answered in known else known
        for name in dict.fromkeys([*first, *named, *known]):
            if name in known:
                yield name, known[name]
            else:
                with connect_to(named[name], self._settings) as client:
                    yield name, client

    def _client(self, address: RedisAddress) -> redis.Redis:
        made = self._clients.get(str(address))
        return made or self._clients.setdefault(str(address), connect_to(address, self._settings))


class TimeLimits(NamedTuple):
    """How long, in ms, a connection may take and how long each answer."""

    reply_ms: int
    connect_ms: int

    @classmethod
    def of(cls, settings: Settings) -> TimeLimits:
        return cls(settings.redis_timeout_ms, settings.redis_connect_timeout_ms)


def connect(target: RedisTarget, settings: Settings) -> redis.Redis:
    """Return such a client of one server, or of the master that Sentinels name."""
    limits = TimeLimits.of(settings)
    if target.kind != "sentinel":
        return _client(target.addresses[0], limits)
    pool = SentinelConnectionPool(  # type: ignore[no-untyped-call]  # untyped there
        target.master_name,
        _Sentinels(target, limits),
        ssl=target.login.tls is not None,
        **_options(target.login, limits),
    )
    return redis.Redis.from_pool(pool)


def connect_to(address: RedisAddress, settings: Settings) -> redis.Redis:
    """Return such a client of one server, or of one Sentinel."""
    return _client(address, TimeLimits.of(settings))


def find_master(target: RedisTarget, limits: TimeLimits) -> RedisAddress:
    """Return the first server that a Sentinel names and that is a master, as workers find it.

    The limits are those of each server that is asked. Raises redis.RedisError.
    """
    problems = []
    for address in target.addresses:
        try:
            with _client(address, limits) as sentinel:
                named = sentinel.sentinel_get_master_addr_by_name(target.master_name)
            if named is None:
                problems.append(f"{address} knows no master {target.master_name}")
                continue
            master = target.at(named[0].decode(errors="replace"), int(named[1]))
            with _client(master, limits) as server:
                if server.info("replication").get("role") == "master":
                    return master
            problems.append(f"{address} names {master}, which is no master")
        except redis.RedisError as error:
            problems.append(f"{address}: {one_line(error)}")
    raise MasterNotFoundError("; ".join(problems))


class _Sentinels:
    """What redis-py asks for the master at each new connection. It leaves no connection open itself."""

    def __init__(self, target: RedisTarget, limits: TimeLimits) -> None:
        self._target, self._limits = target, limits

    def discover_master(self, _name: str) -> tuple[str, int]:
        master = find_master(self._target, self._limits)
        return master.host, master.port


def _client(address: RedisAddress, limits: TimeLimits) -> redis.Redis:
    pool = ConnectionPool(connection_class=_kind(address), **_options(address, limits))
    return redis.Redis.from_pool(pool)


def _kind(address: RedisAddress) -> type[AbstractConnection]:
    if address.path:
        return UnixDomainSocketConnection
    return Connection if address.tls is None else SSLConnection


def _options(address: RedisAddress, limits: TimeLimits) -> dict[str, Any]:
    """Return redis-py's options for a connection to a server."""
    options: dict[str, Any] = {
        "username": address.username or None,
        "password": address.password or None,
        "db": address.db,
        "socket_timeout": limits.reply_ms / 1000,
        "socket_connect_timeout": limits.connect_ms / 1000,
        "retry": Retry(NoBackoff(), 0),
        # HELLO is unknown to old servers, whose version the check of a start wants to name.
        "protocol": 2,
        # Two commands less for each connection, which users of an access control list may not send.
        "driver_info": None,
    }
    if address.path:
        return options | {"path": address.path}
    if address.host:
        options |= {"host": address.host, "port": address.port}
    if (tls := address.tls) is not None:
        options |= {
            "ssl_ca_certs": tls.ca_certs,
            "ssl_cert_reqs": "required" if tls.verify else "none",
            "ssl_check_hostname": tls.check_hostname,
            "ssl_certfile": tls.certfile,
            "ssl_keyfile": tls.keyfile,
        }
    return options


@contextmanager
def connected(settings: Settings) -> Iterator[Masters]:
    """Give the masters and close them; what fails with them is a ConfigError of one line, without the password."""
    where = redis_url.parse_url(settings.redis_url)
    masters = Masters(settings)
    try:
        yield masters
    except redis.TimeoutError as error:
        raise ConfigError(f"redis.url {where}: no answer in time ({one_line(error)})") from None
    except (redis.AuthenticationError, NoPermissionError) as error:
        if "required" in str(error):
            said = "it requires a password: give redis://:PASSWORD@HOST:PORT, or USER:PASSWORD of an ACL user"
            raise ConfigError(f"redis.url {where}: {said}") from None
        raise ConfigError(f"redis.url {where}: refused: {one_line(error)}") from None
    except redis.RedisError as error:
        reason = one_line(error)
        if "DB index is out of range" in reason:
            reason = f"it has no database {where.login.db}"
        raise ConfigError(f"redis.url {where}: {reason}") from None
    finally:
        masters.close()


def is_away(error: redis.RedisError) -> bool:
    """Return whether a server did not answer; one that refuses the login did."""
    away = isinstance(error, redis.ConnectionError | redis.TimeoutError)
    return away and not isinstance(error, redis.AuthenticationError)


def one_line(error: Exception) -> str:
    """Return what an error says on one line; redis-py puts no credentials there."""
    # redis-py writes the address around the system's reason, which the caller's message has already.
    cause = error if isinstance(error, OSError) else error.__context__
    reason = cause.strerror if isinstance(cause, OSError) else None
    return " ".join((reason or str(error)).split()) or type(error).__name__
