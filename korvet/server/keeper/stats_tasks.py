"""The keeper's tasks for /metrics: statistics of all logs and groups, and the lag of the archive."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from korvet import logs
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.groups.lag import LagReader
from korvet.groups.listing import GroupList, GroupSummary
from korvet.groups.offsets import OffsetStore
from korvet.log.index import IndexStore
from korvet.log.remote import lag as remote_lag
from korvet.log.stats import LogStatsReader, LogStatsStore
from korvet.server.keeper.context import PARTITIONS_PER_STEP, CheckLease, Context
from korvet.telemetry.snapshot import LakeLagSnapshot, LogStatsSnapshot, publish, valid_until
from korvet.telemetry.stats import GroupLag, GroupStats, LakeLag, LogStats, limited

_log = logs.Log(__name__)


class GroupSnapshots(NamedTuple):
    """The lag of every group in every partition, every group, and how many there are in each state."""

    lags: list[GroupLag]
    groups: list[GroupStats]
    states: Counter[str]


def group_snapshots(context: Context, check_lease: CheckLease) -> GroupSnapshots:
    """Return the statistics of all groups; raises StorageUnavailableError.

    Without a readable list of groups there are none; the statistics of logs do not depend on them.
    """
    offsets = OffsetStore(context.redis, context.keys, mirror=False)
    reader = LagReader(offsets, IndexStore(context.redis), context.topics)
    listed = GroupList(context.redis, context.keys)
    context.topics.refresh()
    found = GroupSnapshots([], [], Counter())
    try:
        for names in listed.names():
            check_lease()
            for summary in listed.summaries(names):
                _add(found, summary)
            lags, errors = reader.read(names, check_lease)
            found.lags.extend(lags)
            for error in errors:
                _log.warning("lag of a group unavailable", reason=error)
    except StorageUnavailableError:
        raise
    except KafkaError as error:
        _log.warning("group statistics unavailable", reason=error)
    return found


def _add(found: GroupSnapshots, summary: GroupSummary | KafkaError) -> None:
    if isinstance(summary, KafkaError):
        _log.warning("statistics of a group unavailable", reason=summary)
        return
    stats = GroupStats(group=summary.group, members=summary.members, generation=summary.generation)
    found.groups.append(stats)
    found.states[summary.state] += 1


class CollectStats:
    """The task; remembers how old the first records of the logs are. Publishes in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reader: LogStatsReader | None = None

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Publish the statistics of every log and group; raises KafkaError, StorageUnavailableError."""
        if self._reader is None:
            self._reader = LogStatsReader(LogStatsStore(context.redis), context.log_store)
        self._reader.begin_round()
        taken: list[LogStats] = []
        for some in context.partitions():
            check_lease()
            stats, errors = self._reader.read(some)
            taken += stats
            for error in errors:
                # A topic that was deleted meanwhile has no statistics.
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    _log.warning("statistics of a log unavailable", reason=error)
        found = group_snapshots(context, check_lease)
        series_max = context.settings.metrics_partitions_max
        snapshot = LogStatsSnapshot(
            valid_until=valid_until(context.settings.log_figures_interval_ms),
            taken_at=time.time(),
            logs=limited(taken, series_max),
            lags=limited(found.lags, series_max),
            groups=limited(found.groups, series_max),
            states=found.states,
        )
        check_lease()
        try:
            publish(self._directory / LogStatsSnapshot.FILE, snapshot)
        except OSError as error:
            _log.warning("log statistics not published", reason=error)


class CollectLakeLag:
    """The task; publishes in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Look at every log with a remote tier, and publish; raises KafkaError, StorageUnavailableError."""
        context.topics.refresh()
        archived = [
            partition
            for topic in context.topics.list_all()
            if topic.config.remote_storage
            for partition in topic.partitions
        ]
        indexes = IndexStore(context.redis)
        taken: list[LakeLag] = []
        for at in range(0, len(archived), PARTITIONS_PER_STEP):
            check_lease()
            some = archived[at : at + PARTITIONS_PER_STEP]
            lags, errors = remote_lag.read(context.log_store, indexes, some, time.time_ns() // 1_000_000)
            taken += lags
            for error in errors:
                # A topic that was deleted meanwhile has no statistics.
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    _log.warning("lag of an archive unavailable", reason=error)
        snapshot = LakeLagSnapshot(
            valid_until=valid_until(context.settings.log_figures_interval_ms),
            lags=limited(taken, context.settings.metrics_partitions_max),
        )
        check_lease()
        try:
            publish(self._directory / LakeLagSnapshot.FILE, snapshot)
        except OSError as error:
            _log.warning("archive lag not published", reason=error)
