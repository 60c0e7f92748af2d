"""Reads all topics of a run from their beginning to their end, and has every record's number checked.

Knows the consumer's client and what producers wrote; the rules stand in `sequences`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from loadtest.harness import NotAvailableError
from loadtest.locust import ledger
from loadtest.locust.ledger import Key, Written
from loadtest.locust.sequences import UNKNOWN, Sequences

_BATCH = 10_000
_REQUEST_SECONDS_MAX = 5.0
_SILENT_SECONDS_MAX = 60.0


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
    consumer.assign([TopicPartition(*each, OFFSET_BEGINNING) for each in left])
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
