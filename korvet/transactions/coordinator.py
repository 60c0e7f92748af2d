"""The transaction coordinator (KIP-98): which any worker of any broker is, for its state is in Redis.

    Empty             has a producer id and an epoch, and no transaction
    Ongoing           partitions and groups were added to its transaction
    PrepareCommit     it is decided that the transaction commits (PrepareAbort: aborts), and its markers are written
    CompleteCommit    all markers are written (CompleteAbort)

    any               -> Empty            InitProducerId, which aborts an open transaction first
    Empty, Complete*  -> Ongoing          the first partition or group is added
    Ongoing           -> Prepare*         EndTxn, InitProducerId or, past its timeout, the keeper
    Prepare*          -> Complete*        all markers are written
    Empty, Complete*  -> CompleteAbort    an abort without a transaction, of producers with an epoch for each (KIP-890)

A transition is one script (lua/transaction). What lies between two of them may be done twice, late, or by another
process: who finds a transaction that is prepared writes its markers and completes it, and a marker is recognised by the
transaction's number. A client is answered when its transaction is complete. If its worker dies before, the next request
of the producer, to whichever worker, or else the keeper completes the transaction.

With replicas of Redis (setting `replicas`) each transition is confirmed by them before what follows it is done: no
marker is written for a decision that a failover can take back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.groups.offsets import CommittedOffsets, ProducerTransaction
from korvet.groups.schedule import NOTHING_DUE
from korvet.log.appends import Marker
from korvet.log.markers import MarkerWriter
from korvet.log.producers import new_producer_id
from korvet.log.replication import Replicas
from korvet.logs import Log
from korvet.telemetry import metrics
from korvet.topics.registry import Topic, TopicRegistry, id_text
from korvet.topics.types import Partition, PartitionRef, TopicRef
from korvet.transactions.store import TransactionStore
from korvet.transactions.types import (
    NO_PRODUCER,
    AddedPartition,
    ListedTransaction,
    PreparedTransaction,
    ProducerIdentity,
    StoredTransaction,
    TransactionFilter,
)

_log = Log(__name__)

_TRIES_MAX = 3
"""How often a request completes a transaction that is in its way: its own, and one that another producer has begun."""

_OVER = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Why a partition needs no marker any more: a later epoch has fenced the producer there, or the topic was deleted."""

T = TypeVar("T")


