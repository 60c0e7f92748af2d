"""What Redis tells of itself, read for each page of metrics: memory, persistence, clients, evictions, slow commands.

Knows INFO and SLOWLOG, and the names under which their fields are told; nothing of what Korvet keeps in Redis. A Redis
that is away or hangs costs a page little time (ops_metrics.REDIS_MS_MAX), and the page lacks nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import redis
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

Family = CounterMetricFamily | GaugeMetricFamily
Info = Mapping[str, object]


class _Field(NamedTuple):
    """A metric that is one number of INFO; `counts`: it only grows while the server runs."""

    name: str
    documentation: str
    value: Callable[[Info], float | None]
    counts: bool = False


def _number(name: str, scale: float = 1) -> Callable[[Info], float | None]:
    def value(info: Info) -> float | None:
        found = info.get(name)
        return found * scale if isinstance(found, int | float) else None

    return value


def _sum(*names: str) -> Callable[[Info], float | None]:
    def value(info: Info) -> float | None:
        numbers = [_number(name)(info) for name in names]
        known = [each for each in numbers if each is not None]
        return sum(known) if len(known) == len(numbers) else None

    return value


def _is(name: str, wanted: str) -> Callable[[Info], float | None]:
    return lambda info: None if name not in info else float(info[name] == wanted)


_FIELDS = (
    _Field("korvet_redis_uptime_seconds", "Time since Redis started.", _number("uptime_in_seconds")),
    _Field("korvet_redis_memory_used_bytes", "Memory that Redis uses.", _number("used_memory")),
    _Field(
        "korvet_redis_memory_max_bytes",
        "Memory that Redis may use (maxmemory); 0 without a limit.",
        _number("maxmemory"),
    ),
    _Field(
        "korvet_redis_memory_resident_bytes",
        "Memory that the system has given to Redis.",
        _number("used_memory_rss"),
    ),
    _Field(
        "korvet_redis_evicted_keys",
        "Keys that Redis deleted for want of memory: each is lost data, for it must run with noeviction.",
        _number("evicted_keys"),
        counts=True,
    ),
    _Field(
        "korvet_redis_aof_enabled",
        "1 where Redis writes an append-only file; without one a restart loses records.",
        _number("aof_enabled"),
    ),
    _Field("korvet_redis_aof_size_bytes", "Size of the append-only file.", _number("aof_current_size")),
    _Field(
        "korvet_redis_aof_delayed_fsyncs",
        "Times that Redis put off a write since the fsync before it was still under way: the disk is too slow.",
        _number("aof_delayed_fsync"),
        counts=True,
    ),
    _Field(
        "korvet_redis_aof_rewrite_in_progress",
        "1 while the append-only file is written anew.",
        _number("aof_rewrite_in_progress"),
    ),
    _Field(
        "korvet_redis_last_fork_seconds",
        "How long Redis answered nobody at its last fork, for a snapshot or a rewrite of its file.",
        _number("latest_fork_usec", 1e-6),
    ),
    _Field(
        "korvet_redis_unsaved_changes",
        "Changes since the last snapshot (RDB).",
        _number("rdb_changes_since_last_save"),
    ),
    _Field(
        "korvet_redis_last_save_timestamp_seconds",
        "When the last snapshot (RDB) succeeded.",
        _number("rdb_last_save_time"),
    ),
    _Field(
        "korvet_redis_connected_clients",
        "Connections that Redis holds, of Korvet and of others.",
        _number("connected_clients"),
    ),
    _Field("korvet_redis_max_clients", "Connections that Redis takes (maxclients).", _number("maxclients")),
    _Field(
        "korvet_redis_rejected_connections",
        "Connections that Redis refused for its maxclients.",
        _number("rejected_connections"),
        counts=True,
    ),
    _Field(
        "korvet_redis_connected_replicas", "Replicas that follow this Redis.", _number("connected_slaves")
    ),
    _Field(
        "korvet_redis_is_master",
        "1 where this Redis takes writes, 0 where it is a replica.",
        _is("role", "master"),
    ),
    _Field(
        "korvet_redis_commands",
        "Commands that Redis has run, those within scripts included.",
        _number("total_commands_processed"),
        counts=True,
    ),
    _Field(
        "korvet_redis_received_bytes",
        "Bytes that Redis has read from its clients.",
        _number("total_net_input_bytes"),
        counts=True,
    ),
    _Field(
        "korvet_redis_sent_bytes",
        "Bytes that Redis has written to its clients.",
        _number("total_net_output_bytes"),
        counts=True,
    ),
    _Field(
        "korvet_redis_cpu_seconds",
        "CPU that Redis' own process has used, system calls included; its children's is not.",
        _sum("used_cpu_sys", "used_cpu_user"),
        counts=True,
    ),
)

_STATUSES = {
    "snapshot": "rdb_last_bgsave_status",
    "aof_write": "aof_last_write_status",
    "aof_rewrite": "aof_last_bgrewrite_status",
}
"""What was done for the last time, and the field of INFO that says whether it succeeded."""


class RedisCollector(Collector):
    """Asks Redis anew for each page."""

    def __init__(self, client: redis.Redis) -> None:
        """`client` is one that does not wait for long."""
        self._redis = client
        self._newest: tuple[object, Sequence[Mapping[str, object]]] = (None, [])

    def collect(self) -> Iterator[Family]:
        """Yield what Redis tells; only that it does not answer where that is so."""
        try:
            with self._redis.pipeline(transaction=False) as pipeline:
                pipeline.info()
                pipeline.slowlog_get(1)
                info, slow = pipeline.execute(raise_on_error=False)
        except redis.RedisError:
            yield from families(None, None)
        else:
            # A user may lack the permission for either.
            told = info if isinstance(info, Mapping) else {}
            loading = isinstance(info, redis.BusyLoadingError)
            newest = self._newest_of(told.get("run_id"), slow) if isinstance(slow, list) else None
            yield from families(None if loading else told, newest)

    def _newest_of(
        self, run_id: object, slow: Sequence[Mapping[str, object]]
    ) -> Sequence[Mapping[str, object]]:
        """Return the newest entry, also where somebody has emptied SLOWLOG since: its numbers go on."""
        known_of, known = self._newest
        if not slow and known_of == run_id:
            return known
        self._newest = run_id, slow
        return slow


def families(info: Info | None, newest: Sequence[Mapping[str, object]] | None) -> Iterator[Family]:
    """Yield every metric, each with a value where there is one.

    `info` is what INFO answered, None: nothing. `newest` is the newest entry of SLOWLOG, if there is any; None is
    unknown.
    """
    up = GaugeMetricFamily(
        "korvet_redis_up", "1 where Redis answered the process that makes this page within a second."
    )
    up.add_metric([], int(info is not None))
    yield up
    found = info or {}
    for field in _FIELDS:
        kind = CounterMetricFamily if field.counts else GaugeMetricFamily
        family = kind(field.name, field.documentation)
        value = field.value(found)
        if value is not None:
            family.add_metric([], value)
        yield family
    yield _persistence(found)
    yield _slow_commands(newest)
    yield _version(found)


def _persistence(info: Info) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "korvet_redis_persistence_ok",
        "1 where what Redis does against losing data succeeded the last time: snapshot, aof_write, aof_rewrite.",
        labels=["action"],
    )
    for action, field in _STATUSES.items():
        if field in info:
            family.add_metric([action], float(info[field] == "ok"))
    return family


def _slow_commands(newest: Sequence[Mapping[str, object]] | None) -> CounterMetricFamily:
    family = CounterMetricFamily(
        "korvet_redis_slow_commands",
        "Commands and scripts that took Redis longer than its slowlog-log-slower-than, by the numbers in its SLOWLOG;"
        " none where the user may not read that.",
    )
    if newest is not None:
        # They are numbered from 0 on, and only some of the newest are kept.
        family.add_metric([], int(str(newest[0]["id"])) + 1 if newest else 0)
    return family


def _version(info: Info) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "korvet_redis_info", "Always 1; which server, and its version.", labels=["server", "version"]
    )
    for server in ("valkey", "redis"):
        version = info.get(f"{server}_version")
        if version is not None:
            family.add_metric([server, str(version)], 1)
            break
    return family
