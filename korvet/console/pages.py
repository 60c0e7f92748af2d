"""What the console shows besides records: the broker, the cluster, topics, groups, transactions and archived logs.

Offsets are text, because a browser's numbers are exact only to 2**53. Counters only grow: the pages compute rates from
two readings.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import korvet
from korvet.admin.errors import AdminError
from korvet.admin.groups import GroupDescription
from korvet.admin.lag import GroupPartition, PartitionProgress, progress_of
from korvet.admin.offsets import EARLIEST, LATEST, LogOffset
from korvet.admin.transactions import UNDECIDED, Transaction, TransactionDescription
from korvet.admin.types import TIME_CODED_FROM, ConfigSource, Resource, TopicPartition, settled
from korvet.config.settings import Settings
from korvet.console.api_client import ApiClient, ApiClients
from korvet.console.query import Page, Query
from korvet.protocol.types import SpecialTimestamp
from korvet.telemetry.page import CountedByProcesses
from korvet.telemetry.process_table import NAMES, ProcessRow, ProcessState, ProcessTable
from korvet.telemetry.snapshot import LogStatsSnapshot, read
from korvet.telemetry.topic_metrics import traffic

_REFUSED, _REFUSED_AT = "korvet_produce_errors_total", "korvet_produce_last_error_timestamp_seconds"
_TOTALS = {
    "korvet_requests_total": "requests",
    "korvet_received_bytes_total": "received_bytes",
    "korvet_sent_bytes_total": "sent_bytes",
    "korvet_connections": "connections",
    "korvet_requests_in_flight": "in_flight",
    _REFUSED: "produce_errors",
    "korvet_redis_unavailable_total": "redis_unavailable",
    "korvet_throttled_requests_total": "throttled",
    "korvet_keeper_leader": "keeper_leader",
}
_TRAFFIC = ("received_records", "received_bytes", "sent_records", "sent_bytes")

_TOPICS_MAX = 100
_SIZES_MAX = 5000
_NODES_SECONDS_MAX = 2.0
_GROUPS_MAX = 50
_TRANSACTIONS_MAX = 50
_LAKE_TOPICS_MAX = 2000
_LAKE_PARTITIONS_MAX = 1000
_CONFIGS = ("cleanup.policy", "retention.ms", "storage.format", "remote.storage.enable")
_TIERED = "remote.storage.enable"


class BrokerTotals(NamedTuple):
    """What the processes of this broker count: sums, and `refused`, the batches of producers by error, newest first."""

    counts: dict[str, float]
    refused: list[dict[str, Any]]


class Counted(NamedTuple):
    """Counts of records by the keeper: not committed by a group, and in a whole log.

    `largest` is the group with most of them; None if nothing is counted here.
    """

    lags: dict[GroupPartition, int]
    records: dict[TopicPartition, int]
    largest: dict[str, Any] | None = None


class ConsoleMetrics:
    """What the processes of this broker have published in one directory: /metrics without the part of Redis."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._counted = CountedByProcesses(directory)

    def totals(self) -> BrokerTotals:
        """Return the sums over all labels, by the names that the console has for them, and the refused batches."""
        sums = dict.fromkeys(_TOTALS.values(), 0.0)
        batches: Counter[str] = Counter()
        refused_at: dict[str, float] = {}
        for metric in self._counted.collect():
            for sample in metric.samples:
                if sample.name in _TOTALS:
                    sums[_TOTALS[sample.name]] += sample.value
                if sample.name == _REFUSED:
                    batches[sample.labels["error"]] += int(sample.value)
                elif sample.name == _REFUSED_AT:
                    refused_at[sample.labels["error"]] = sample.value
        rows = [
            {"error": error, "batches": many, "last": int(refused_at.get(error, 0) * 1000)}
            for error, many in batches.items()
        ]
        return BrokerTotals(sums, sorted(rows, key=lambda row: row["last"], reverse=True))

    def traffic(self) -> dict[str, dict[str, int]]:
        """Return the traffic of each topic through this broker."""
        by_topic: dict[str, Counter[str]] = defaultdict(Counter)
        for row in chain.from_iterable(traffic(self._directory).values()):
            by_topic[row.topic].update({name: getattr(row, name) for name in _TRAFFIC})
        return {topic: dict(counts) for topic, counts in by_topic.items()}

    def counted(self) -> Counted:
        """Return what the keeper has counted last; nothing if another broker's does."""
        logs = read(self._directory / LogStatsSnapshot.FILE, LogStatsSnapshot)
        if logs is None:
            return Counted({}, {})
        lags = {
            (lag.group, TopicPartition(lag.topic, lag.partition)): lag.records
            for lag in logs.lags
            if lag.partition is not None
        }
        records = {
            TopicPartition(log.topic, log.partition): log.records
            for log in logs.logs
            if log.partition is not None
        }
        by_group: Counter[str] = Counter()
        for lag in logs.lags:
            by_group[lag.group] += lag.records
        group, most = max(by_group.items(), key=itemgetter(1), default=(None, 0))
        return Counted(lags, records, {"group": group, "records": most})


