"""What acks=all promises beyond acks=1: that Redis' replicas have the records (setting `replicas`).

Knows what an unkept promise is called; how replicas are asked is storage's.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.domain.append import Result
from korvet.errors import ErrorCode, KafkaError
from korvet.storage.replication import Replication


class Replicas:
    """The replicas of one worker's Redis."""

    def __init__(self, replication: Replication) -> None:
        self._replication = replication

    @property
    def awaited(self) -> bool:
        """Whether `confirm` has anything to wait for."""
        return self._replication.awaited

    def confirm(self, results: Sequence[Result]) -> list[Result]:
        """Wait until the replicas have what was appended; returns the results as the producer is to be told them.

        Where too few follow in time, each append is NOT_ENOUGH_REPLICAS_AFTER_APPEND: the records are written, and an
        idempotent producer that sends them again is answered as soon as the replicas have caught up.
        """
        answers = list(results)
        if all(isinstance(each, KafkaError) for each in answers) or self._replication.confirm():
            return answers
        message = "the records are written, but too few replicas of Redis have them yet"
        short = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message)
        return [each if isinstance(each, KafkaError) else short for each in answers]
