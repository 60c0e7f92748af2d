"""Idempotent producers: ids for them, in blocks so that most requests cost Redis nothing, and who of them is known.

Knows that an id must never be given twice; the rules for epochs and sequences are the append script's (KIP-98).

The idempotent producers of partitions, as their logs remember them.

Knows the rows that the append scripts write; nothing of who asks. A row that cannot be read is an error of its
partition, as it is for the producer that it belongs to.

Producer ids, handed out to brokers in blocks by one counter in Redis.

Knows the counter; nothing of epochs or sequences, which live beside each partition's log.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, cast

from gevent.lock import RLock

from korvet.errors import ErrorCode, KafkaError
from korvet.log.state import stale_topic
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.connection import Arg
from korvet.redis.keys import Keys
from korvet.redis.replies import Reply, RespError, listed, malformed
from korvet.topics.registry import TopicRegistry
from korvet.topics.types import Partition, PartitionRef, TopicRef

_EXPIRE = scripts.get("producer/expire")

_PARTITIONS_PER_STEP = 100
_ROWS_PER_STEP = 1000
"""Rows of one partition in one step: some tenths of a millisecond of Redis. A small hash comes as a whole."""

_EXPIRED_ROWS_PER_STEP = 500
_COMMANDS_PER_PARTITION = 2
# "<epoch> <ms of its last batch> <first>-<last sequence>@<base offset> ...", newest last (lua/shared/append_begin).
_ROW = re.compile(rb"(\d{1,5}) (\d{1,18}) (?:\d+-\d+@\d+ )*\d+-(\d{1,10})@\d+")


class ActiveProducer(NamedTuple):
    """One producer; `last_ms` is Redis' clock at its last batch."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_ms: int


class ProducerRows:
    """Reads the producers' rows of one Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def read(self, partitions: Sequence[Partition]) -> list[list[ActiveProducer] | KafkaError]:
        """Return the producers of each partition by their ids: 100 partitions in one round trip, where they have few.

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
        calls = [
            (_EXPIRE, (partition.producers,), (cursor, _EXPIRED_ROWS_PER_STEP, silence_ms))
            for partition, cursor in cursors
        ]
        replies = self._redis.scripts(calls)
        return [_expired(partition, reply) for (partition, _), reply in zip(cursors, replies, strict=True)]

    def _read(self, partitions: Sequence[Partition]) -> list[list[ActiveProducer] | KafkaError]:
        rows: list[dict[int, ActiveProducer]] = [{} for _ in partitions]
        errors: dict[int, KafkaError] = {}
        cursors = dict.fromkeys(range(len(partitions)), b"0")
        while cursors:
            commands: list[Sequence[Arg]] = []
            for at, cursor in cursors.items():
                # The fence in each step: a topic that is deleted meanwhile has no producers.
                state, producers = partitions[at].state, partitions[at].producers
                commands += (
                    ("HMGET", state, "topic"),
                    ("HSCAN", producers, cursor, "COUNT", _ROWS_PER_STEP),
                )
            replies = self._redis.pipeline(commands)
            steps = zip(
                list(cursors),
                replies[::_COMMANDS_PER_PARTITION],
                replies[1::_COMMANDS_PER_PARTITION],
                strict=True,
            )
            for at, fence, scanned in steps:
                try:
                    cursors[at] = _take(partitions[at], fence, scanned, rows[at])
                except KafkaError as error:
                    errors[at] = error
                if at in errors or cursors[at] == b"0":
                    del cursors[at]
        return [errors.get(at) or [found[each] for each in sorted(found)] for at, found in enumerate(rows)]


def _take(partition: Partition, fence: Reply, scanned: Reply, rows: dict[int, ActiveProducer]) -> bytes:
    """Add the rows of one step, which may tell of one twice; returns the cursor of the next step."""
    if listed(partition.state, fence) != [partition.topic_id.encode()]:
        raise stale_topic(partition)
    try:
        cursor, flat = cast("tuple[bytes, list[bytes]]", listed(partition.producers, scanned))
        for name, text in zip(flat[::2], flat[1::2], strict=True):
            row = _ROW.fullmatch(text)
            if row is None:
                raise malformed(partition.producers, f"the row of producer {name!r}")
            epoch, last_ms, last_sequence = map(int, row.groups())
            rows[int(name)] = ActiveProducer(int(name), epoch, last_sequence, last_ms)
    except (ValueError, TypeError) as error:
        raise malformed(partition.producers, "the answer to HSCAN") from error
    return cursor


def _expired(partition: Partition, reply: Reply) -> tuple[str, int] | KafkaError:
    match reply:
        case [bytes() as cursor, int() as removed] if cursor.isdigit():
            return cursor.decode(), removed
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.producers}: Redis answered {reply!r}")


class ProducerStore:
    """The counter of one namespace; ids begin with 0."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._key = keys.producer_ids

    def next_block(self, size: int) -> int:
        """Return the first of `size` ids that nobody else gets. A lost answer loses its block, no more.

        Raises KafkaError KAFKA_STORAGE_ERROR (the counter is no number, or used up); StorageUnavailableError.
        """
        try:
            reply = self._redis.call("INCRBY", self._key, size)
        except RespError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._key}: Redis answered {error}") from error
        if not isinstance(reply, int) or reply < size:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self._key}: {reply!r} is no count of producer ids"
            )
        return reply - size


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
