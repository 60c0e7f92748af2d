"""The keeper's task that looks after entries of other Redis clients where nobody appends or reads."""

from __future__ import annotations

from korvet import logs
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.server import metrics
from korvet.server.keeper_tasks.context import CheckLease, Context

_log = logs.Log(__name__)


def renumber(context: Context, check_lease: CheckLease) -> None:
    """Take such entries into the log (format `record`), or out of the stream (format `batch`)."""
    for some in context.partitions():
        for partition in some:
            more = True
            while more:
                check_lease()
                try:
                    step = context.log_store.renumber(partition)
                except StorageUnavailableError:
                    raise
                except KafkaError as error:
                    _log.warning("foreign entries not taken in", key=partition.stream, reason=error)
                    break
                metrics.ENTRIES_RENUMBERED.inc(step.moved)
                more = step.more
