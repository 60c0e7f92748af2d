"""The keeper's task that compacts the topics whose cleanup.policy says so, the dirtiest log first, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from korvet import logs
from korvet.domain.compaction import Compactor, Plan
from korvet.domain.topic_config import TopicConfig
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.server import metrics
from korvet.server.keeper_tasks.context import PARTITIONS_PER_STEP, CheckLease, Context
from korvet.storage.clean_store import CleanStore, PassOverError
from korvet.storage.log_types import Partition

_log = logs.Log(__name__)


class CompactLogs:
    """The task; it remembers what it has looked up of logs, and what it has complained about."""

    def __init__(self) -> None:
        self._compactor: Compactor | None = None
        self._buffer_bytes = 0
        self._complaints: set[str] = set()

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Compact every log that is due; one that fails waits for the next turn."""
        buffer_bytes = context.settings.log_cleaner_dedupe_buffer_size
        if self._compactor is None or buffer_bytes != self._buffer_bytes:
            self._compactor = Compactor(
                CleanStore(context.redis),
                context.log_store,
                buffer_bytes=buffer_bytes,
                decompressed_bytes_max=context.settings.record_decompressed_max_bytes,
            )
            self._buffer_bytes = buffer_bytes
        complaints: set[str] = set()
        for plan in self._plans(self._compactor, context, check_lease, complaints):
            while self._compact(self._compactor, plan, check_lease, complaints):
                pass
        self._complaints = complaints

    def _plans(
        self, compactor: Compactor, context: Context, check_lease: CheckLease, complaints: set[str]
    ) -> list[Plan]:
        found: list[Plan] = []
        compacted = _compacted(context)
        while some := list(islice(compacted, PARTITIONS_PER_STEP)):
            check_lease()
            plans, errors = compactor.plans(some, check_lease)
            found += plans
            for error in errors:
                self._complain(error, complaints)
        return sorted(found, key=lambda plan: -plan.ratio)

    def _compact(
        self, compactor: Compactor, plan: Plan, check_lease: CheckLease, complaints: set[str]
    ) -> bool:
        """Do a pass; returns whether it had to end early, its buffer being full, and another one is to go on."""
        try:
            # Anew: since the plan was made others were compacted, and the end of this log has moved.
            plans, _ = compactor.plans([(plan.partition, plan.config)], check_lease)
            if not plans:
                return False
            done = compactor.compact(plans[0], check_lease)
        except PassOverError:
            metrics.COMPACTION_PASSES.labels("overtaken").inc()
            return False
        except KafkaError as error:
            metrics.COMPACTION_PASSES.labels("failed").inc()
            if isinstance(error, StorageUnavailableError):
                raise
            self._complain(error, complaints)
            return False
        metrics.COMPACTION_PASSES.labels("changed" if done is None else "done").inc()
        if done is None:
            return False
        metrics.COMPACTION_RECORDS_REMOVED.inc(done.removed)
        metrics.COMPACTION_UNKEYED_REMOVED.inc(done.unkeyed)
        _log.info("compacted log", key=plan.partition.stream, kept=done.kept, removed=done.removed)
        return done.clean_end < plans[0].clean_end

    def _complain(self, error: KafkaError, complaints: set[str]) -> None:
        """Log what is wrong with a log, once for as long as it is."""
        if error.message not in self._complaints | complaints:
            _log.warning("log not compacted", reason=error)
        complaints.add(error.message)


def _compacted(context: Context) -> Iterator[tuple[Partition, TopicConfig]]:
    for topic in context.topics.all():
        if topic.config.compact:
            for partition in topic.partitions:
                yield partition, topic.config
