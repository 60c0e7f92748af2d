"""Idempotent producers: ids for them, in blocks so that most requests cost Redis nothing, and who of them is known.

Knows that an id must never be given twice; the rules for epochs and sequences are the append script's (KIP-98).
"""

from __future__ import annotations

from collections.abc import Sequence

from gevent.lock import RLock

from korvet.domain.topics import Topics
from korvet.errors import ErrorCode, KafkaError
from korvet.storage.log_types import Partition
from korvet.storage.producer_rows import ActiveProducer, ProducerRows
from korvet.storage.producer_store import ProducerStore

BLOCK_SIZE = 1000
"""Ids per block, as Kafka's brokers take them; those of a worker that dies are lost, of 2^63."""


class ProducerIds:
    """The ids of one worker."""

    def __init__(self, store: ProducerStore) -> None:
        self._store = store
        self._next = 0
        self._end = 0
        self._taking = RLock()

    def take(self) -> int:
        """Return an id that nobody else has; raises StorageUnavailableError where a block is needed and Redis away."""
        with self._taking:
            if self._next == self._end:
                self._next = self._store.next_block(BLOCK_SIZE)
                self._end = self._next + BLOCK_SIZE
            self._next += 1
            return self._next - 1


class ActiveProducers:
    """The producers that the logs of one worker's registry remember."""

    def __init__(self, topics: Topics, rows: ProducerRows) -> None:
        self._topics = topics
        self._rows = rows

    def read(self, places: Sequence[tuple[str, int]]) -> list[list[ActiveProducer] | KafkaError]:
        """Return the producers of each partition, given by topic and index, in order of their ids.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises StorageUnavailableError.
        """
        self._topics.refresh()
        answers, fenced = self._answers(places)
        if fenced:
            self._topics.look_again(fenced)
            answers, _ = self._answers(places)
        return answers

    def _answers(
        self, places: Sequence[tuple[str, int]]
    ) -> tuple[list[list[ActiveProducer] | KafkaError], list[Partition]]:
        """Return the answers, and the partitions that the log does not know as the registry does."""
        found = [self._find(*place) for place in places]
        partitions = [each for each in found if isinstance(each, Partition)]
        read = self._rows.read(partitions)
        fenced = [
            partition
            for partition, answer in zip(partitions, read, strict=True)
            if isinstance(answer, KafkaError) and answer.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        answers = iter(read)
        return [next(answers) if isinstance(each, Partition) else each for each in found], fenced

    def _find(self, name: str, index: int) -> Partition | KafkaError:
        topic = self._topics.known(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}")
        return topic.partitions[index]
