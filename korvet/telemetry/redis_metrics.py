"""What Redis reports about itself, read for each page of /metrics: memory, persistence, clients, evictions, slow log.

A Redis that is away or hangs costs a page little time (page.REDIS_MS_MAX), and the page lacks nothing else. Each master
of a cluster has its series, by the label `node`; for one Redis it is empty, which is none for Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import redis
from prometheus_client.registry import Collector

from korvet.redis.blocking import Masters
from korvet.telemetry.gauges import Family, MetricTable, counter, gauge

Info = Mapping[str, object]
Entries = Sequence[Mapping[str, object]]


def _cpu_seconds(info: Info) -> float | None:
    system, user = info.get("used_cpu_sys"), info.get("used_cpu_user")
    if not isinstance(system, int | float) or not isinstance(user, int | float):
        return None
    return round(system + user, 6)  # Redis counts microseconds


FIELDS = MetricTable(
    ("node",),
    gauge("korvet_redis_uptime_seconds", "uptime_in_seconds"),
    gauge("korvet_redis_memory_used_bytes", "used_memory"),
    gauge("korvet_redis_memory_max_bytes", "maxmemory"),
    gauge("korvet_redis_memory_resident_bytes", "used_memory_rss"),
    counter("korvet_redis_evicted_keys", "evicted_keys"),
    gauge("korvet_redis_aof_enabled", "aof_enabled"),
    gauge("korvet_redis_aof_size_bytes", "aof_current_size"),
    counter("korvet_redis_aof_delayed_fsyncs", "aof_delayed_fsync"),
    gauge("korvet_redis_aof_rewrite_in_progress", "aof_rewrite_in_progress"),
    gauge("korvet_redis_last_fork_seconds", "latest_fork_usec", divisor=1e6),
    gauge("korvet_redis_unsaved_changes", "rdb_changes_since_last_save"),
    gauge("korvet_redis_last_save_timestamp_seconds", "rdb_last_save_time"),
    gauge("korvet_redis_connected_clients", "connected_clients"),
    gauge("korvet_redis_max_clients", "maxclients"),
    counter("korvet_redis_rejected_connections", "rejected_connections"),
    gauge("korvet_redis_connected_replicas", "connected_slaves"),
    gauge("korvet_redis_is_master", lambda info: float(info["role"] == "master") if "role" in info else None),
    counter("korvet_redis_commands", "total_commands_processed"),
    counter("korvet_redis_received_bytes", "total_net_input_bytes"),
    counter("korvet_redis_sent_bytes", "total_net_output_bytes"),
    counter("korvet_redis_cpu_seconds", _cpu_seconds),
)
REPLICAS_WANTED = MetricTable(("node",), gauge("korvet_redis_replicas_wanted"))
UP = MetricTable(("node",), gauge("korvet_redis_up"))
PERSISTENCE = MetricTable(("node", "action"), gauge("korvet_redis_persistence_ok"))
SLOW_COMMANDS = MetricTable(("node",), counter("korvet_redis_slow_commands"))
VERSION = MetricTable(("node", "server", "version"), gauge("korvet_redis_info"))

_STATUSES = {
    "snapshot": "rdb_last_bgsave_status",
    "aof_write": "aof_last_write_status",
    "aof_rewrite": "aof_last_bgrewrite_status",
}
"""The field of INFO that says whether an action succeeded the last time."""


class ServerState(NamedTuple):
    """What one server said, by the name of the node.

    `info` is the answer to INFO, None without one. `newest` is the newest entry of SLOWLOG, if there is any; None if it
    is unknown.
    """

    node: str
    info: Info | None
    newest: Entries | None = None


class RedisCollector(Collector):
    """Asks each master for each page; their clients must not wait long."""

    def __init__(self, masters: Masters, *, replicas_wanted: int = 0) -> None:
        self._masters = masters
        self._replicas_wanted = replicas_wanted
        self._newest: dict[str, tuple[object, Entries]] = {}

    def collect(self) -> Iterator[Family]:
        """Yield the figures of each Redis server; for one without an answer, only that it is down."""
        answers = _info_and(self._masters, "slowlog_get", 1)
        states = [self._state(node, answer) for node, answer in answers.items()]
        yield from redis_families(states, self._replicas_wanted)

    def _state(self, node: str, answer: list[Any] | redis.RedisError) -> ServerState:
        if isinstance(answer, redis.RedisError) or isinstance(answer[0], redis.BusyLoadingError):
            return ServerState(node, None)
        info, slow = answer
        # A user may lack the permission for either.
        fields = info if isinstance(info, Mapping) else {}
        newest = self._newest_of(node, fields.get("run_id"), slow) if isinstance(slow, list) else None
        return ServerState(node, fields, newest)

    def _newest_of(self, node: str, run_id: object, slow: Entries) -> Entries:
        """Return the newest entry, also if SLOWLOG has been reset since: its ids go on."""
        known_run, known = self._newest.get(node, (None, []))
        if not slow and known_run == run_id:
            return known
        self._newest[node] = run_id, slow
        return slow


Answers = Mapping[str, list[Any] | redis.RedisError]


def _info_and(masters: Masters, command: str, argument: object) -> Answers:
    """Return what each master answers to INFO and to another command, by the name of the node."""

    def ask(client: redis.Redis) -> list[Any]:
        with client.pipeline(transaction=False) as pipeline:
            pipeline.info()
            getattr(pipeline, command)(argument)
            return pipeline.execute(raise_on_error=False)

    try:
        return masters.each(ask)
    except redis.RedisError as error:
        return {"": error}


def redis_state(masters: Masters, replicas_wanted: int) -> list[dict[str, Any]]:
    """Return memory, persistence, replicas and load of each master as the console shows them.

    Of one that does not tell them, only its name, `node`; the name of one Redis is empty.
    """
    answers = _info_and(masters, "config_get", "appendfsync")
    return [{"node": node, **_shown(answer, replicas_wanted)} for node, answer in answers.items()]


def _shown(answer: list[Any] | redis.RedisError, replicas_wanted: int) -> dict[str, Any]:
    if isinstance(answer, redis.RedisError) or not isinstance(answer[0], Mapping):
        return {}
    info, fsync = answer
    return {
        "memory": info.get("used_memory"),
        "memory_max": info.get("maxmemory"),
        "aof": info.get("aof_enabled") == 1,
        # A user may lack the permission for CONFIG.
        "fsync": fsync.get("appendfsync") if isinstance(fsync, Mapping) else None,
        "persists": all(info.get(name, "ok") == "ok" for name in _STATUSES.values()),
        "master": info.get("role") == "master",
        "replicas": info.get("connected_slaves"),
        "replicas_wanted": replicas_wanted,
        "commands": info.get("total_commands_processed"),
        "commands_per_second": info.get("instantaneous_ops_per_sec"),
        "clients": info.get("connected_clients"),
        "cpu_seconds": _cpu_seconds(info),
    }


def redis_families(states: Sequence[ServerState], replicas_wanted: int = 0) -> Iterator[Family]:
    """Yield every metric, each with a value for each server that has one."""
    infos = [(node, info or {}) for node, info, _ in states]
    yield from UP.families([(node, info is not None) for node, info, _ in states])
    yield from REPLICAS_WANTED.families([(node, replicas_wanted) for node, _ in infos])
    yield from FIELDS.families(infos)
    yield from PERSISTENCE.families(
        (node, action, info[field] == "ok")
        for node, info in infos
        for action, field in _STATUSES.items()
        if field in info
    )
    # Entries are numbered from 0 on, and only some of the newest are kept.
    yield from SLOW_COMMANDS.families(
        (node, int(str(newest[0]["id"])) + 1 if newest else 0)
        for node, _, newest in states
        if newest is not None
    )
    versions = [
        [
            (node, server, str(info[name]), 1)
            for server in ("valkey", "redis")
            if (name := f"{server}_version") in info
        ]
        for node, info in infos
    ]
    yield from VERSION.families(version[0] for version in versions if version)
