"""The keeper's tasks for /metrics: statistics of all logs and groups, the lag of the archive, and pipelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import gevent

from korvet import logs
from korvet.cluster.pipelines import PipelineStatus, PipelineStore
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.groups.lag import LagReader, lags_in_steps
from korvet.groups.listing import GroupList
from korvet.groups.offsets import OffsetStore
from korvet.groups.types import SHARE
from korvet.log.index import IndexStore, Lag
from korvet.log.stats import LakeLagReader, LogStatsReader
from korvet.log.types import LogPosition
from korvet.server.keeper.context import CheckLease, Context, LeaseLostError, in_steps
from korvet.share.lag import ShareLagReader
from korvet.share.store import SharePartitions
from korvet.telemetry.snapshot import (
    LakeLagSnapshot,
    LogStatsSnapshot,
    PipelinesSnapshot,
    Snapshot,
    publish,
    valid_until,
)
from korvet.telemetry.stats import (
    GroupLag,
    GroupStats,
    LakeLag,
    LogStats,
    PipelineLoss,
    PipelineStats,
    limited,
)
from korvet.topics.registry import id_text
from korvet.transactions.store import TransactionStore
from korvet.transactions.types import STATES, UNDECIDED

_log = logs.Log(__name__)

T = TypeVar("T")

FIGURES_MS_PER_LOG = 10
"""Pause between two collections for each log, whose statistics cost keeper and Redis some 10 us in all."""

FIGURES_MS_MAX = 300_000
"""The longest pause for the sake of their number: alerts wait for ten minutes."""


def figures_ms(context: Context) -> int:
    """Return the pause between two collections: `log.figures.interval.ms`, and longer with thousands of partitions."""
    logs = sum(len(topic.partitions) for topic in context.topics.list_cached())
    return max(context.settings.log_figures_interval_ms, min(logs * FIGURES_MS_PER_LOG, FIGURES_MS_MAX))


def _read_groups(
    context: Context, check_lease: CheckLease
) -> tuple[list[GroupLag], list[GroupStats], Counter[str]]:
    """Return the lag of every group in every partition, every group, and how many there are in each state.

    Without a readable list of groups there are none; the statistics of logs do not depend on them.
    """
    offsets = OffsetStore(context.redis, context.keys, mirror=False)
    reader = LagReader(offsets, IndexStore(context.redis), context.topics)
    listed = GroupList(context.redis, context.keys)
    context.topics.refresh()
    lags: list[GroupLag | KafkaError] = []
    groups: list[GroupStats] = []
    states: Counter[str] = Counter()
    shares: set[str] = set()
    errors: list[KafkaError] = []
    try:
        for names in listed.names():
            check_lease()
            for summary in listed.summaries(names):
                if isinstance(summary, KafkaError):
                    errors.append(summary)
                    continue
                stats = GroupStats(
                    group=summary.group, members=summary.members, generation=summary.generation
                )
                groups.append(stats)
                states[summary.state] += 1
                if summary.kind == SHARE:
                    shares.add(summary.group)
            for outcomes in reader.read(names):
                check_lease()
                lags += outcomes
        for outcomes in _share_lags(context, shares) if shares else ():
            check_lease()
            lags += outcomes
    except StorageUnavailableError:
        raise
    except KafkaError as error:
        _log.warning("group statistics unavailable", reason=error)
    _warn_of_groups([*errors, *(lag for lag in lags if isinstance(lag, KafkaError))])
    return [lag for lag in lags if isinstance(lag, GroupLag)], groups, states


def _share_lags(context: Context, groups: set[str]) -> Iterator[list[GroupLag | KafkaError]]:
    reader = ShareLagReader(SharePartitions(context.redis), IndexStore(context.redis))
    partitions = [partition for topic in context.topics.list_cached() for partition in topic.partitions]
    return reader.read(groups, partitions)


def _read_transactions(context: Context, check_lease: CheckLease) -> tuple[Counter[str], int | None]:
    """Return how many transactional ids there are in each state, and the age (ms) of the oldest open transaction."""
    store = TransactionStore(context.redis, context.keys)
    states = Counter(dict.fromkeys(STATES, 0))
    oldest_ms: int | None = None
    try:
        for names in store.names():
            check_lease()
            for result in store.describe(names):
                if isinstance(result, KafkaError):
                    _log.warning("statistics of a transaction unavailable", reason=result)
                elif result is not None:
                    states[result.state] += 1
                    if result.state in UNDECIDED:
                        oldest_ms = min(oldest_ms or result.started_ms, result.started_ms)
        age_ms = None if oldest_ms is None else max(0, store.now_ms() - oldest_ms)
    except StorageUnavailableError:
        raise
    except KafkaError as error:
        _log.warning("transaction statistics unavailable", reason=error)
        return states, None
    return states, age_ms


class CollectStats:
    """The task; remembers how old the first records of the logs are. Publishes in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reader: LogStatsReader | None = None

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Publish the statistics of every log and group; raises KafkaError, StorageUnavailableError."""
        reader = self._reader = self._reader or LogStatsReader(context.redis, context.log_store)
        reader.begin_round()

        def read(of_node: Context) -> Iterator[LogStats]:
            for chunk in of_node.partitions():
                check_lease()
                stats, errors = reader.read(chunk)
                _warn("statistics of a log unavailable", errors)
                yield from stats

        taken = _of_nodes(context, read)
        lags, groups, states = _read_groups(context, check_lease)
        transactions, transaction_age_ms = _read_transactions(context, check_lease)
        series_max = context.settings.metrics_partitions_max
        snapshot = LogStatsSnapshot(
            valid_until=valid_until(figures_ms(context)),
            taken_at=context.clock.time(),
            logs=limited(taken, series_max),
            lags=limited(lags, series_max),
            groups=limited(groups, series_max),
            states=states,
            transactions=transactions,
            transaction_age_ms=transaction_age_ms,
        )
        check_lease()
        _publish(self._directory, snapshot, "log statistics not published")


class CollectLakeLag:
    """The task; remembers since when records wait to be archived. Publishes in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reader: LakeLagReader | None = None

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Look at every log with a remote tier; raises KafkaError, StorageUnavailableError."""
        context.topics.refresh()
        reader = self._reader = self._reader or LakeLagReader(context.log_store, IndexStore(context.redis))
        reader.begin_round()

        def read(of_node: Context) -> Iterator[LakeLag]:
            topics = (topic for topic in of_node.topics.list_all() if topic.config.remote_copy)
            archived = (partition for topic in topics for partition in of_node.partitions_of(topic))
            for partitions in in_steps(archived):
                check_lease()
                lags, errors = reader.read(partitions, int(context.clock.time() * 1000))
                _warn("lag of an archive unavailable", errors)
                yield from lags

        taken = _of_nodes(context, read)
        snapshot = LakeLagSnapshot(
            valid_until=valid_until(figures_ms(context)),
            lags=limited(taken, context.settings.metrics_partitions_max),
        )
        check_lease()
        _publish(self._directory, snapshot, "archive lag not published")


def collect_pipelines(directory: Path, context: Context, check_lease: CheckLease) -> None:
    """Publish in `directory` what pipelines report, and their lag; raises KafkaError, StorageUnavailableError."""
    context.topics.refresh()
    index = IndexStore(context.redis)
    taken, losses = [], []
    for status in PipelineStore(context.redis, context.keys).read():
        losses += [
            PipelineLoss(pipeline=status.name, topic=topic, partition=partition, offsets=count)
            for (topic, partition), count in status.lost_offsets().items()
        ]
        lags: list[Lag] = []
        for outcomes in lags_in_steps(index, _positions(context, status)):
            check_lease()
            for _, outcome in outcomes:
                if isinstance(outcome, Lag):
                    lags.append(outcome)
                else:
                    _log.warning("lag of a pipeline unavailable", pipeline=status.name, reason=outcome)
        batch = status.last_batch
        stats = PipelineStats(
            pipeline=status.name,
            state=status.state,
            records=status.records,
            dead_letters=status.dead_letters,
            unread_fields=sum(status.unread_fields.values()),
            unmet=sum(status.unmet.values()),
            restarts=status.restarts,
            lag_records=sum(lag.records for lag in lags),
            # A producer's clock may be ahead of Redis'.
            lag_ms=max((0, *(lag.age_ms for lag in lags))),
            batch_ended_ms=batch.ended_ms,
            batch_ms=batch.duration_ms,
        )
        taken.append(stats)
    snapshot = PipelinesSnapshot(
        valid_until=valid_until(figures_ms(context)),
        pipelines=limited(taken, context.settings.metrics_partitions_max),
        losses=limited(losses, context.settings.metrics_partitions_max),
    )
    check_lease()
    _publish(directory, snapshot, "status of pipelines not published")


def _positions(context: Context, status: PipelineStatus) -> list[LogPosition]:
    """Return where a pipeline is in the topics that it has read; partitions that it has not seen yet count whole."""
    result = []
    for name, position in status.positions().items():
        topic = context.topics.get_cached(name)
        if topic is not None and id_text(topic.id) == position.id:
            result += [
                LogPosition(partition, position.offsets.get(partition.index, 0))
                for partition in topic.partitions
            ]
    return result


def _of_nodes(context: Context, read: Callable[[Context], Iterator[T]]) -> list[T]:
    """Return the results of `read` for the logs of each node, read at once; for a node that fails, the ones until then.

    Of the one Redis it raises StorageUnavailableError.
    """
    nodes = context.nodes()
    if len(nodes) == 1:
        return list(read(context))
    taken: list[T] = []

    def take(node: str) -> Exception | None:
        try:
            for item in read(context.of_node(node)):
                taken.append(item)  # noqa: PERF402 - what came before an error counts
        except StorageUnavailableError as error:
            _log.warning("statistics of a node unavailable", node=node, reason=error)
        except (KafkaError, LeaseLostError) as error:
            return error
        return None

    reading = [context.clock.spawn(take, node) for node in nodes]
    try:
        gevent.joinall(reading)
    finally:
        gevent.killall(reading)
    for failure in filter(None, (item.value for item in reading)):
        raise failure
    return taken


def _warn(event: str, errors: Iterable[KafkaError]) -> None:
    for error in errors:
        if isinstance(error, StorageUnavailableError):
            raise error
        # A topic that was deleted meanwhile has no statistics.
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            _log.warning(event, reason=error)


def _warn_of_groups(errors: Iterable[KafkaError]) -> None:
    """Log the errors; of nodes that are away the last one stands for all."""
    away: StorageUnavailableError | None = None
    for error in errors:
        if isinstance(error, StorageUnavailableError):
            away = error
        else:
            _log.warning("statistics of a group unavailable", reason=error)
    if away is not None:
        _log.warning("statistics of the groups of a node unavailable", reason=away)


def _publish(directory: Path, snapshot: Snapshot, failed: str) -> None:
    try:
        publish(directory / snapshot.FILE, snapshot)
    except OSError as error:
        _log.warning(failed, reason=error)
