"""Offsets that transactions commit (KIP-98, KIP-447): they wait in Redis, and count once the transaction is committed.

Each group has a hash of them (lua/group/commit_transaction.lua) with the number of the transaction, which stays when it
has ended (lua/group/end_transaction.lua): an end may come twice, and what comes after it is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from korvet.config.settings import Settings
from korvet.errors import KafkaError
from korvet.groups.offsets import (
    CommittedOffsets,
    Committer,
    OffsetStore,
    OffsetToCommit,
    ProducerTransaction,
)
from korvet.protocol.types import TopicPartition
from korvet.topics.registry import TopicRegistry
from korvet.topics.types import PartitionRef, TopicRef


class PendingOffsets:
    """Every method raises StorageUnavailableError if Redis is away, and KafkaError KAFKA_STORAGE_ERROR."""

    def __init__(self, store: OffsetStore, topics: TopicRegistry, settings: Settings) -> None:
        self._store = store
        self._topics = topics
        self._committed = CommittedOffsets(store, topics, settings)

    def commit(
        self,
        by: Committer,
        producer_id: int,
        epoch: int,
        number: int,
        offsets: Sequence[PartitionRef[OffsetToCommit]],
        not_after_ms: int = 0,
    ) -> list[KafkaError | None]:
        """Keep offsets that transaction `number` of a producer is to commit; returns for each what prevented it.

        The errors are those of CommittedOffsets.commit. Raises KafkaError also INVALID_PRODUCER_EPOCH and
        INVALID_TXN_STATE, if the transaction has ended.
        """
        transaction = ProducerTransaction(producer_id, epoch, number)
        return self._committed.commit(by, offsets, not_after_ms, transaction)

    def finish(self, group: str, producer_id: int, epoch: int, number: int, commit: bool) -> None:  # noqa: FBT001 - as a marker has it
        """Commit the offsets of a transaction, or drop them. It may be done twice, and for a group that has none."""
        transaction = ProducerTransaction(producer_id, epoch, number)
        moved = []
        for at, row in self._store.end_transaction(group, transaction, commit=commit).items():
            # A topic that is deleted meanwhile has no Redis groups.
            with contextlib.suppress(KafkaError):
                _, partition = self._topics.partition(TopicRef(at.topic), at.partition)
                if partition.topic_id == row.topic_id:
                    moved.append((partition, row.offset))
        self._store.follow(group, moved)

    def unstable(self, groups: Sequence[str]) -> list[set[TopicPartition] | KafkaError]:
        return self._store.unstable(groups)

    def flush(self) -> None:
        self._store.flush()
