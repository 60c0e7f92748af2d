"""The keeper's tasks on logs: compaction, retention, index repair, external entries, producers and deleted topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress

from korvet import logs
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.log.compaction import CompactionPlan, Compactor
from korvet.log.compaction_store import CompactionStore, CompactionSupersededError
from korvet.log.index_repair import IndexRepair
from korvet.log.producers import ProducerRows
from korvet.log.retention import RetainedLog, Retention, policy_of
from korvet.log.trim import Reason, Trimmer, TrimStore
from korvet.log.types import LogPosition
from korvet.server.keeper.context import CheckLease, Context, in_steps
from korvet.telemetry import metrics
from korvet.topics.config import TopicConfig
from korvet.topics.entry_ids import DENSE
from korvet.topics.types import Partition

_log = logs.Log(__name__)


class CompactLogs:
    """Compacts the topics whose cleanup.policy says so, the dirtiest log first; warns once of each error."""

    def __init__(self) -> None:
        self._compactor: Compactor | None = None
        self._buffer_bytes = 0
        self._warned: set[str] = set()

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        # As Kafka's cleaner threads share it, those of the nodes do.
        buffer_bytes = context.settings.log_cleaner_dedupe_buffer_size // len(context.nodes())
        if self._compactor is None or buffer_bytes != self._buffer_bytes:
            self._compactor = Compactor(
                CompactionStore(context.redis),
                context.log_store,
                buffer_bytes=buffer_bytes,
                decompressed_bytes_max=context.settings.record_decompressed_max_bytes,
            )
            self._buffer_bytes = buffer_bytes
        warnings: set[str] = set()
        for plan in self._plans(self._compactor, context, check_lease, warnings):
            while self._compact(self._compactor, plan, check_lease, warnings):
                pass
        self._warned = warnings

    def _plans(
        self, compactor: Compactor, context: Context, check_lease: CheckLease, warnings: set[str]
    ) -> list[CompactionPlan]:
        result: list[CompactionPlan] = []
        for chunk in in_steps(_compacted(context)):
            check_lease()
            plans, errors = compactor.plans(chunk, check_lease)
            result += plans
            for error in errors:
                if isinstance(error, StorageUnavailableError):
                    raise error
                self._warn(error, warnings)
        return sorted(result, key=lambda plan: -plan.ratio)

    def _compact(
        self, compactor: Compactor, plan: CompactionPlan, check_lease: CheckLease, warnings: set[str]
    ) -> bool:
        """Do a pass; returns whether it had to end early, its buffer being full, and another one is to go on."""
        try:
            # Plan again: since then other logs were compacted, and the end of this log has moved.
            plans, _ = compactor.plans([(plan.partition, plan.config)], check_lease)
            if not plans:
                return False
            done = compactor.compact(plans[0], check_lease)
        except CompactionSupersededError:
            metrics.COMPACTION_PASSES.labels("overtaken").inc()
            return False
        except KafkaError as error:
            metrics.COMPACTION_PASSES.labels("failed").inc()
            if isinstance(error, StorageUnavailableError):
                raise
            self._warn(error, warnings)
            return False
        metrics.COMPACTION_PASSES.labels("changed" if done is None else "done").inc()
        if done is None:
            return False
        metrics.COMPACTION_RECORDS_REMOVED.inc(done.removed)
        metrics.COMPACTION_UNKEYED_REMOVED.inc(done.unkeyed)
        _log.info("compacted log", key=plan.partition.stream, kept=done.kept, removed=done.removed)
        return done.compacted_end < plans[0].compacted_end

    def _warn(self, error: KafkaError, warnings: set[str]) -> None:
        """Log what is wrong with a log, once as long as it stays wrong."""
        if error.message not in self._warned | warnings:
            _log.warning("log not compacted", reason=error)
        warnings.add(error.message)


def _compacted(context: Context) -> Iterator[tuple[Partition, TopicConfig]]:
    for topic in context.topics.list_all():
        if topic.config.compact:
            yield from ((partition, topic.config) for partition in context.partitions_of(topic))


class EnforceRetention:
    """Trims logs (retention.ms, retention.bytes, local.retention.*); remembers how old the first records are."""

    def __init__(self) -> None:
        self._retention: Retention | None = None
        self._trimmed: dict[Reason, int] = {}

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        if self._retention is None:
            store = TrimStore(context.redis)
            trimmer = Trimmer(context.log_store, store, self._count)
            self._retention = Retention(context.log_store, store, trimmer)
        self._trimmed.clear()
        for chunk in in_steps(_limited(context)):
            for partition, error in self._retention.enforce(chunk, check_lease):
                _log.warning("log not trimmed", key=partition.stream, reason=error)
        if self._trimmed:
            _log.info("trimmed logs", **{f"by_{reason}": count for reason, count in self._trimmed.items()})

    def _count(self, reason: Reason, records: int) -> None:
        metrics.LOG_TRIMMED_RECORDS.labels(reason).inc(records)
        self._trimmed[reason] = self._trimmed.get(reason, 0) + records


def _limited(context: Context) -> Iterator[RetainedLog]:
    for topic in context.topics.list_all():
        policy = policy_of(topic.config)
        if policy.limited:
            yield from (RetainedLog(partition, policy) for partition in context.partitions_of(topic))


def reindex(context: Context, check_lease: CheckLease) -> None:
    """Rebuild indexes whose rows are missing, and forget timestamps of records that have left the log."""
    repair = IndexRepair(context.redis)
    for chunk in context.partitions():
        for partition, outcome in repair.repair(chunk, check_lease):
            if isinstance(outcome, StorageUnavailableError):
                raise outcome
            if isinstance(outcome, KafkaError):
                _log.warning("index repair failed", key=partition.index_key, reason=outcome)
            elif outcome.rebuilt:
                _log.info("index rebuilt", key=partition.index_key, rows=outcome.rebuilt)


class TakeIn:
    """Takes external entries into logs (format `record`), or removes them (format `batch`), if nothing else does.

    `quick`: only into logs of records with dense ids that have grown since the last look, else into all logs. Warns
    once of each error.
    """

    def __init__(self, *, quick: bool) -> None:
        self._quick = quick
        self._ends: dict[str, int] = {}
        self._warned: set[str] = set()

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        warnings: set[str] = set()
        ends: dict[str, int] = {}
        topics = (topic for topic in context.topics.list_all() if self._concerns(topic.config))
        every = (partition for topic in topics for partition in context.partitions_of(topic))
        for partitions in in_steps(every):
            check_lease()
            left = self._grown(context, partitions) if self._quick else partitions
            ends |= {partition.stream: self._ends.get(partition.stream, 0) for partition in partitions}
            while left:
                left = self._step(context, left, ends, warnings)
                check_lease()
        self._ends, self._warned = ends, warnings

    def _concerns(self, config: TopicConfig) -> bool:
        return not self._quick or (config.format == "record" and config.id_bits == DENSE)

    def _grown(self, context: Context, partitions: Sequence[Partition]) -> Sequence[Partition]:
        positions = [LogPosition(partition, self._ends.get(partition.stream, 0)) for partition in partitions]
        return list(compress(partitions, context.log_store.have_grown(positions)))

    def _step(
        self, context: Context, partitions: Sequence[Partition], ends: dict[str, int], warnings: set[str]
    ) -> list[Partition]:
        unfinished = []
        for partition, step in zip(partitions, context.log_store.external.steps(partitions), strict=True):
            if isinstance(step, StorageUnavailableError):
                raise step
            if isinstance(step, KafkaError):
                warnings.add(f"{partition.stream}: {step}")
                if f"{partition.stream}: {step}" not in self._warned:
                    _log.warning("external entries not renumbered", key=partition.stream, reason=step)
                continue
            ends[partition.stream] = step.high_watermark
            if step.more:
                unfinished.append(partition)
        return unfinished


def expire_producers(context: Context, check_lease: CheckLease) -> None:
    """Expire producers that were silent for producer.id.expiration.ms (Kafka's broker setting)."""
    silence_ms = context.settings.producer_id_expiration_ms
    expired = 0
    for chunk in context.partitions():
        unfinished = [(partition, "0") for partition in chunk]
        while unfinished:
            check_lease()
            steps = ProducerRows(context.redis).expire(unfinished, silence_ms)
            following = []
            for (partition, _), step in zip(unfinished, steps, strict=True):
                if isinstance(step, StorageUnavailableError):
                    raise step
                if isinstance(step, KafkaError):
                    _log.warning("producers not expired", key=partition.state, reason=step)
                    continue
                cursor, removed = step
                expired += removed
                if cursor != "0":
                    following.append((partition, cursor))
            unfinished = following
    if expired:
        metrics.PRODUCERS_EXPIRED.inc(expired)
        _log.info("expired inactive producers", count=expired)


TAKE_IN_DENSE_MS = 5000
"""How long Redis may refuse an XADD of `0-*` to a log with dense ids that nobody uses, after one of another id."""

FINISH_TOPICS_MS = 5000
"""How long a topic stays unfinished if the broker that created it (until its claim ended) or deleted it is gone."""


def finish_creations(context: Context, check_lease: CheckLease) -> None:
    """Create what is missing of every topic whose creation was interrupted; the others go on if one cannot."""
    check_lease()
    away: StorageUnavailableError | None = None
    for row in context.topics.list_unfinished("creating"):
        check_lease()
        try:
            if context.topics.finish_creation(row):
                _log.info("completed the creation of a topic", topic=row.name, id=row.id)
        except StorageUnavailableError as error:
            away = error
        except KafkaError as error:
            _log.warning("cannot complete the creation of a topic", topic=row.name, reason=error)
    if away is not None:
        raise away


def finish_deletions(context: Context, check_lease: CheckLease) -> None:
    """Clear away what is left of every deleted topic; it does no harm if another broker does so too."""
    check_lease()
    away: StorageUnavailableError | None = None
    for deleted in context.topics.list_unfinished("deleting"):
        try:
            for _ in context.topics.delete_in_steps(deleted):
                check_lease()
        except StorageUnavailableError as error:
            away = error  # a node of a Redis Cluster, perhaps: others may have all of the next topic
        except KafkaError as error:
            _log.warning("cannot remove a deleted topic", topic=deleted.name, reason=error)
        else:
            _log.info("removed a deleted topic", topic=deleted.name, id=deleted.id)
    if away is not None:
        raise away
