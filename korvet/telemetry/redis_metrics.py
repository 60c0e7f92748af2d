"""What Redis reports about itself, read for each page of /metrics: memory, persistence, clients, evictions, slow log.

A Redis that is away or hangs costs a page little time (page.REDIS_MS_MAX), and the page lacks nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import redis
from prometheus_client.registry import Collector

from korvet.telemetry.gauges import Family, Gauge, GaugeTable

Info = Mapping[str, object]
Entries = Sequence[Mapping[str, object]]


def _number(name: str, scale: float = 1) -> Callable[[Info], float | None]:
    def value(info: Info) -> float | None:
        found = info.get(name)
        return found * scale if isinstance(found, int | float) else None

    return value


def _cpu_seconds(info: Info) -> float | None:
    system, user = info.get("used_cpu_sys"), info.get("used_cpu_user")
    return system + user if isinstance(system, int | float) and isinstance(user, int | float) else None


FIELDS = GaugeTable[Info](
    (),
    (
        Gauge("korvet_redis_uptime_seconds", "Time since Redis started.", _number("uptime_in_seconds")),
        Gauge("korvet_redis_memory_used_bytes", "Memory that Redis has allocated.", _number("used_memory")),
        Gauge(
            "korvet_redis_memory_max_bytes",
            "Memory limit of Redis (maxmemory); 0 without a limit.",
            _number("maxmemory"),
        ),
        Gauge(
            "korvet_redis_memory_resident_bytes",
            "Resident memory of the Redis process.",
            _number("used_memory_rss"),
        ),
        Gauge(
            "korvet_redis_evicted_keys",
            "Number of keys that Redis evicted: each is lost data, and maxmemory-policy must be noeviction.",
            _number("evicted_keys"),
            counts=True,
        ),
        Gauge(
            "korvet_redis_aof_enabled",
            "1 if Redis writes an append-only file; without one a restart loses records.",
            _number("aof_enabled"),
        ),
        Gauge("korvet_redis_aof_size_bytes", "Size of the append-only file.", _number("aof_current_size")),
        Gauge(
            "korvet_redis_aof_delayed_fsyncs",
            "Number of writes that Redis delayed because an fsync was still in progress: the disk is too slow.",
            _number("aof_delayed_fsync"),
            counts=True,
        ),
        Gauge(
            "korvet_redis_aof_rewrite_in_progress",
            "1 while Redis rewrites the append-only file.",
            _number("aof_rewrite_in_progress"),
        ),
        Gauge(
            "korvet_redis_last_fork_seconds",
            "Duration of the last fork of Redis, for a snapshot or a rewrite; it answers no client meanwhile.",
            _number("latest_fork_usec", 1e-6),
        ),
        Gauge(
            "korvet_redis_unsaved_changes",
            "Number of changes since the last snapshot (RDB).",
            _number("rdb_changes_since_last_save"),
        ),
        Gauge(
            "korvet_redis_last_save_timestamp_seconds",
            "Time of the last successful snapshot (RDB).",
            _number("rdb_last_save_time"),
        ),
        Gauge(
            "korvet_redis_connected_clients",
            "Number of client connections of Redis, those of Korvet and of others.",
            _number("connected_clients"),
        ),
        Gauge("korvet_redis_max_clients", "Connection limit of Redis (maxclients).", _number("maxclients")),
        Gauge(
            "korvet_redis_rejected_connections",
            "Number of connections that Redis rejected because of maxclients.",
            _number("rejected_connections"),
            counts=True,
        ),
        Gauge(
            "korvet_redis_connected_replicas",
            "Number of replicas of this Redis.",
            _number("connected_slaves"),
        ),
        Gauge(
            "korvet_redis_is_master",
            "1 if this Redis accepts writes, 0 if it is a replica.",
            lambda info: float(info["role"] == "master") if "role" in info else None,
        ),
        Gauge(
            "korvet_redis_commands",
            "Number of commands that Redis has run, including those in scripts.",
            _number("total_commands_processed"),
            counts=True,
        ),
        Gauge(
            "korvet_redis_received_bytes",
            "Bytes that Redis has read from its clients.",
            _number("total_net_input_bytes"),
            counts=True,
        ),
        Gauge(
            "korvet_redis_sent_bytes",
            "Bytes that Redis has written to its clients.",
            _number("total_net_output_bytes"),
            counts=True,
        ),
        Gauge(
            "korvet_redis_cpu_seconds",
            "CPU time of the Redis process, including system calls, without its child processes.",
            _cpu_seconds,
            counts=True,
        ),
    ),
)
UP = GaugeTable[Info | None](
    (),
    (
        Gauge(
            "korvet_redis_up",
            "1 if Redis answered the process that serves this page within a second.",
            lambda info: int(info is not None),
        ),
    ),
)
PERSISTENCE = GaugeTable[tuple[str, object]](
    ("action",),
    (
        Gauge(
            "korvet_redis_persistence_ok",
            "1 if the last attempt of Redis to persist its data succeeded: snapshot, aof_write, aof_rewrite.",
            lambda action: float(action[1] == "ok"),
        ),
    ),
    lambda action: action[:1],
)
SLOW_COMMANDS = GaugeTable[Entries](
    (),
    (
        Gauge(
            "korvet_redis_slow_commands",
            "Number of commands and scripts that took longer than slowlog-log-slower-than, by the ids in SLOWLOG;"
            " absent if the user may not read it.",
            # Entries are numbered from 0 on, and only some of the newest are kept.
            lambda newest: int(str(newest[0]["id"])) + 1 if newest else 0,
            counts=True,
        ),
    ),
)
VERSION = GaugeTable[tuple[str, str]](
    ("server", "version"),
    (Gauge("korvet_redis_info", "Always 1; the server and its version.", lambda _: 1),),
    lambda version: version,
)

_STATUSES = {
    "snapshot": "rdb_last_bgsave_status",
    "aof_write": "aof_last_write_status",
    "aof_rewrite": "aof_last_bgrewrite_status",
}
"""The field of INFO that says whether an action succeeded the last time."""


class RedisCollector(Collector):
    """Asks Redis for each page; `client` must not wait long."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._newest: tuple[object, Entries] = (None, [])

    def collect(self) -> Iterator[Family]:
        """Yield what Redis reports; if it does not answer, only that."""
        try:
            with self._redis.pipeline(transaction=False) as pipeline:
                pipeline.info()
                pipeline.slowlog_get(1)
                info, slow = pipeline.execute(raise_on_error=False)
        except redis.RedisError:
            yield from redis_families(None, None)
        else:
            # A user may lack the permission for either.
            found = info if isinstance(info, Mapping) else {}
            loading = isinstance(info, redis.BusyLoadingError)
            newest = self._newest_of(found.get("run_id"), slow) if isinstance(slow, list) else None
            yield from redis_families(None if loading else found, newest)

    def _newest_of(self, run_id: object, slow: Entries) -> Entries:
        """Return the newest entry, also if SLOWLOG has been reset since: its ids go on."""
        known_run, known = self._newest
        if not slow and known_run == run_id:
            return known
        self._newest = run_id, slow
        return slow


def redis_families(info: Info | None, newest: Entries | None) -> Iterator[Family]:
    """Yield every metric, each with a value if there is one.

    `info` is the answer to INFO, None without one. `newest` is the newest entry of SLOWLOG, if there is any; None if it
    is unknown.
    """
    found = info or {}
    yield from UP.families([info])
    yield from FIELDS.families([found])
    yield from PERSISTENCE.families(
        (action, found[field]) for action, field in _STATUSES.items() if field in found
    )
    yield from SLOW_COMMANDS.families([] if newest is None else [newest])
    versions = [
        (server, str(found[name])) for server in ("valkey", "redis") if (name := f"{server}_version") in found
    ]
    yield from VERSION.families(versions[:1])
