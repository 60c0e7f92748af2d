"""The verification of batches that open a transaction in their partition (KIP-890).

The append script, which knows what is open, returns such a batch unwritten; the coordinator is asked for the number of
the transaction; then the batch is sent again with that. So only the first batch of a transaction in a partition costs
more than others. The requests of a producer, which come by one connection, keep their order:

- Those that have begun before the first is verified were sent before it is sent again. The script met them while no
  transaction was open, so they were returned unwritten too, or refused for a reason that keeps them in order.
- None begins after that until all of them are answered, for `in_order` of the first is false. Each is answered in its
  turn, after all before it: only then is it verified and sent again.
- If the first is refused those after it must not be written, even a moment later: a partition that does not know their
  producer takes any sequence. They are refused for the same reason, until the first has come again. Some of them may
  still be on their way when it is refused, so that is remembered for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from korvet.errors import KafkaError
from korvet.log.types import AppendBatch, AppendRecords
from korvet.protocol.records.batch import SEQUENCES
from korvet.topics.types import Partition

Verify: TypeAlias = Callable[[int, int, Sequence[Partition]], int]
"""Returns the number of the transaction of a producer, given by id and epoch, that has these partitions.

Raises KafkaError if it has none, or has not these partitions.
"""

REFUSED_MAX = 10_000
"""Refusals that are remembered; the oldest go first."""

REFUSED_SECONDS = 60.0
"""How long the batches after one that was refused are refused too: longer than clients wait for an answer."""


class Unverified(NamedTuple):
    """A batch that is to be verified."""

    partition: Partition
    producer_id: int
    epoch: int
    base_sequence: int

    @classmethod
    def of(cls, append: AppendRecords | AppendBatch) -> Unverified:
        """Return it without its records, which take memory."""
        return cls(append.partition, append.producer_id, append.producer_epoch, append.base_sequence)

    @property
    def key(self) -> tuple[str, int]:
        """The log and the producer."""
        return self.partition.stream, self.producer_id


class _RefusedBatch(NamedTuple):
    """A batch that was not written, when that was (time.monotonic), and why."""

    at: float
    batch: Unverified
    error: KafkaError

    def is_before(self, batch: Unverified) -> bool:
        distance = (batch.base_sequence - self.batch.base_sequence) % SEQUENCES
        return (
            batch.epoch == self.batch.epoch
            and 0 < distance < SEQUENCES // 2
            and time.monotonic() - self.at < REFUSED_SECONDS
        )


class Verifications:
    """Those of one worker."""

    def __init__(self) -> None:
        # By log and producer the first that was refused, the oldest refusal first.
        self._refused: dict[tuple[str, int], _RefusedBatch] = {}

    def ask(self, verify: Verify, batches: Sequence[Unverified]) -> list[int | KafkaError]:
        """Return for each batch the number of its transaction, or why it may not be written."""
        answers: list[int | KafkaError] = [0] * len(batches)
        by_producer: dict[tuple[int, int], list[int]] = {}
        for place, batch in enumerate(batches):
            refused = self._refused.get(batch.key)
            if refused is not None and refused.is_before(batch):
                answers[place] = refused.error
            else:
                by_producer.setdefault((batch.producer_id, batch.epoch), []).append(place)
        for (producer_id, epoch), places in by_producer.items():
            answer: int | KafkaError
            try:
                answer = verify(producer_id, epoch, [batches[place].partition for place in places])
            except KafkaError as error:
                answer = error.without_frames()
            for place in places:
                answers[place] = answer
        return answers

    def note(self, batch: Unverified, result: object) -> None:
        """Note what became of a batch in the end."""
        refused = self._refused.get(batch.key)
        if isinstance(result, KafkaError):
            if refused is not None and refused.is_before(batch):
                return
            self._refused.pop(batch.key, None)
            self._refused[batch.key] = _RefusedBatch(time.monotonic(), batch, result)
            self._forget()
        elif refused is not None:
            del self._refused[batch.key]

    def _forget(self) -> None:
        """Forget those that concern nobody any more."""
        before = time.monotonic() - REFUSED_SECONDS
        while self._refused and (
            (oldest := next(iter(self._refused.values()))).at < before or len(self._refused) > REFUSED_MAX
        ):
            del self._refused[oldest.batch.key]
