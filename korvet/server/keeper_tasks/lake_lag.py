"""The keeper's task that looks how far topics with a cold tier are archived, for /metrics."""

from __future__ import annotations

import time
from pathlib import Path

from korvet import logs
from korvet.domain import lake_lag
from korvet.domain.lake_lag import LakeLag
from korvet.errors import ErrorCode
from korvet.server import lake_metrics
from korvet.server.keeper_tasks.context import PARTITIONS_PER_STEP, CheckLease, Context
from korvet.server.lake_metrics import Lags
from korvet.storage.index_store import IndexStore

_log = logs.Log(__name__)

_INTERVALS_VALID = 3
"""Intervals after which figures are too old to be told: one turn may come late, or fail."""


class LookAtLake:
    """The task; publishes in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Look at every log with a cold tier, and publish; raises KafkaError, StorageUnavailableError."""
        context.topics.refresh()
        archived = [
            partition
            for topic in context.topics.all()
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
        valid_s = context.settings.log_figures_interval_ms / 1000 * _INTERVALS_VALID
        told = lake_lag.condensed(taken, context.settings.metrics_partitions_max)
        check_lease()
        try:
            lake_metrics.publish(self._directory, Lags(time.time() + valid_s, told))
        except OSError as error:
            _log.warning("lag of the archive not published", reason=error)
