"""Topics as the console shows them: a page of them with sizes and traffic, and one with partitions and configs.

Offsets are told as text: a browser's numbers end at 2**53.

What this broker's processes have counted, for the console: the same figures as in /metrics, without asking Redis.

Knows names of metrics and their labels. Counters only grow: whoever shows a rate takes the difference of two looks.

Consumer groups as the console shows them: a page of them, and one with its members and partitions.

Lag is in records: from offsets where these are dense, and else as the acting keeper has counted it last, which only its
own broker is told. Offsets are told as text: a browser's numbers end at 2**53.

How far topics are archived, as the brokers tell their clients: the lake's share of each log and Redis' own.

Knows the questions of KIP-405 and KIP-1005 for the first offset in Redis and the last one in the lake; nothing of
tables. Offsets are told as text: a browser's numbers end at 2**53.

This broker's processes and counters, and the brokers of its cluster, as the console shows them.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import korvet
from korvet.admin.errors import AdminError
from korvet.admin.groups import GroupDescription
from korvet.admin.lag import GroupPartition, PartitionProgress, progress_of
from korvet.admin.offsets import EARLIEST, LATEST, LogOffset
from korvet.admin.types import ConfigSource, Resource, TopicPartition, settled
from korvet.config.settings import Settings
from korvet.console.api_client import ApiClient, ApiClients, Page
from korvet.console.query import Query
from korvet.telemetry.page import CountedByProcesses
from korvet.telemetry.process_table import NAMES, ProcessRow, ProcessState, ProcessTable
from korvet.telemetry.snapshot import LogSnapshot, read
from korvet.telemetry.topic_metrics import traffic

_TOTALS = {
    "korvet_requests_total": "requests",
    "korvet_received_bytes_total": "received_bytes",
    "korvet_sent_bytes_total": "sent_bytes",
    "korvet_connections": "connections",
    "korvet_requests_in_flight": "in_flight",
    "korvet_produce_errors_total": "produce_errors",
    "korvet_redis_unavailable_total": "redis_unavailable",
    "korvet_throttled_requests_total": "throttled",
}
_TRAFFIC = ("received_records", "received_bytes", "sent_records", "sent_bytes")


class ConsoleMetrics:
    """What the processes of this broker have published in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._counted = CountedByProcesses(directory)

    def totals(self) -> dict[str, float]:
        """Return the sums over all labels, by the names that the console has for them."""
        found = dict.fromkeys(_TOTALS.values(), 0.0)
        for metric in self._counted.collect():
            for sample in metric.samples:
                if sample.name in _TOTALS:
                    found[_TOTALS[sample.name]] += sample.value
        return found

    def traffic(self) -> dict[str, dict[str, int]]:
        """Return the traffic of each topic through this broker."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for row in chain.from_iterable(traffic(self._directory).values()):
            found[row.topic].update({name: getattr(row, name) for name in _TRAFFIC})
        return {topic: dict(counts) for topic, counts in found.items()}

    def lags(self) -> dict[GroupPartition, int]:
        """Return the lag of groups in records as the keeper has published it; nothing if another broker's does."""
        logs = read(self._directory / LogSnapshot.FILE, LogSnapshot)
        return {
            (lag.group, TopicPartition(lag.topic, lag.partition)): lag.records
            for lag in (logs.lags if logs else ())
            if lag.partition is not None
        }


_TOPICS_TOPICS_MAX = 100
_SIZES_MAX = 5000
_CONFIGS = ("cleanup.policy", "retention.ms", "storage.format", "remote.storage.enable")


