"""Producers with transactions on a real Redis: processes that can be killed, and what logs and groups hold then."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from korvet.config.settings import Settings
from korvet.errors import KafkaError
from korvet.groups.offsets import (
    CommittedOffsets,
    Committer,
    OffsetStore,
    OffsetToCommit,
    ProducerTransaction,
)
from korvet.log.appends import Decision, Question
from korvet.log.markers import MarkerWriter
from korvet.log.types import Appended
from korvet.protocol.types import TopicPartition
from korvet.redis.keys import Keys
from korvet.server.keeper.context import Context
from korvet.server.keeper.transaction_tasks import FinishTransactions
from korvet.topics.registry import TopicSpec
from korvet.topics.types import PartitionRef, TopicRef
from korvet.transactions.coordinator import TransactionCoordinator
from korvet.transactions.store import TransactionStore
from korvet.transactions.types import NO_PRODUCER, ProducerIdentity
from tests.lua.support import now_ms
from tests.support.appends import append_of
from tests.support.dying import Dying

KEYS = Keys("korvet")
ID, TOPIC, GROUP = "payments", "orders", "billing"
PARTITIONS = 2
TIMEOUT_MS = 60_000
LISTED = KEYS.transactions


class Process:
    """A worker, or the keeper, with a connection of its own."""

    def __init__(self, settings: Settings) -> None:
        self.context = Context(settings)
        redis, self.topics = self.context.redis, self.context.topics
        self.store = TransactionStore(redis, KEYS)
        self.offsets = OffsetStore(redis, KEYS, mirror=False)
        self.committed = CommittedOffsets(self.offsets, self.topics, settings)
        self.coordinator = TransactionCoordinator(
            self.store,
            self.topics,
            MarkerWriter(self.context.log_store, self.context.replicas),
            self.committed,
            self.context.replicas,
            settings,
        )
        self.context.log_store.appends.clients = self
        self._verify_only = False
        self._keeps = FinishTransactions()
        self.dying = Dying(redis)
        self._sequences = itertools.count()

    def init(self, by: ProducerIdentity = NO_PRODUCER) -> ProducerIdentity:
        return self.coordinator.init(ID, TIMEOUT_MS, by)

    def produce(
        self, by: ProducerIdentity, partition: int = 0, *, verify_only: bool = False, sequence: int = 0
    ) -> None:
        """Append a record in the producer's transaction; raises KafkaError."""
        self._verify_only = verify_only
        append = append_of(
            *(self.topics.get(TOPIC).partition(partition), b"value"),
            number=0,  # it is not verified
            producer_id=by.producer_id,
            epoch=by.epoch,
            sequence=sequence,
        )
        [result] = self.context.log_store.append([append])
        if isinstance(result, KafkaError):
            raise result
        assert isinstance(result, Appended)

    def decide(self, _client: object, question: Question) -> Decision:
        """Verify batches as for a client."""
        _verify, _id, _version, producer_id, epoch, streams = question
        partitions = [self.context.log_store.appends.partition_of(stream) for stream in streams]
        by = ProducerIdentity(producer_id, epoch)
        return self.coordinator.add(ID, by, partitions, verify_only=self._verify_only)

    def confirm(self, asked: Sequence[object]) -> Sequence[Decision]:
        """Confirm nothing, for nothing is asked."""
        assert not asked
        return []

    def find(self, asked: Sequence[object]) -> Sequence[Decision]:
        """Find no partitions, for none is asked for."""
        assert not asked
        return []

    def commit_offset(self, by: ProducerIdentity, offset: int = 5) -> None:
        number = self.coordinator.add(ID, by, groups=[GROUP])
        asked = [PartitionRef(TopicRef(TOPIC), 0, OffsetToCommit(offset, -1, "", None))]
        transaction = ProducerTransaction(*by, number)
        assert self.committed.commit(Committer(GROUP), asked, 0, transaction) == [None]

    def open(self, offset: int = 5) -> ProducerIdentity:
        """Begin a producer whose transaction has a record in each partition, and an offset of the group."""
        by = self.init()
        for index in range(PARTITIONS):
            self.produce(by, index)
        self.commit_offset(by, offset)
        return by

    def end(self, by: ProducerIdentity, *, commit: bool, bumps_epoch: bool = False) -> ProducerIdentity:
        return self.coordinator.end(ID, by, commit=commit, bumps_epoch=bumps_epoch)

    def keep(self) -> None:
        """Do the turn of a keeper that begins."""
        FinishTransactions()(self.context, lambda: None)

    def keep_on(self) -> None:
        """Do one more turn of the same keeper."""
        self._keeps(self.context, lambda: None)

    def close(self) -> None:
        self.store.schedule.flush()
        self.context.close()


class Found:
    """What anybody finds in Redis."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def state(self) -> str | None:
        stored = self.raw.hget(KEYS.transaction(ID), "state")
        return stored.decode() if stored is not None else None

    def set(self, **fields: object) -> None:
        self.raw.hset(KEYS.transaction(ID), mapping={name: str(value) for name, value in fields.items()})

    def markers(self, partition: int) -> list[str]:
        entries = self.raw.xrange(KEYS.stream(TOPIC, partition))
        return [fields[b"korvet.marker"].decode() for _, fields in entries if b"korvet.marker" in fields]

    def open_partitions(self) -> list[int]:
        return [
            index
            for index in range(PARTITIONS)
            if self.raw.exists(KEYS.open_transactions(TOPIC, index))
            or self.raw.hexists(KEYS.state(TOPIC, index), "open")
        ]

    def is_listed(self) -> bool:
        return self.raw.zscore(LISTED, ID) is not None

    def now_ms(self) -> int:
        return now_ms(self.raw)


def committed(process: Process) -> int | None:
    [row] = process.offsets.fetch([(GROUP, TopicPartition(TOPIC, 0))])
    return row.offset if row is not None and not isinstance(row, KafkaError) else None


def make_topic(process: Process) -> None:
    process.topics.create(TopicSpec(name=TOPIC, partitions=PARTITIONS, configs={"storage.format": "record"}))
