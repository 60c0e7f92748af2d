"""The keeper's tasks for /metrics: statistics of all logs and groups, and the lag of the archive."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from korvet import logs
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.groups.lag import LagReader
from korvet.groups.listing import GroupList
from korvet.groups.offsets import OffsetStore
from korvet.log.index import IndexStore
from korvet.log.stats import LogStatsReader, read_lake_lags
from korvet.server.keeper.context import CheckLease, Context, in_steps
from korvet.telemetry.snapshot import LakeLagSnapshot, LogStatsSnapshot, Snapshot, publish, valid_until
from korvet.telemetry.stats import GroupLag, GroupStats, LakeLag, LogStats, limited

_log = logs.Log(__name__)


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
    lags: list[GroupLag] = []
    groups: list[GroupStats] = []
    states: Counter[str] = Counter()
    try:
        for names in listed.names():
            check_lease()
            for summary in listed.summaries(names):
                if isinstance(summary, KafkaError):
                    _log.warning("statistics of a group unavailable", reason=summary)
                    continue
                stats = GroupStats(
                    group=summary.group, members=summary.members, generation=summary.generation
                )
                groups.append(stats)
                states[summary.state] += 1
            found, errors = reader.read(names, check_lease)
            lags += found
            for error in errors:
                _log.warning("lag of a group unavailable", reason=error)
    except StorageUnavailableError:
        raise
    except KafkaError as error:
        _log.warning("group statistics unavailable", reason=error)
    return lags, groups, states


class CollectStats:
    """The task; remembers how old the first records of the logs are. Publishes in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reader: LogStatsReader | None = None

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Publish the statistics of every log and group; raises KafkaError, StorageUnavailableError."""
        if self._reader is None:
            self._reader = LogStatsReader(context.redis, context.log_store)
        self._reader.begin_round()
        taken: list[LogStats] = []
        for some in context.partitions():
            check_lease()
            stats, errors = self._reader.read(some)
            taken += stats
            _warn("statistics of a log unavailable", errors)
        lags, groups, states = _read_groups(context, check_lease)
        series_max = context.settings.metrics_partitions_max
        snapshot = LogStatsSnapshot(
            valid_until=valid_until(context.settings.log_figures_interval_ms),
            taken_at=time.time(),
            logs=limited(taken, series_max),
            lags=limited(lags, series_max),
            groups=limited(groups, series_max),
            states=states,
        )
        check_lease()
        _publish(self._directory, snapshot, "log statistics not published")


def collect_lake_lag(directory: Path, context: Context, check_lease: CheckLease) -> None:
    """Look at every log with a remote tier, and publish in `directory`; raises KafkaError, StorageUnavailableError."""
    context.topics.refresh()
    archived = (topic for topic in context.topics.list_all() if topic.config.remote_storage)
    indexes = IndexStore(context.redis)
    taken: list[LakeLag] = []
    for some in in_steps(partition for topic in archived for partition in topic.partitions):
        check_lease()
        lags, errors = read_lake_lags(context.log_store, indexes, some, time.time_ns() // 1_000_000)
        taken += lags
        _warn("lag of an archive unavailable", errors)
    snapshot = LakeLagSnapshot(
        valid_until=valid_until(context.settings.log_figures_interval_ms),
        lags=limited(taken, context.settings.metrics_partitions_max),
    )
    check_lease()
    _publish(directory, snapshot, "archive lag not published")


def _warn(event: str, errors: Iterable[KafkaError]) -> None:
    for error in errors:
        # A topic that was deleted meanwhile has no statistics.
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            _log.warning(event, reason=error)


def _publish(directory: Path, snapshot: Snapshot, failed: str) -> None:
    try:
        publish(directory / snapshot.FILE, snapshot)
    except OSError as error:
        _log.warning(failed, reason=error)