class TransactionCoordinator:
    """The coordinator as one process is it. Every method raises StorageUnavailableError if Redis is away."""

    def __init__(
        self,
        store: TransactionStore,
        topics: TopicRegistry,
        markers: MarkerWriter,
        offsets: CommittedOffsets,
        replicas: Replicas,
        settings: Settings,
    ) -> None:
        self._store = store
        self._topics = topics
        self._markers = markers
        self._offsets = offsets
        self._replicas = replicas
        self._timeout_ms_max = settings.transaction_max_timeout_ms
        self._expiration_ms = settings.transactional_id_expiration_ms

    def flush(self) -> None:
        self._store.schedule.flush()

    def init(
        self, transactional_id: str, timeout_ms: int, asked: ProducerIdentity = NO_PRODUCER
    ) -> ProducerIdentity:
        """Return the identity of a producer that begins, or goes on after an error with the one it had (KIP-360).

        An open transaction is aborted before. Raises KafkaError PRODUCER_FENCED, INVALID_TRANSACTION_TIMEOUT,
        INVALID_REQUEST, CONCURRENT_TRANSACTIONS (it cannot be aborted yet).
        """
        _check_id(transactional_id)
        if not 0 < timeout_ms <= self._timeout_ms_max:
            message = f"the transaction timeout must be from 1 to {self._timeout_ms_max} ms"
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT, message)
        return self._once_complete(
            transactional_id,
            lambda: self._store.init(transactional_id, timeout_ms, asked, new_producer_id()),
        )

    def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[Partition] = (),
        groups: Sequence[str] = (),
        *,
        verify_only: bool = False,
    ) -> int:
        """Add partitions, and groups of which offsets are to be committed, to the producer's transaction, all or none.

        Returns its number. Nothing to add opens it. `verify_only` adds nothing, and raises KafkaError INVALID_TXN_STATE
        if something is not in it. Raises KafkaError PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING, INVALID_REQUEST,
        CONCURRENT_TRANSACTIONS (the one before cannot be completed yet).
        """
        _check_id(transactional_id)
        return self._once_complete(
            transactional_id,
            partial(self._store.add, transactional_id, producer, partitions, groups, verify_only=verify_only),
        )

    def end(
        self, transactional_id: str, producer: ProducerIdentity, *, commit: bool, bumps_epoch: bool
    ) -> ProducerIdentity:
        """End the producer's transaction, and return what it goes on with: with `bumps_epoch` another epoch (KIP-890).

        What is sent again is answered as the first time. If markers cannot be written now, the producer's next request
        or the keeper writes them. Raises KafkaError INVALID_TXN_STATE, PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING,
        INVALID_REQUEST, CONCURRENT_TRANSACTIONS (its next producer id is not valid yet).
        """
        _check_id(transactional_id)
        end = partial(self._store.end, transactional_id, producer, commit=commit, bumps_epoch=bumps_epoch)
        outcome = self._confirmed(partial(end, new_producer_id()))
        if isinstance(outcome, PreparedTransaction):
            try:
                self._complete(transactional_id, outcome, "client")
            except KafkaError:
                # It is decided, as after Kafka's answer; only a producer id that is not stored yet must be waited for.
                if outcome.then.producer_id != outcome.by.producer_id:
                    raise
            return outcome.then
        return outcome

    def expire(self, transactional_ids: Sequence[str]) -> list[int | KafkaError]:
        """Abort transactions past their timeout, complete prepared ones, and delete ids past their expiration.

        Returns for each when (ms) something is due again, NOTHING_DUE, NOT_THERE, or its error.
        """
        if not transactional_ids:
            return []
        outcomes = self._confirmed(partial(self._store.expire, transactional_ids, self._expiration_ms))
        dues: list[int | KafkaError] = []
        for transactional_id, outcome in zip(transactional_ids, outcomes, strict=True):
            if not isinstance(outcome, PreparedTransaction):
                dues.append(outcome)
                continue
            try:
                self._complete(transactional_id, outcome, "keeper")
            except KafkaError as error:
                dues.append(error.without_frames())
            else:
                result = "committed" if outcome.commit else "aborted"
                _log.info("transaction completed", transactional_id=transactional_id, result=result)
                dues.append(NOTHING_DUE)
        return dues

    def describe(self, transactional_ids: Sequence[str]) -> list[StoredTransaction | KafkaError]:
        """Return each as it is now.

        An error is TRANSACTIONAL_ID_NOT_FOUND, INVALID_REQUEST of an empty id, or KAFKA_STORAGE_ERROR.
        """
        not_found = KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "there is no such transactional id")
        result = self._store.describe(transactional_ids)
        return [
            stored or (not_found if name else _empty_id())
            for name, stored in zip(transactional_ids, result, strict=True)
        ]

    def list(self, wanted: TransactionFilter) -> list[ListedTransaction]:
        """Return the transactional ids that pass the filter, by name; what cannot be read is left out."""
        now_ms = self._store.now_ms()
        result = []
        for page in self._store.names():
            names = page if wanted.matches is None else [*filter(wanted.matches, page)]
            for name, stored in zip(names, self._store.describe(names), strict=True):
                if isinstance(stored, StorageUnavailableError):
                    raise stored
                if isinstance(stored, StoredTransaction) and _passes(stored, wanted, now_ms):
                    result.append(ListedTransaction(name, stored.identity.producer_id, stored.state))
        return sorted(result)

    def _once_complete(self, transactional_id: str, change: Callable[[], T | PreparedTransaction]) -> T:
        """Return the result of a change that may have to wait until the transaction before is complete."""
        for _ in range(_TRIES_MAX):
            outcome = self._confirmed(change)
            if not isinstance(outcome, PreparedTransaction):
                return outcome
            self._complete(transactional_id, outcome, "fenced")
        message = "other transactions of the transactional id are being ended at this moment"
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, message)

    def _complete(self, transactional_id: str, prepared: PreparedTransaction, reason: str) -> None:
        """Write the markers of a transaction, and then complete it; `reason` is by whom, or why.

        Raises KafkaError CONCURRENT_TRANSACTIONS if that cannot be done now; the next request, or the keeper, goes on.
        """
        refs = [
            PartitionRef(TopicRef(partition.at.topic), partition.at.partition, partition)
            for partition in prepared.partitions
        ]
        try:
            written = self._topics.ask(refs, partial(_marker, prepared), self._markers.write)
            self._check_markers(prepared, written)
            if prepared.groups:
                self._confirmed(partial(self._finish_groups, prepared))
            complete = partial(self._store.complete, transactional_id, prepared.number)
            if prepared.then.producer_id == prepared.by.producer_id:
                complete()  # if that is taken back, the next request does it again
            else:
                self._confirmed(complete)
        except KafkaError as error:
            _log.warning("transaction not completed yet", transactional_id=transactional_id, reason=error)
            message = f"the transaction before cannot be completed yet: {error.message}"
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, message) from error
        metrics.TRANSACTIONS_COMPLETED.labels("commit" if prepared.commit else "abort", reason).inc()

    def _check_markers(self, prepared: PreparedTransaction, written: Sequence[KafkaError | None]) -> None:
        """Raise the error of a partition that still needs its marker."""
        failed = next((file for file in written if file is not None and file.code not in _OVER), None)
        if failed is not None:
            raise failed
        missing = [
            (added, error)
            for added, error in zip(prepared.partitions, written, strict=True)
            if error is not None and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        if missing:
            # Another topic may have been meant by what this process knew: it must be sure that this one is gone.
            self._topics.refresh()
            for added, error in missing:
                topic = self._topics.get_cached(added.at.topic)
                if topic is not None and id_text(topic.id) == added.topic_id:
                    raise error

    def _finish_groups(self, prepared: PreparedTransaction) -> None:
        transaction = ProducerTransaction(*prepared.by, prepared.number)
        for group in prepared.groups:
            self._offsets.finish(group, transaction, commit=prepared.commit)

    def _confirmed(self, change: Callable[[], T]) -> T:
        return self._replicas.confirm_call(change, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise _empty_id()


def _empty_id() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id must not be empty")


def _marker(
    prepared: PreparedTransaction, added: AddedPartition, topic: Topic, partition: Partition
) -> Marker:
    if id_text(topic.id) != added.topic_id:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was created again")
    return Marker(partition, *prepared.by, prepared.number, prepared.commit)


def _passes(stored: StoredTransaction, wanted: TransactionFilter, now_ms: int) -> bool:
    return (
        (not wanted.states or stored.state in wanted.states)
        and (not wanted.producer_ids or stored.identity.producer_id in wanted.producer_ids)
        and (wanted.duration_ms < 0 or now_ms - stored.started_ms > wanted.duration_ms)
    )