def topics(askers: ApiClients, asker: ApiClient, figures: ConsoleMetrics, query: Query) -> dict[str, Any]:
    """Return a page of topics: `size` in bytes, None where a broker does not tell it. Raises AdminError."""
    page, total = Page.of(query, _TOPICS_TOPICS_MAX).cut(asker.topics.list(), lambda each: each.name)
    places = {
        each.name: [TopicPartition(each.name, index) for index in range(each.partitions)] for each in page
    }
    every = [place for some in places.values() for place in some]
    sizes = askers.sizes(asker, every) if len(every) <= _SIZES_MAX else {}
    configs = asker.configs.describe([Resource.topic(each.name) for each in page], names=_CONFIGS)
    traffic = figures.traffic()
    rows = []
    for each in page:
        told = [sizes.get(place) for place in places[each.name]]
        config = configs[Resource.topic(each.name)]
        rows.append(
            {
                "name": each.name,
                "internal": each.internal,
                "partitions": each.partitions,
                "size": None if None in told else sum(size for size in told if size is not None),
                "traffic": traffic.get(each.name),
                "configs": {}
                if isinstance(config, AdminError)
                else {name: found.value for name, found in config.items()},
            }
        )
    return {"topics": rows, "total": total, "now": time.time_ns() // 1_000_000}


def topic(askers: ApiClients, asker: ApiClient, figures: ConsoleMetrics, query: Query) -> dict[str, Any]:
    """Return one topic. Raises AdminError."""
    name = query.text("name")
    described = settled(asker.topics.describe([name]))[name]
    places = [TopicPartition(name, each.partition) for each in described.partitions]
    starts = asker.offsets.at(dict.fromkeys(places, EARLIEST))
    ends = asker.offsets.at(dict.fromkeys(places, LATEST))
    sizes = askers.sizes(asker, places)
    resource = Resource.topic(name)
    configs = settled(asker.configs.describe([resource], documentation=True))[resource]
    return {
        "name": name,
        "id": str(described.topic_id),
        "internal": described.internal,
        "traffic": figures.traffic().get(name),
        "now": time.time_ns() // 1_000_000,
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader,
                "replicas": each.replicas,
                "start": offset_of(starts[place]),
                "end": offset_of(ends[place]),
                "size": sizes.get(place),
            }
            for each, place in zip(described.partitions, places, strict=True)
        ],
        "configs": [
            {
                "name": each.name,
                "value": each.value,
                "own": each.source is ConfigSource.TOPIC,
                "source": each.source.name.lower(),
                "documentation": each.documentation,
            }
            for each in sorted(configs.values(), key=lambda each: each.name)
        ],
    }


def offset_of(found: LogOffset | AdminError) -> str | None:
    """Return an offset as text; None where there is none or it is not told."""
    return None if isinstance(found, AdminError) or found.offset < 0 else str(found.offset)


_GROUPS_MAX = 50


def groups(asker: ApiClient, figures: ConsoleMetrics, query: Query) -> dict[str, Any]:
    """Return a page of groups. Raises AdminError."""
    page, total = Page.of(query, _GROUPS_MAX).cut(asker.groups.list(), lambda each: each.group_id)
    described = asker.groups.describe([each.group_id for each in page])
    there = [each for each in described.values() if isinstance(each, GroupDescription)]
    progress = progress_of(asker, there, figures.lags())
    rows = [
        _summary(each.group_id, described[each.group_id], progress.get(each.group_id, ()), each.state)
        for each in page
    ]
    return {"groups": rows, "total": total}


def group(asker: ApiClient, figures: ConsoleMetrics, query: Query) -> dict[str, Any]:
    """Return one group. Raises AdminError."""
    name = query.text("name")
    described = settled(asker.groups.describe([name]))[name]
    progress = progress_of(asker, [described], figures.lags())[name]
    return _summary(name, described, progress, described.state) | {
        "protocol_type": described.protocol_type,
        "protocol": described.protocol,
        "members": [
            {
                "id": each.member_id,
                "instance": each.instance_id,
                "client": each.client_id,
                "host": each.client_host,
                "partitions": None if each.partitions is None else [str(place) for place in each.partitions],
            }
            for each in described.members
        ],
        "offsets": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "committed": None if each.committed is None else str(each.committed.offset),
                "metadata": each.committed.metadata if each.committed else "",
                "end": None if each.end is None else str(each.end),
                "lag": each.lag,
                "member": each.member.member_id if each.member else None,
                "client": each.member.client_id if each.member else None,
            }
            for each in progress
        ],
    }