def overview(
    settings: Settings,
    table: ProcessTable,
    metrics: ConsoleMetrics,
    redis: list[dict[str, Any]],
    *,
    allows_changes: bool,
) -> dict[str, Any]:
    """Return what is known of this broker without a request to it, and of Redis; times in ms since 1970."""
    workers = [_process(f"worker {row.index}", row) for row in table.workers()]
    others = [
        _process(name, row)
        for index, name in NAMES.items()
        if (row := table.row(index)).state is not ProcessState.EMPTY
    ]
    totals = metrics.totals()
    records: Counter[str] = Counter()
    for item in metrics.traffic().values():
        records.update({name: item[name] for name in ("received_records", "sent_records")})
    return {
        "version": korvet.__version__,
        "broker": settings.broker_id,
        "cluster": settings.cluster_id,
        "now": _now_ms(),
        "draining": table.draining,
        "restarts": table.restarts,
        "processes": workers + others,
        "totals": totals.counts | records,
        "refused": totals.refused,
        "redis": redis,
        "changes": allows_changes,
        "lake": bool(settings.lake_path),
    }


def _process(name: str, row: ProcessRow) -> dict[str, Any]:
    return {"name": name, "state": row.state.name.lower(), "pid": row.pid, "started": row.started_at_ms}


def cluster(
    clients: ApiClients,
    client: ApiClient,
    metrics: ConsoleMetrics,
    builds: Mapping[int, dict[str, Any]],
    *,
    is_redis_cluster: bool,
) -> dict[str, Any]:
    """Return the brokers as clients see them, and how much the cluster has. Raises AdminError.

    `builds` has the version and format that a broker has registered, by its id.
    """
    described = client.cluster.describe()
    brokers = [
        {
            "id": broker.broker_id,
            "address": f"{broker.host}:{broker.port}",
            "rack": broker.rack,
            "controller": broker.broker_id == described.controller,
            "own": broker.broker_id == clients.broker_id,
            **builds.get(broker.broker_id, {"version": None, "format": None}),
        }
        for broker in described.brokers
    ]
    listed = client.topics.list()
    partitions = sum(item.partitions for item in listed)
    page = {
        "id": described.cluster_id,
        "brokers": brokers,
        "topics": len(listed),
        "partitions": partitions,
        "groups": len(client.groups.list()),
        "lag": metrics.counted().largest,
        "nodes": {},
    }
    if is_redis_cluster and partitions <= _SIZES_MAX:
        # Last, and not for long: a broker waits for a node that hangs, and the rest is known.
        client.begin(min(client.deadline().left(), _NODES_SECONDS_MAX))
        with contextlib.suppress(AdminError):
            page["nodes"] = _nodes(clients, client)
    return page


def _nodes(clients: ApiClients, client: ApiClient) -> dict[str, dict[str, int]]:
    """Return for each node of the Redis Cluster, HOST:PORT, how many partitions it has, and their bytes."""
    nodes: dict[str, dict[str, int]] = {}
    for dirs in clients.log_dirs(client):
        for directory in dirs:
            # A log directory is redis://HOST:PORT/0; each broker reports what it leads.
            node = nodes.setdefault(directory.path.split("/")[2], {"partitions": 0, "bytes": 0})
            node["partitions"] += len(directory.partitions)
            node["bytes"] += sum(log.size_bytes for log in directory.partitions.values())
    return nodes


