"""The keeper's task that lets go what no topic is to keep (retention.ms, retention.bytes, local.retention.*)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from korvet import logs
from korvet.domain.retention import Kept, Retention, policy_of
from korvet.domain.trimming import Reason, Trimmer
from korvet.server import metrics
from korvet.server.keeper_tasks.context import PARTITIONS_PER_STEP, CheckLease, Context
from korvet.storage.trim_store import TrimStore

_log = logs.Log(__name__)


class EnforceRetention:
    """The task; it remembers from turn to turn how old the first records are, and counts what goes in each."""

    def __init__(self) -> None:
        self._retention: Retention | None = None
        self._trimmed: dict[Reason, int] = {}

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Look at every log with a limit, and let go what is due."""
        if self._retention is None:
            store = TrimStore(context.redis)
            trimmer = Trimmer(context.log_store, store, self._count)
            self._retention = Retention(context.log_store, store, trimmer)
        self._trimmed.clear()
        limited = _limited(context)
        while some := list(islice(limited, PARTITIONS_PER_STEP)):
            for partition, error in self._retention.enforce(some, check_lease):
                _log.warning("log not trimmed", key=partition.stream, reason=error)
        if self._trimmed:
            _log.info("trimmed logs", **{f"by_{reason}": count for reason, count in self._trimmed.items()})

    def _count(self, reason: Reason, records: int) -> None:
        metrics.LOG_TRIMMED_RECORDS.labels(reason).inc(records)
        self._trimmed[reason] = self._trimmed.get(reason, 0) + records


def _limited(context: Context) -> Iterator[Kept]:
    for topic in context.topics.all():
        policy = policy_of(topic.config)
        if policy.limited:
            for partition in topic.partitions:
                yield Kept(partition, policy)
