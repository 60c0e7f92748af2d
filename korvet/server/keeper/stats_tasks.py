"""The keeper's task that takes the figures of all logs and of all groups, for /metrics.

What the keeper tells of consumer groups in /metrics: who is in them, and how far each is behind.

The keeper's task that looks how far topics with a cold tier are archived, for /metrics.
"""

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
from korvet.log.remote import lag as lake_lag
from korvet.log.stats import LogStatsReader, LogStatsStore
from korvet.server.keeper.context import PARTITIONS_PER_STEP, CheckLease, Context
from korvet.telemetry.snapshot import LakeLagSnapshot, LogSnapshot, publish, valid_until
from korvet.telemetry.stats import GroupLag, GroupStats, LakeLag, LogStats, limited

_log = logs.Log(__name__)


class GroupSnapshots(NamedTuple):
    """The lag of every group in every partition, every group, and how many there are in each state."""

    lags: list[GroupLag]
    groups: list[GroupStats]
    states: Counter[str]


def group_snapshots(context: Context, check_lease: CheckLease) -> GroupSnapshots:
    """Return the figures of all groups; raises StorageUnavailableError.

    Where the list of groups cannot be read there are none, which keeps nobody from the figures of logs.
    """
    offsets = OffsetStore(context.redis, context.keys, mirror=False)
    reader = LagReader(offsets, IndexStore(context.redis), context.topics)
    listed = GroupList(context.redis, context.keys)
    context.topics.refresh()
    told = GroupSnapshots([], [], Counter())
    try:
        for names in listed.names():
            check_lease()
            for look in listed.summaries(names):
                _add(told, look)
            lags, errors = reader.read(names, check_lease)
            told.lags.extend(lags)
            for error in errors:
                _log.warning("no lag of a group", reason=error)
    except StorageUnavailableError:
        raise
    except KafkaError as error:
        _log.warning("no figures of groups", reason=error)
    return told


def _add(told: GroupSnapshots, look: GroupSummary | KafkaError) -> None:
    if isinstance(look, KafkaError):
        _log.warning("no figures of a group", reason=look)
        return
    figures = GroupStats(group=look.group, members=look.members, generation=look.generation)
    told.groups.append(figures)
    told.states[look.state] += 1


class CollectStats:
    """The task; remembers how old the first records of the logs are. Publishes in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reader: LogStatsReader | None = None

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Take the figures of every log and group, and publish them; raises KafkaError, StorageUnavailableError."""
        if self._reader is None:
            self._reader = LogStatsReader(LogStatsStore(context.redis), context.log_store)
        self._reader.begin_round()
        taken: list[LogStats] = []
        for some in context.partitions():
            check_lease()
            figures, errors = self._reader.read(some)
            taken += figures
            for error in errors:
                # A topic that was deleted meanwhile has no figures, and that is all there is to it.
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    _log.warning("no figures of a log", reason=error)
        told = group_snapshots(context, check_lease)
        series_max = context.settings.metrics_partitions_max
        snapshot = LogSnapshot(
            valid_until=valid_until(context.settings.log_figures_interval_ms),
            taken_at=time.time(),
            logs=limited(taken, series_max),
            lags=limited(told.lags, series_max),
            groups=limited(told.groups, series_max),
            states=told.states,
        )
        check_lease()
        try:
            publish(self._directory / LogSnapshot.FILE, snapshot)
        except OSError as error:
            _log.warning("figures of the logs not published", reason=error)


class CollectLakeLag:
    """The task; publishes in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Look at every log with a cold tier, and publish; raises KafkaError, StorageUnavailableError."""
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
            lags, errors = lake_lag.read(context.log_store, indexes, some, time.time_ns() // 1_000_000)
            taken += lags
            for error in errors:
                # A topic that was deleted meanwhile has no figures, and that is all there is to it.
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    _log.warning("no lag of an archive", reason=error)
        snapshot = LakeLagSnapshot(
            valid_until=valid_until(context.settings.log_figures_interval_ms),
            lags=limited(taken, context.settings.metrics_partitions_max),
        )
        check_lease()
        try:
            publish(self._directory / LakeLagSnapshot.FILE, snapshot)
        except OSError as error:
            _log.warning("lag of the archive not published", reason=error)
