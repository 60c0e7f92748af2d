"""redis-py's client, for processes that may block: supervisor, ops, doctor. Workers and keeper use `client.Redis`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.exceptions import NoPermissionError, RedisClusterException
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool

from korvet.config.settings import Settings
from korvet.errors import ConfigError
from korvet.redis import url as redis_url
from korvet.redis.url import RedisAddress, RedisTarget

FAILURES = (redis.RedisError, RedisClusterException)
"""What a client raises if Redis is away or refuses; redis-py has no common class for them."""


def connect(settings: Settings) -> redis.Redis:
    """Return a client that tries each command once, with the settings' time limits; raises ConfigError.

    That of a cluster finds the nodes first, which may be one of `FAILURES`. It sends a command to the master that has
    its key.
    """
    target = redis_url.parse_url(settings.redis_url)
    if target.kind == "cluster":
        nodes = [ClusterNode(each.host, each.port) for each in target.addresses]  # type: ignore[no-untyped-call]  # untyped there
        options = _options(target.login, settings)
        del options["db"]
        return cast("redis.Redis", redis.RedisCluster(startup_nodes=nodes, **options))
    if target.kind == "sentinel":
        pool = SentinelConnectionPool(  # type: ignore[no-untyped-call]  # untyped there
            target.master_name, _Sentinels(target, settings), **_options(target.login, settings)
        )
        return redis.Redis.from_pool(pool)
    return connect_to(redis_url.parse(settings.redis_url), settings)


def is_cluster(client: redis.Redis) -> bool:
    """Whether this is the client of a cluster."""
    return isinstance(cast("object", client), redis.RedisCluster)


def connect_to(address: RedisAddress, settings: Settings) -> redis.Redis:
    """Return such a client of one server, or of one Sentinel."""
    return redis.Redis(**_options(address, settings))


class _Sentinels:
    """What redis-py asks for the master at each new connection. It leaves no connection open itself."""

    def __init__(self, target: RedisTarget, settings: Settings) -> None:
        self._target, self._settings = target, settings

    def discover_master(self, name: str) -> tuple[str, int]:
        """Return the first server that a Sentinel names and that is a master, as workers find it (`sentinel.py`)."""
        problems = []
        for address in self._target.addresses:
            try:
                with connect_to(address, self._settings) as sentinel:
                    named = sentinel.sentinel_get_master_addr_by_name(name)
                if named is None:
                    problems.append(f"{address} knows no master {name}")
                    continue
                host, port = named[0].decode(errors="replace"), int(named[1])
                with connect_to(self._target.at(host, port), self._settings) as server:
                    if server.info("replication").get("role") == "master":
                        return host, port
                problems.append(f"{address} names {host}:{port}, which is no master")
            except redis.RedisError as error:
                problems.append(f"{address}: {one_line(error)}")
        raise MasterNotFoundError("; ".join(problems))


def _options(address: RedisAddress, settings: Settings) -> dict[str, Any]:
    """Return redis-py's options for a connection to a server."""
    options: dict[str, Any] = {
        "username": address.username or None,
        "password": address.password or None,
        "db": address.db,
        "socket_timeout": settings.redis_timeout_ms / 1000,
        "socket_connect_timeout": settings.redis_connect_timeout_ms / 1000,
        "retry": Retry(NoBackoff(), 0),
        # HELLO is unknown to old servers, whose version the check of a start wants to name.
        "protocol": 2,
    }
    if address.path:
        return options | {"unix_socket_path": address.path}
    if address.host:
        options |= {"host": address.host, "port": address.port}
    if (tls := address.tls) is not None:
        options |= {
            "ssl": True,
            "ssl_ca_certs": tls.ca_certs,
            "ssl_cert_reqs": "required" if tls.verify else "none",
            "ssl_check_hostname": tls.check_hostname,
            "ssl_certfile": tls.certfile,
            "ssl_keyfile": tls.keyfile,
        }
    return options


@contextmanager
def connected(settings: Settings) -> Iterator[redis.Redis]:
    """Give a client and close it; what fails with it is a ConfigError of one line, without the password."""
    where = redis_url.parse_url(settings.redis_url)
    try:
        with connect(settings) as client:
            yield client
    except (redis.AuthenticationError, NoPermissionError) as error:
        raise ConfigError(f"redis.url {where}: refused: {one_line(error)}") from None
    except FAILURES as error:
        raise ConfigError(f"redis.url {where}: {one_line(error)}") from None


def one_line(error: Exception) -> str:
    """Return what an error says on one line; redis-py puts no credentials there."""
    # redis-py writes the address around the system's reason, which the caller's message has already.
    reason = error.__context__.strerror if isinstance(error.__context__, OSError) else None
    return " ".join((reason or str(error)).split()) or type(error).__name__
