"""What the acting keeper does, one file per task, and the table of all of them.

A task is `(context, check_lease) -> None`: it does what is due now, in bounded steps, and calls `check_lease` before
each. Every step is safe to be done twice, and beside another keeper's. A task that remembers something between its
turns is an object, made anew for each keeper.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from korvet.config import Settings
from korvet.server.keeper_tasks.compaction import CompactLogs
from korvet.server.keeper_tasks.context import CheckLease, Context
from korvet.server.keeper_tasks.expire_groups import INTERVAL_MS as EXPIRE_GROUPS_MS
from korvet.server.keeper_tasks.expire_groups import ExpireGroups
from korvet.server.keeper_tasks.expire_offsets import expire_offsets
from korvet.server.keeper_tasks.expire_producers import expire_producers
from korvet.server.keeper_tasks.figures import Figures
from korvet.server.keeper_tasks.finish_deletions import INTERVAL_MS as FINISH_DELETIONS_MS
from korvet.server.keeper_tasks.finish_deletions import finish_deletions
from korvet.server.keeper_tasks.lake_lag import LookAtLake
from korvet.server.keeper_tasks.reindex import reindex
from korvet.server.keeper_tasks.renumber import renumber
from korvet.server.keeper_tasks.retention import EnforceRetention


class Task(NamedTuple):
    """A task, its name in logs and metrics, and the ms from the end of a turn to the next one, by the settings then."""

    name: str
    run: Callable[[Context, CheckLease], None]
    interval_ms: Callable[[Settings], int]


def _always(interval_ms: int) -> Callable[[Settings], int]:
    return lambda _settings: interval_ms


def every(settings: Settings, figures_directory: Path | None = None) -> tuple[Task, ...]:
    """Return all tasks, in the order in which a round takes them.

    Figures are taken only where they have a directory, and logs compacted only with log.cleaner.enable.
    """
    check_ms = attrgetter("log_retention_check_interval_ms")
    offsets_ms = attrgetter("offsets_retention_check_interval_ms")
    tasks: tuple[Task, ...] = (
        Task("finish_deletions", finish_deletions, _always(FINISH_DELETIONS_MS)),
        Task("expire_groups", ExpireGroups(), _always(EXPIRE_GROUPS_MS)),
        Task("expire_offsets", expire_offsets, offsets_ms),
        Task("expire_producers", expire_producers, check_ms),
        Task("renumber", renumber, check_ms),
        Task("reindex", reindex, check_ms),
        Task("retention", EnforceRetention(), check_ms),
    )
    if settings.log_cleaner_enable:
        tasks = (*tasks, Task("compaction", CompactLogs(), attrgetter("log_cleaner_backoff_ms")))
    if figures_directory is None:
        return tasks
    figures_ms = attrgetter("log_figures_interval_ms")
    return (
        *tasks,
        Task("figures", Figures(figures_directory), figures_ms),
        Task("lake_lag", LookAtLake(figures_directory), figures_ms),
    )
