"""Reads all topics of a run from their beginning to their end, and holds them against what was written.

Nothing may be lost or doubled, everything is in order: `Sequences` takes records one after the other, as they stand in
each partition, and counts faults.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from loadtest.harness import NotAvailableError
from loadtest.locust import ledger
from loadtest.locust.ledger import Key, Written

_BATCH = 10_000
_REQUEST_SECONDS_MAX = 5.0
_SILENT_SECONDS_MAX = 60.0
_EXAMPLES_MAX = 10

LOST, DOUBLED, OUT_OF_ORDER = "lost", "doubled", "out of order"
ELSEWHERE, UNKNOWN = "in a second partition", "written by nobody"


class _Seen:
    """The records read of one key: the last number, the missing numbers, and the unsure ones that came."""

    def __init__(self, written: Written, partition: int) -> None:
        self.written = written
        self.partition = partition
        self.next = 0
        self.missing: set[int] = set()
        self.unsure: set[int] = set()


class Sequences:
    """All keys of a run. A record whose sending failed may be there or not, and anywhere, but not twice."""

    def __init__(self, written: Mapping[Key, Written]) -> None:
        self.faults: Counter[str] = Counter()
        self.examples: list[str] = []
        self.records = 0
        self._written = written
        self._seen: dict[Key, _Seen] = {}

    def record(self, key: Key, partition: int, number: int) -> None:
        """Take the next record of a partition."""
        self.records += 1
        seen = self._seen.get(key)
        if seen is None:
            if key not in self._written:
                self._fault(UNKNOWN, key, number)
                return
            seen = self._seen[key] = _Seen(self._written[key], partition)
        if partition != seen.partition:
            self._fault(ELSEWHERE, key, number)
        if number == seen.next and number < seen.written.sent and number not in seen.written.unsure:
            seen.next += 1
        else:
            self._unexpected(seen, key, number)

    def _unexpected(self, seen: _Seen, key: Key, number: int) -> None:
        if not 0 <= number < seen.written.sent:
            self._fault(UNKNOWN, key, number)
        elif number in seen.written.unsure:
            if number in seen.unsure:
                self._fault(DOUBLED, key, number)
            seen.unsure.add(number)
        elif number in seen.missing:
            seen.missing.discard(number)
            self._fault(OUT_OF_ORDER, key, number)
        elif number < seen.next:
            self._fault(DOUBLED, key, number)
        else:
            seen.missing.update(set(range(seen.next, number)) - seen.written.unsure)
            seen.next = number + 1

    def finish(self) -> None:
        """Count what is missing, once all records were taken."""
        for key, written in self._written.items():
            seen = self._seen.get(key) or _Seen(written, -1)
            missing = seen.missing | (set(range(seen.next, written.sent)) - written.unsure)
            for number in sorted(missing):
                self._fault(LOST, key, number)

    def _fault(self, kind: str, key: Key, number: int) -> None:
        self.faults[kind] += 1
        if len(self.examples) < _EXAMPLES_MAX:
            self.examples.append(f"{kind}: record {number} of key {key.name} in {key.topic}")


def check(bootstrap: str, written: Mapping[Key, Written]) -> Sequences:
    """Read everything and return what was found. Raises NotAvailableError where the end is not reached."""
    sequences = Sequences(written)
    topics = sorted({key.topic for key in written})
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "loadtest-readback",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        _read(consumer, topics, sequences)
    except KafkaException as error:
        raise NotAvailableError(f"the records cannot be read back: {error.args[0]}") from error
    finally:
        consumer.close()
    sequences.finish()
    return sequences


def _read(consumer: Consumer, topics: Iterable[str], sequences: Sequences) -> None:
    left = {(topic, partition) for topic in topics for partition in _partitions(consumer, topic)}
    consumer.assign([TopicPartition(*epoch_start, OFFSET_BEGINNING) for epoch_start in left])
    heard = time.monotonic()
    while left:
        for message in consumer.consume(_BATCH, 0.2):
            heard = time.monotonic()
            topic, partition, error = str(message.topic()), message.partition(), message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's spelling
                left.discard((topic, partition or 0))
            elif error is not None:
                raise KafkaException(error)
            else:
                _take(sequences, topic, partition or 0, message.key(), message.value())
        if time.monotonic() - heard > _SILENT_SECONDS_MAX:
            raise NotAvailableError(f"the records cannot be read back: {len(left)} partitions fell silent")


def _take(sequences: Sequences, topic: str, partition: int, key: object, value: object) -> None:
    stamp = ledger.parse(value) if isinstance(value, bytes) else None
    if stamp is None or not isinstance(key, bytes):
        sequences.faults[UNKNOWN] += 1
    else:
        sequences.record(Key(topic, key.decode()), partition, stamp.sequence)


def _partitions(consumer: Consumer, topic: str) -> Iterable[int]:
    described = consumer.list_topics(topic, timeout=_REQUEST_SECONDS_MAX).topics[topic]
    if described.error is not None:
        raise KafkaException(described.error)
    return list(described.partitions)
