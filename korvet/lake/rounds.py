"""What a round of archiving did: what came into the lake, what did not, and why.

Knows counts and errors, each of which is logged as it is noted; nothing of how records are archived.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from korvet import logs
from korvet.errors import ErrorCode, KafkaError
from korvet.lake.task import Outcome
from korvet.topics.types import Partition

_log = logs.Log(__name__)


class Failure(msgspec.Struct, frozen=True):
    """Why a partition, or with -1 a topic, did not come as far as it should."""

    topic: str
    partition: int
    error: str


class Lost(msgspec.Struct, frozen=True):
    """Offsets `first` to just before `behind` that left Redis before they were archived, though nobody deleted them."""

    topic: str
    partition: int
    first: int
    behind: int


class Round(msgspec.Struct, kw_only=True):
    """What a round did, or several. `more`: it left a part of what it found; `conflicts`: commits that came second."""

    records: int = 0
    bytes: int = 0
    files: int = 0
    partitions: int = 0
    conflicts: int = 0
    more: bool = False
    failures: list[Failure] = []
    lost: list[Lost] = []

    @property
    def moved(self) -> bool:
        """Whether something was archived, by this archiver or by another one."""
        return self.partitions > 0 or self.conflicts > 0

    def add(self, other: Round) -> None:
        """Take in what a later round did; its failures replace these, for it has tried again."""
        self.records += other.records
        self.bytes += other.bytes
        self.files += other.files
        self.partitions += other.partitions
        self.conflicts += other.conflicts
        self.more = other.more
        self.failures = other.failures
        self.lost = [*self.lost, *other.lost]

    def failed(self, failure: Failure) -> None:
        """Note what did not come as far as it should."""
        _log.error(
            "could not be archived", topic=failure.topic, partition=failure.partition, reason=failure.error
        )
        self.failures = [*self.failures, failure]

    def refused(self, partition: Partition, error: KafkaError) -> None:
        """Note why Redis said no; that a topic was deleted is no failure."""
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            _gone(partition)
        else:
            self.failed(Failure(partition.topic, partition.index, error.message))

    def stopped(self, outcome: Outcome) -> None:
        """Note why a task ended early, where an error was the reason."""
        partition = outcome.task.partition
        if outcome.gone:
            _gone(partition)
        elif outcome.error is not None:
            message = f"stopped at offset {outcome.next_offset}: {outcome.error}"
            self.failed(Failure(partition.topic, partition.index, message))

    def missed(self, lost: Sequence[Lost]) -> None:
        """Note records that can be archived no more."""
        for gap in lost:
            _log.error(
                "records left Redis before they were archived",
                topic=gap.topic,
                partition=gap.partition,
                first=gap.first,
                behind=gap.behind,
            )
        self.lost = [*self.lost, *lost]


def _gone(partition: Partition) -> None:
    _log.info("the topic was deleted meanwhile", topic=partition.topic, partition=partition.index)