def _summary(
    name: str, described: GroupDescription | AdminError, progress: Sequence[PartitionProgress], state: str
) -> dict[str, Any]:
    lags = [each.lag for each in progress]
    known = [lag for lag in lags if lag is not None]
    return {
        "name": name,
        "state": described.state if isinstance(described, GroupDescription) else state,
        "count": len(described.members) if isinstance(described, GroupDescription) else None,
        "partition_count": len(lags),
        "topics": sorted({each.partition.topic for each in progress}),
        "lag": sum(known) if known or not lags else None,
        "lag_unknown": len(lags) - len(known),
    }


_EARLIEST_LOCAL, _LATEST_TIERED = -4, -5
_ENABLED = "remote.storage.enable"
_LAKE_TOPICS_MAX = 2000
_PARTITIONS_MAX = 1000


def lake(asker: ApiClient, _query: Query) -> dict[str, Any]:
    """Return the partitions that are archived, or are to be. Raises AdminError."""
    listed = asker.topics.list()
    looked_at = [Resource.topic(each.name) for each in listed[:_LAKE_TOPICS_MAX]]
    configs = asker.configs.describe(looked_at, names=[_ENABLED])
    tiered = []
    for resource, config in configs.items():
        if not isinstance(config, AdminError) and _ENABLED in config and config[_ENABLED].value == "true":
            tiered.append(resource.name)
    counts = {each.name: each.partitions for each in listed}
    places = [TopicPartition(name, index) for name in tiered for index in range(counts[name])]
    shown = places[:_PARTITIONS_MAX]
    starts, local, archived, ends = (
        asker.offsets.at(dict.fromkeys(shown, question))
        for question in (EARLIEST, _EARLIEST_LOCAL, _LATEST_TIERED, LATEST)
    )
    rows = []
    for place in shown:
        last = archived[place]
        rows.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "start": offset_of(starts[place]),
                "local": offset_of(local[place]),
                # The question tells the last one; where the next begins compares with the end.
                "archived": str(last.offset + 1)
                if isinstance(last, LogOffset) and last.offset >= 0
                else None,
                "end": offset_of(ends[place]),
            }
        )
    return {"partitions": rows, "left_out": len(places) - len(shown) + max(len(listed) - _LAKE_TOPICS_MAX, 0)}


def overview(
    settings: Settings, table: ProcessTable, figures: ConsoleMetrics, *, takes_changes: bool
) -> dict[str, Any]:
    """Return what this broker knows of itself, without asking anybody; times in ms since 1970."""
    workers = [_row(f"worker {row.index}", row) for row in table.workers()]
    others = [
        _row(name, row)
        for index, name in NAMES.items()
        if (row := table.row(index)).state is not ProcessState.EMPTY
    ]
    return {
        "version": korvet.__version__,
        "broker": settings.broker_id,
        "cluster": settings.cluster_id,
        "now": time.time_ns() // 1_000_000,
        "draining": table.draining,
        "restarts": table.restarts,
        "processes": workers + others,
        "totals": figures.totals(),
        "changes": takes_changes,
        "lake": bool(settings.lake_path),
    }


def cluster(asker: ApiClient, broker_id: int) -> dict[str, Any]:
    """Return the brokers as clients are told of them. Raises AdminError."""
    described = asker.cluster.describe()
    brokers = [
        {
            "id": each.broker_id,
            "address": f"{each.host}:{each.port}",
            "rack": each.rack,
            "controller": each.broker_id == described.controller,
            "own": each.broker_id == broker_id,
        }
        for each in described.brokers
    ]
    return {"id": described.cluster_id, "brokers": brokers}


def _row(name: str, row: ProcessRow) -> dict[str, Any]:
    return {"name": name, "state": row.state.name.lower(), "pid": row.pid, "started": row.started_at_ms}