def topics(clients: ApiClients, client: ApiClient, metrics: ConsoleMetrics, query: Query) -> dict[str, Any]:
    """Return a page of topics: `size` in bytes, None if a broker did not report it. Raises AdminError."""
    page, total = Page.of(query, _TOPICS_MAX).cut(client.topics.list(), lambda item: item.name)
    partitions = {
        row.name: [TopicPartition(row.name, index) for index in range(row.partitions)] for row in page
    }
    every = list(chain.from_iterable(partitions.values()))
    sizes = clients.sizes(client, every) if len(every) <= _SIZES_MAX else {}
    configs = client.configs.describe([Resource.topic(row.name) for row in page], names=_CONFIGS)
    topic_traffic = metrics.traffic()
    rows = []
    for row in page:
        known = [sizes[partition] for partition in partitions[row.name] if partition in sizes]
        config = configs[Resource.topic(row.name)]
        rows.append(
            {
                "name": row.name,
                "internal": row.internal,
                "partitions": row.partitions,
                "size": sum(known) if len(known) == row.partitions else None,
                "traffic": topic_traffic.get(row.name),
                "configs": {}
                if isinstance(config, AdminError)
                else {name: setting.value for name, setting in config.items()},
            }
        )
    return {"topics": rows, "total": total, "now": _now_ms()}


def topic(clients: ApiClients, client: ApiClient, metrics: ConsoleMetrics, query: Query) -> dict[str, Any]:
    """Return one topic with its partitions and configs. Raises AdminError."""
    name = query.text("name")
    described = settled(client.topics.describe([name]))[name]
    partitions = [TopicPartition(name, item.partition) for item in described.partitions]
    starts = client.offsets.at(dict.fromkeys(partitions, EARLIEST))
    ends = client.offsets.at(dict.fromkeys(partitions, LATEST))
    sizes = clients.sizes(client, partitions)
    resource = Resource.topic(name)
    configs = settled(client.configs.describe([resource], documentation=True))[resource]
    return {
        "name": name,
        "id": str(described.topic_id),
        "internal": described.internal,
        "traffic": metrics.traffic().get(name),
        "now": _now_ms(),
        "partitions": [
            {
                "partition": item.partition,
                "leader": item.leader,
                "replicas": item.replicas,
                "start": _offset_text(starts[partition]),
                "end": _offset_text(ends[partition]),
                "size": sizes.get(partition),
            }
            for item, partition in zip(described.partitions, partitions, strict=True)
        ],
        "configs": [
            {
                "name": config.name,
                "value": config.value,
                "own": config.source is ConfigSource.TOPIC,
                "source": config.source.name.lower(),
                "documentation": config.documentation,
            }
            for config in sorted(configs.values(), key=lambda config: config.name)
        ],
    }


def groups(client: ApiClient, metrics: ConsoleMetrics, query: Query) -> dict[str, Any]:
    """Return a page of groups. Raises AdminError."""
    page, total = Page.of(query, _GROUPS_MAX).cut(client.groups.list(), lambda item: item.group_id)
    described = client.groups.describe([row.group_id for row in page])
    descriptions = [
        description for description in described.values() if isinstance(description, GroupDescription)
    ]
    counted = metrics.counted()
    progress = progress_of(client, descriptions, counted.lags, assigned_only=True)
    rows = [
        _summary(row.group_id, described[row.group_id], progress.get(row.group_id, ()), row.state, counted)
        | {"type": row.type}
        for row in page
    ]
    return {"groups": rows, "total": total}


def group(client: ApiClient, metrics: ConsoleMetrics, query: Query) -> dict[str, Any]:
    """Return one group with its members and offsets. Raises AdminError.

    The lag in records is the difference of offsets where these are dense, else the one that the keeper counted last.
    Where nothing is committed there is no lag; `uncommitted` is how many records the log has then. `committed` of a
    share group is where it starts. `timed_topics` are those whose offsets are times.
    """
    name = query.text("name")
    described = settled(client.groups.describe([name]))[name]
    counted = metrics.counted()
    progress = progress_of(client, [described], counted.lags)[name]
    return _summary(name, described, progress, described.state, counted) | {
        "type": described.type,
        "protocol_type": described.protocol_type,
        "protocol": described.protocol,
        "members": [
            {
                "id": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.client_host,
                "partitions": None if member.partitions is None else [*map(str, member.partitions)],
            }
            for member in described.members
        ],
        "offsets": [
            {
                **partition.partition._asdict(),
                "committed": None if partition.committed is None else str(partition.committed.offset),
                "metadata": partition.committed.metadata if partition.committed else "",
                "end": None if partition.end is None else str(partition.end),
                "lag": partition.lag,
                "uncommitted": _uncommitted(partition, counted),
                "member": partition.member.member_id if partition.member else None,
                "client": partition.member.client_id if partition.member else None,
            }
            for partition in progress
        ],
        "timed_topics": sorted(
            {
                offset.partition.topic
                for offset in progress
                if offset.end is not None and offset.end >= TIME_CODED_FROM
            }
        ),
    }


