"""Idempotent producers (KIP-98): their ids, and the rows that the logs keep of them.

Ids are random, so that they need no Redis and survive its losses. The rules for epochs and sequences are those of the
append scripts, which write the rows (lua/shared).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple, cast

from korvet.errors import ErrorCode, KafkaError
from korvet.log.packed import PRODUCER_FIELDS, ProducerRow
from korvet.log.state import stale_topic
from korvet.protocol.records.batch import SEQUENCES
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.replies import Arg, Reply, listed, malformed
from korvet.topics.registry import TopicRegistry
from korvet.topics.types import Partition, PartitionRef, TopicRef

_EXPIRE = scripts.get("producer/expire")

_PARTITIONS_PER_STEP = 100
_ROWS_PER_STEP = 1000
"""Rows of one partition in one step: some tenths of a millisecond of Redis. A small hash comes as a whole."""

_EXPIRED_ROWS_PER_STEP = 500
_COMMANDS_PER_PARTITION = 2


class ActiveProducer(NamedTuple):
    """One producer; `last_ms` is when its last batch or marker was sent; -1 for no sequence since its epoch began.

    `transaction` is the number of its last transaction in the partition, -1 without any, and `first_offset` where that
    begins while it is open, else -1.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_ms: int
    transaction: int = -1
    first_offset: int = -1


class ProducerRows:
    """Reads the producers' rows of one Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def read(self, partitions: Sequence[Partition]) -> list[list[ActiveProducer] | KafkaError]:
        """Return the producers of each partition by their ids: 100 partitions in one round trip, if they have few.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises StorageUnavailableError.
        """
        answers: list[list[ActiveProducer] | KafkaError] = []
        for at in range(0, len(partitions), _PARTITIONS_PER_STEP):
            answers += self._read(partitions[at : at + _PARTITIONS_PER_STEP])
        return answers

    def expire(
        self, cursors: Sequence[tuple[Partition, str]], silence_ms: int
    ) -> list[tuple[str, int] | KafkaError]:
        """Remove producers silent for `silence_ms`: one step for each partition from its cursor ("0" begins).

        Returns the next cursor ("0": done) and how many were removed, or KafkaError KAFKA_STORAGE_ERROR. Raises
        StorageUnavailableError.
        """
        now_ms = time.time_ns() // 1_000_000
        replies = self._redis.scripts(
            [
                (_EXPIRE, (partition.state,), (cursor, _EXPIRED_ROWS_PER_STEP, now_ms, silence_ms))
                for partition, cursor in cursors
            ]
        )
        return [_expired(partition, reply) for (partition, _), reply in zip(cursors, replies, strict=True)]

    def _read(self, partitions: Sequence[Partition]) -> list[list[ActiveProducer] | KafkaError]:
        rows: list[dict[int, ActiveProducer]] = [{} for _ in partitions]
        errors: dict[int, KafkaError] = {}
        cursors = dict.fromkeys(range(len(partitions)), b"0")
        while cursors:
            commands: list[Sequence[Arg]] = []
            for at, cursor in cursors.items():
                # The topic id in each step: a topic that is deleted meanwhile has no producers.
                state = partitions[at].state
                commands += (
                    ("HMGET", state, "topic"),
                    ("HSCAN", state, cursor, "MATCH", PRODUCER_FIELDS, "COUNT", _ROWS_PER_STEP),
                )
            replies = self._redis.pipeline(commands)
            steps = zip(
                list(cursors),
                replies[::_COMMANDS_PER_PARTITION],
                replies[1::_COMMANDS_PER_PARTITION],
                strict=True,
            )
            for at, topic_id, scanned in steps:
                try:
                    cursors[at] = _take(partitions[at], topic_id, scanned, rows[at])
                except KafkaError as error:
                    errors[at] = error.without_frames()
                if at in errors or cursors[at] == b"0":
                    del cursors[at]
        return [
            errors.get(at) or [producers[producer_id] for producer_id in sorted(producers)]
            for at, producers in enumerate(rows)
        ]


def _take(partition: Partition, topic_id: Reply, scanned: Reply, rows: dict[int, ActiveProducer]) -> bytes:
    """Add the rows of one step, which may hold one twice; returns the cursor of the next step."""
    if listed(partition.state, topic_id) != [partition.topic_id.encode()]:
        raise stale_topic(partition)
    try:
        cursor, flat = cast("tuple[bytes, list[bytes]]", listed(partition.state, scanned))
        for name, packed in zip(flat[::2], flat[1::2], strict=True):
            try:
                row = ProducerRow.unpack(packed)
            except ValueError as error:
                raise malformed(partition.state, f"the row of producer {name!r}") from error
            rows[int(name)] = ActiveProducer(
                int(name),
                row.epoch,
                (row.next_sequence - 1) % SEQUENCES if row.batches else -1,
                row.last_ms,
                row.transaction,
                row.first_offset,
            )
    except (ValueError, TypeError) as error:
        raise malformed(partition.state, "the answer to HSCAN") from error
    return cursor


def _expired(partition: Partition, reply: Reply) -> tuple[str, int] | KafkaError:
    match reply:
        case [bytes() as cursor, int() as removed] if cursor.isdigit():
            return cursor.decode(), removed
        case KafkaError():
            return reply
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.state}: Redis answered {reply!r}")


def new_producer_id() -> int:
    """Return an id that no other producer has: 63 random bits.

    A counter in Redis would go back when a failover or a crash loses Redis' last seconds, and two producers with one id
    take each other's sequences for their own. Random ids depend on nothing that can be lost. With 10 million ids in the
    rows of all logs, a new one is among them with a chance of 1 in 9 * 10^11.
    """
    return secrets.randbits(63)


class ActiveProducers:
    """The producers that the logs of one worker's registry remember."""

    def __init__(self, topics: TopicRegistry, rows: ProducerRows) -> None:
        self._topics = topics
        self._rows = rows

    def read(self, places: Sequence[tuple[str, int]]) -> list[list[ActiveProducer] | KafkaError]:
        """Return the producers of each partition, given by topic and index, in order of their ids.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises StorageUnavailableError.
        """
        self._topics.refresh()
        refs = [PartitionRef(TopicRef(name), index, None) for name, index in places]
        return self._topics.ask(refs, lambda _asked, _topic, partition: partition, self._rows.read)
