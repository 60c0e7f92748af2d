"""The keeper's tasks, and the table of all of them.

The keeper process of one broker holds the keeper lease; its tasks work for all brokers that share a Redis. A task is
`(context, check_lease) -> None`: it does what is due now, in bounded steps, and calls `check_lease` before each. Every
step is safe to be done twice, and beside another keeper's. A task that remembers something between its runs is an
object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from korvet.clock import CLOCK, Clock
from korvet.config.settings import Settings
from korvet.server.keeper.context import CheckLease, Context
from korvet.server.keeper.due import TakenNames
from korvet.server.keeper.group_tasks import EXPIRE_GROUPS_MS, ExpireGroups, expire_offsets
from korvet.server.keeper.log_tasks import (
    FINISH_TOPICS_MS,
    TAKE_IN_DENSE_MS,
    CompactLogs,
    EnforceRetention,
    TakeIn,
    expire_producers,
    finish_creations,
    finish_deletions,
    reindex,
)
from korvet.server.keeper.stats_tasks import CollectLakeLag, CollectStats, collect_pipelines, figures_ms
from korvet.server.keeper.transaction_tasks import FinishTransactions

Run = Callable[[Context, CheckLease], None]


class Task(NamedTuple):
    """A task, its name in logs and metrics, and the ms from the end of a run to the next one, as things are then.

    A task `on_nodes` has runs of its own for each master of a Redis Cluster, on the logs or groups there: one that is
    slow or away delays no others. So `make` is called for each.
    """

    name: str
    make: Callable[[], Run]
    interval_ms: Callable[[Context], int]
    on_nodes: bool = False


def every(settings: Settings, metrics_directory: Path | None = None, *, clock: Clock = CLOCK) -> list[Task]:
    """Return all tasks, in the order of `Keeper.round`.

    Stats are collected only with a `metrics_directory`, and logs compacted only with log.cleaner.enable.
    """
    check_ms = attrgetter("settings.log_retention_check_interval_ms")
    tasks = [
        Task("finish_creations", lambda: finish_creations, lambda _context: FINISH_TOPICS_MS),
        Task("finish_deletions", lambda: finish_deletions, lambda _context: FINISH_TOPICS_MS),
        Task(
            "expire_groups",
            partial(ExpireGroups, TakenNames("group"), clock=clock),
            lambda _context: EXPIRE_GROUPS_MS,
            on_nodes=True,
        ),
        Task(
            "finish_transactions",
            partial(FinishTransactions, TakenNames("transactional id"), clock=clock),
            attrgetter("settings.transaction_abort_timed_out_transaction_cleanup_interval_ms"),
            on_nodes=True,
        ),
        Task(
            "expire_offsets",
            lambda: expire_offsets,
            attrgetter("settings.offsets_retention_check_interval_ms"),
            on_nodes=True,
        ),
        Task("expire_producers", lambda: expire_producers, check_ms, on_nodes=True),
        Task("take_in", partial(TakeIn, quick=False), check_ms, on_nodes=True),
        Task("take_in_dense", partial(TakeIn, quick=True), lambda _context: TAKE_IN_DENSE_MS, on_nodes=True),
        Task("reindex", lambda: reindex, check_ms, on_nodes=True),
        Task("retention", EnforceRetention, check_ms, on_nodes=True),
    ]
    if settings.log_cleaner_enable:
        tasks.append(
            Task("compaction", CompactLogs, attrgetter("settings.log_cleaner_backoff_ms"), on_nodes=True)
        )
    if metrics_directory is not None:
        tasks.append(Task("figures", partial(CollectStats, metrics_directory), figures_ms))
        tasks.append(Task("lake_lag", partial(CollectLakeLag, metrics_directory), figures_ms))
        tasks.append(Task("pipelines", lambda: partial(collect_pipelines, metrics_directory), figures_ms))
    return tasks
