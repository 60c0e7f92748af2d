"""The Redis of a broker: whether it may hold a log, keeps it, and has room and time for more.

What a start checks is checked here by the same code. The embedded server is examined if it runs.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from pathlib import Path
from typing import Any, cast

import redis

from korvet.config.settings import Settings
from korvet.doctor import logs, redis_cluster, sentinels
from korvet.doctor.machine import clock
from korvet.doctor.settings import offsets_end_soon
from korvet.errors import ConfigError
from korvet.redis import blocking
from korvet.redis import url as redis_url
from korvet.redis.keys import Keys, decode_group_id
from korvet.redis.replies import insync_of
from korvet.server import refusals
from korvet.server.finding import Finding, error, mib, ok, warning
from korvet.server.supervisor import redis_check, startup

_PINGS = 21
_SLOW_MS, _TOO_SLOW_MS = 5.0, 100.0
_FORK_SLOW_US = 1_000_000
_MIN_INSYNC, _BITS = "min.insync.replicas", "offset.sequence.bits"
_GROUPS_AT_ONCE = 500
# Small commands, appends, large replies, waits for replicas, news of appends; keeper, ops and what a restart overlaps.
_CONNECTIONS_PER_WORKER, _CONNECTIONS_BESIDE = 5, 8


def examine(settings: Settings) -> Iterator[Finding]:
    limit_setting = "maxmemory" if settings.redis_url else "embedded.maxmemory.bytes"
    data_dir = None if settings.redis_url else Path(settings.data_dir).expanduser()
    if not settings.redis_url:
        url = redis_url.running_url(Path(settings.data_dir))
        if url is None:
            yield ok(
                "redis",
                f"embedded, in {settings.data_dir}; it does not run: start the broker to have it examined",
            )
            return
        settings = dataclasses.replace(settings, redis_url=url)
    try:
        target = redis_url.parse_url(settings.redis_url)
        facts = redis_check.check(settings)
        with blocking.connected(settings) as masters:
            yield ok("redis", f"{target}, {facts.name} {facts.version}")
            if target.kind == "sentinel":
                yield from sentinels.examine(target, settings)
            if target.kind == "cluster":
                yield from redis_cluster.examine(masters, settings)
            yield from facts.findings
            infos = {name: item for name, item in masters.each(_info).items() if isinstance(item, Mapping)}
            for name, info in infos.items():
                for finding in _judged(info, settings, limit_setting):
                    yield finding.about(name)
            yield from _producers(masters, settings, data_dir)
            yield from _registry(masters, settings, infos)
            for name, client in masters.all().items():
                if name in infos or not name:
                    yield _latency(client).about(name)
                    yield clock(client).about(name)
            redis_check.try_out(masters, settings)
            yield ok("permissions", "every command that Korvet needs is allowed")
    except ConfigError as problem:
        yield error("redis", str(problem), "correct this; until then no broker starts")


def cluster_of(settings: Settings) -> str | None:
    """Return the id of the cluster that these settings lead to, "" before its first start, None if it is unknown."""
    url = settings.redis_url or redis_url.running_url(Path(settings.data_dir))
    if settings.cluster_id or url is None:
        return settings.cluster_id
    try:
        with blocking.connected(dataclasses.replace(settings, redis_url=url)) as masters:
            return _stored_cluster_id(masters, settings)
    except ConfigError:
        return None


def _stored_cluster_id(masters: blocking.Masters, settings: Settings) -> str:
    key = Keys(settings.namespace).cluster_id
    stored = masters.of(key).get(key)
    return stored.decode(errors="replace") if isinstance(stored, bytes) else ""


def _info(client: redis.Redis) -> Mapping[str, Any]:
    return client.info()


def _in_sync(client: redis.Redis) -> int:
    # As one word the client leaves the answer as it is.
    return insync_of(client.execute_command("INFO replication"))  # type: ignore[no-untyped-call]  # untyped there


def _judged(info: Mapping[str, Any], settings: Settings, limit_setting: str) -> Iterator[Finding]:
    yield from _memory(info, settings, limit_setting)
    for field, what in (
        ("aof_last_write_status", "append-only file"),
        ("rdb_last_bgsave_status", "snapshots"),
    ):
        if info.get(field) == "err":
            yield error(what, "the last write failed, and Redis may refuse writes", "make room on its disk")
    replicas = int(info.get("connected_slaves", 0))
    awaited = settings.replicas_wanted
    if info.get("aof_enabled") == 0 and (replicas or awaited):
        said = (
            "appendonly is no: a master that restarts comes back with less data, and its replicas copy that"
        )
        yield error("restart", said, "set appendonly to yes on the master and its replicas")
    if replicas < awaited:
        said = (
            f"acks=all waits for {awaited} replicas, and {replicas} are connected: writes with acks=all fail"
        )
        yield error("replicas", said, "start replicas of Redis, or lower replicas and min.insync.replicas")
    if int(info.get("latest_fork_usec", 0)) > _FORK_SLOW_US:
        said = f"the last fork stopped Redis for {int(info['latest_fork_usec']) / 1e6:.1f} s"
        yield warning("fork", said, "switch transparent huge pages off, or move to a Redis Cluster")
    yield from _connections(info, settings)


def _producers(masters: blocking.Masters, settings: Settings, data_dir: Path | None) -> Iterator[Finding]:
    """Yield whether producers are refused, and each reason, as a broker finds it."""
    reasons = refusals.of_masters(masters, redis_check.in_effect(masters, settings), data_dir)
    for reason in reasons:
        yield error("producers", f"refused: {reason}", "make room, or start Redis and its replicas again")
    if not reasons:
        yield ok("producers", "accepted")


def _memory(info: Mapping[str, Any], settings: Settings, setting: str) -> Iterator[Finding]:
    if "used_memory" not in info:
        return
    used, limit = int(info["used_memory"]), int(info.get("maxmemory", 0))
    total = int(info.get("total_system_memory", 0))
    if not limit:
        said = f"{mib(used)} in use, no limit: if the machine runs out of memory, the kernel kills Redis"
        yield warning(
            "memory", said, f"set {setting} to two thirds of the machine's memory{_two_thirds(total)}"
        )
        return
    percent = 100 * used / limit
    said = f"{mib(used)} of {mib(limit)} in use ({percent:.0f} %)"
    advice = f"raise {setting}, or shorten the topics' retention"
    if percent >= settings.memory_refuse_percent:
        yield error("memory", f"{said}: producers are refused", advice)
    elif percent >= settings.memory_throttle_percent:
        yield warning("memory", f"{said}: producers are throttled", advice)
    elif total and limit > 0.9 * total:
        said = f"the limit of {mib(limit)} is nearly all of the machine's memory ({mib(total)})"
        advice = (
            f"set {setting} to two thirds of it{_two_thirds(total)}: a rewrite of its file needs memory too"
        )
        yield warning("memory", said, advice)
    else:
        yield ok("memory", said)


def _connections(info: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    if "maxclients" not in info:
        return
    needed = startup.worker_count(settings) * _CONNECTIONS_PER_WORKER + _CONNECTIONS_BESIDE
    most, taken = int(info["maxclients"]), int(info.get("connected_clients", 0))
    said = f"{taken} of {most} connections are taken; this broker needs about {needed}"
    if most - taken < needed:
        yield warning("maxclients", said, "raise maxclients in Redis")
    else:
        yield ok("maxclients", said)


def _registry(masters: blocking.Masters, settings: Settings, infos: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings about the keys that all brokers share; `infos`: INFO of each master that answers."""
    keys = Keys(settings.namespace)
    # The format of the data is where the brokers are.
    needed = (keys.cluster_id, keys.brokers, keys.keeper_lease, keys.topics)
    away = {key for key in needed if masters.name_of(key) not in infos}
    for key in sorted(away):
        said = f"{masters.name_of(key)}, which has the key {key}, does not answer"
        yield error("registry", said, redis_cluster.REPLACE)
    if keys.cluster_id not in away:
        yield _cluster_id(masters, settings)
    if not away & {keys.brokers, keys.topics}:
        stored = redis_check.check_format(masters, keys)
        yield ok("data format", f"{stored.format}, of Korvet {stored.version}" if stored else "none yet")
    in_sync = [result for result in masters.each(_in_sync).values() if isinstance(result, int)]
    if keys.topics not in away:
        rows = logs.read_rows(masters.of(keys.topics), keys)
        topics = {name: row.configs for name, row in rows.items()}
        if in_sync:
            yield from _topics_out_of_sync(topics, settings, min(in_sync))
        timed = {name: configs for name, configs in topics.items() if _has_times(configs)}
        yield from _topics_that_end(timed)
        if masters.name_of(keys.groups) in infos:
            yield from _lags_by_time(masters, timed.keys(), keys, infos)
        yield from logs.examine(masters, keys, rows.values(), infos.keys())


