"""The keeper's task that keeps the sparse indexes of logs right."""

from __future__ import annotations

from korvet import logs
from korvet.domain.index_upkeep import IndexMender
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.server.keeper_tasks.context import CheckLease, Context
from korvet.storage.index_upkeep import IndexUpkeep

_log = logs.Log(__name__)


def reindex(context: Context, check_lease: CheckLease) -> None:
    """Make indexes anew where rows are missing, and forget timestamps of records that have left the log."""
    mender = IndexMender(IndexUpkeep(context.redis))
    for some in context.partitions():
        for partition, outcome in mender.mend(some, check_lease):
            if isinstance(outcome, StorageUnavailableError):
                raise outcome
            if isinstance(outcome, KafkaError):
                _log.warning("index not looked after", key=partition.index_key, reason=outcome)
            elif outcome.made:
                _log.info("index made anew", key=partition.index_key, rows=outcome.made)