def _summary(
    name: str,
    described: GroupDescription | AdminError,
    progress: Sequence[PartitionProgress],
    state: str,
    counted: Counted,
) -> dict[str, Any]:
    lags = [partition.lag for partition in progress if partition.committed]
    known = [lag for lag in lags if lag is not None]
    uncommitted = [_uncommitted(partition, counted) for partition in progress if not partition.committed]
    return {
        "name": name,
        "state": described.state if isinstance(described, GroupDescription) else state,
        "count": len(described.members) if isinstance(described, GroupDescription) else None,
        "partition_count": len(progress),
        "topics": sorted({partition.partition.topic for partition in progress}),
        "lag": sum(known) if known else None,
        "lag_unknown": len(lags) - len(known),
        "uncommitted_count": len(uncommitted),
        "uncommitted": sum(records or 0 for records in uncommitted) if None not in uncommitted else None,
    }


def _uncommitted(progress: PartitionProgress, counted: Counted) -> int | None:
    """Return the number of records in a log that a group has committed nothing of, None if it is not known."""
    if progress.committed or progress.end is None:
        return None
    by_offsets = progress.uncommitted
    return counted.records.get(progress.partition) if by_offsets is None else by_offsets


def transactions(clients: ApiClients, client: ApiClient, query: Query) -> dict[str, Any]:
    """Return a page of transactional ids; `start` is when the open transaction began. Raises AdminError.

    Each broker lists the ids that it coordinates; `unanswered`: brokers without an answer. Any broker describes any id.
    """
    listed: dict[str, Transaction] = {}
    unanswered = []
    for broker_id, answer in clients.ask_each(client, lambda at: at.transactions.list()):
        if isinstance(answer, AdminError):
            unanswered.append({"broker": broker_id, "error": str(answer)})
        else:
            listed |= {transaction.transactional_id: transaction for transaction in answer}
    page, total = Page.of(query, _TRANSACTIONS_MAX).cut(
        [item for _, item in sorted(listed.items())], lambda item: item.transactional_id
    )
    described = client.transactions.describe([row.transactional_id for row in page])
    rows = [_transaction(row, described[row.transactional_id]) for row in page]
    return {"transactions": rows, "total": total, "unanswered": unanswered, "now": _now_ms()}


def _transaction(listed: Transaction, description: TransactionDescription | AdminError) -> dict[str, Any]:
    described = None if isinstance(description, AdminError) else description  # it may have expired meanwhile
    return {
        "name": listed.transactional_id,
        "state": described.state if described else listed.state,
        "producer": str(described.producer_id if described else listed.producer_id),
        "epoch": described.producer_epoch if described else None,
        "timeout": described.timeout_ms if described else None,
        "start": described.start_ms if described and described.state in UNDECIDED else None,
        "partitions": [partition._asdict() for partition in described.partitions] if described else [],
    }


def lake(client: ApiClient) -> dict[str, Any]:
    """Return how far logs with remote storage are archived (KIP-405, KIP-1005). Raises AdminError."""
    listed = client.topics.list()
    resources = [Resource.topic(item.name) for item in listed[:_LAKE_TOPICS_MAX]]
    tiered = {
        resource.name
        for resource, config in client.configs.describe(resources, names=[_TIERED]).items()
        if not isinstance(config, AdminError) and _TIERED in config and config[_TIERED].value == "true"
    }
    partitions = [
        TopicPartition(item.name, index)
        for item in listed
        if item.name in tiered
        for index in range(item.partitions)
    ]
    shown = partitions[:_LAKE_PARTITIONS_MAX]
    starts, local, archived, ends = (
        client.offsets.at(dict.fromkeys(shown, timestamp))
        for timestamp in (EARLIEST, SpecialTimestamp.EARLIEST_LOCAL, SpecialTimestamp.LATEST_TIERED, LATEST)
    )
    rows = [
        {
            **partition._asdict(),
            "start": _offset_text(starts[partition]),
            "local": _offset_text(local[partition]),
            # Kafka returns the last offset of the remote log; the next one compares with the end.
            "archived": _offset_text(archived[partition], after=1),
            "end": _offset_text(ends[partition]),
        }
        for partition in shown
    ]
    left_out = len(partitions) - len(shown) + max(len(listed) - _LAKE_TOPICS_MAX, 0)
    return {"partitions": rows, "left_out": left_out}


def _offset_text(offset: LogOffset | AdminError, after: int = 0) -> str | None:
    """Return an offset as text, or the one `after` it; None if there is none."""
    return None if isinstance(offset, AdminError) or offset.offset < 0 else str(offset.offset + after)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