def _cluster_id(masters: blocking.Masters, settings: Settings) -> Finding:
    name = _stored_cluster_id(masters, settings)
    if name and settings.cluster_id not in ("", name):
        said = f"this Redis belongs to cluster {name}, not to {settings.cluster_id}"
        return error("cluster.id", said, "correct redis.url, or leave cluster.id out")
    return ok("cluster.id", name or "none yet: the first broker that starts creates it")


def _number(configs: Mapping[str, str], name: str, default: int) -> int:
    text = configs.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else default


def _named(topics: Sequence[str], count_max: int = 10) -> str:
    more = f" and {len(topics) - count_max} more" if len(topics) > count_max else ""
    return ", ".join(topics[:count_max]) + more


def _topics_out_of_sync(
    topics: Mapping[str, dict[str, str]], settings: Settings, in_sync: int
) -> Iterator[Finding]:
    """Yield the topics whose min.insync.replicas is more than the servers in sync: acks=all is refused for them."""
    wanted = {
        name: _number(configs, _MIN_INSYNC, settings.min_insync_replicas) for name, configs in topics.items()
    }
    if short := [f"{name} ({count})" for name, count in wanted.items() if count > in_sync]:
        said = f"servers in sync: {in_sync}, fewer than min.insync.replicas of {_named(short)}; acks=all is refused"
        yield error("topics", said, "start replicas of Redis, or lower min.insync.replicas of the topics")


