"""The keeper's task that takes the figures of all logs and of all groups, for /metrics."""

from __future__ import annotations

import time
from pathlib import Path

from korvet import logs
from korvet.domain.figure_reader import LogFigureReader
from korvet.domain.groups import group_figures, lag_figures
from korvet.domain.log_figures import LogFigures, condensed
from korvet.errors import ErrorCode
from korvet.server import figures_file
from korvet.server.figures_file import Snapshot
from korvet.server.keeper_tasks.context import CheckLease, Context
from korvet.server.keeper_tasks.groups_told import groups_told
from korvet.storage.figures_store import FiguresStore

_log = logs.Log(__name__)

_INTERVALS_VALID = 3
"""Intervals after which figures are too old to be told: one turn may come late, or fail."""


class Figures:
    """The task; remembers how old the first records of the logs are. Publishes in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reader: LogFigureReader | None = None

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Take the figures of every log and group, and publish them; raises KafkaError, StorageUnavailableError."""
        if self._reader is None:
            self._reader = LogFigureReader(FiguresStore(context.redis, context.keys), context.log_store)
        self._reader.begin_round()
        taken: list[LogFigures] = []
        for some in context.partitions():
            check_lease()
            figures, errors = self._reader.read(some)
            taken += figures
            for error in errors:
                # A topic that was deleted meanwhile has no figures, and that is all there is to it.
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    _log.warning("no figures of a log", reason=error)
        told = groups_told(context, check_lease)
        now = time.time()
        valid_s = context.settings.log_figures_interval_ms / 1000 * _INTERVALS_VALID
        series_max = context.settings.metrics_partitions_max
        snapshot = Snapshot(
            now,
            now + valid_s,
            condensed(taken, series_max),
            lag_figures.condensed(told.lags, series_max),
            group_figures.condensed(told.groups, series_max),
            told.states,
        )
        check_lease()
        try:
            figures_file.publish(self._directory, snapshot)
        except OSError as error:
            _log.warning("figures of the logs not published", reason=error)