def _topics_that_end(topics: Mapping[str, dict[str, str]]) -> Iterator[Finding]:
    """Yield the topics with offsets of times that end within decades."""
    months = {name: offsets_end_soon(_number(configs, _BITS, 8)) for name, configs in topics.items()}
    if soon := [f"{name} ({month})" for name, month in months.items() if month]:
        said = f"the offsets of these topics run out, and then they take no more records: {_named(soon)}"
        yield warning(
            "offsets",
            said,
            "copy them (korvet topics copy) to topics with offset.sequence.bits of 11 or less before then",
        )


def _has_times(configs: Mapping[str, str]) -> bool:
    """Return whether the offsets of a topic are made of times."""
    return configs.get("storage.format") != "batch" and configs.get("offset.encoding", "time") == "time"


def _lags_by_time(
    masters: blocking.Masters, timed: AbstractSet[str], keys: Keys, infos: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield the `timed` topics that groups read: a difference of their offsets is no lag."""
    names = cast("list[bytes]", masters.of(keys.groups).zrange(keys.groups, 0, -1)) if timed else []
    by_master: dict[str, list[str]] = {}
    for name in names:
        key = keys.group_offsets(decode_group_id(name.decode(errors="replace")))
        by_master.setdefault(masters.name_of(key), []).append(key)
    committed: set[str] = set()
    for offsets in (by_master[master] for master in by_master.keys() & infos.keys()):
        for first in range(0, len(offsets), _GROUPS_AT_ONCE):
            pipeline = masters.of(offsets[0]).pipeline(transaction=False)
            for key in offsets[first : first + _GROUPS_AT_ONCE]:
                pipeline.hkeys(key)
            fields = (reply for reply in pipeline.execute(raise_on_error=False) if isinstance(reply, list))
            streams = map(keys.parse_stream, chain.from_iterable(fields))
            committed |= {stream[0] for stream in streams if stream}
    if misread := sorted(timed & committed):
        said = f"the offsets of {_named(misread, 3)} are times: a monitor that subtracts offsets shows a wrong lag"
        yield ok(
            "lag", said, "give new topics offset.encoding=dense; korvet topics copy moves records and groups"
        )


def _latency(client: redis.Redis) -> Finding:
    samples_ms = []
    for _ in range(_PINGS):
        begun = time.perf_counter()
        client.ping()
        samples_ms.append((time.perf_counter() - begun) * 1000)
    middle_ms = statistics.median(samples_ms)
    said = f"a round trip takes {middle_ms:.2f} ms at the median, {max(samples_ms):.2f} ms at most"
    advice = (
        "run brokers near Redis; redis-cli slowlog get and redis-cli latency latest show what blocks Redis"
    )
    if middle_ms >= _TOO_SLOW_MS:
        return error("latency", said, advice)
    return warning("latency", said, advice) if middle_ms >= _SLOW_MS else ok("latency", said)


def _two_thirds(size: int) -> str:
    """Return the number of bytes as the settings take it."""
    return f": {size * 2 // 3}" if size else ""
