"""The idempotent producers of partitions, as their logs remember them.

Knows the rows that the append scripts write; nothing of who asks. A row that cannot be read is an error of its
partition, as it is for the producer that it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, cast

from korvet.errors import KafkaError
from korvet.storage import log_replies
from korvet.storage.log_types import Partition
from korvet.storage.replies import Reply
from korvet.storage.resp import Arg, Redis

_PARTITIONS_PER_STEP = 100
_ROWS_PER_STEP = 1000
"""Rows of one partition in one step: some tenths of a millisecond of Redis. A small hash comes as a whole."""

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
    if log_replies.listed(partition.state, fence) != [partition.topic_id.encode()]:
        raise log_replies.another_topic(partition)
    try:
        cursor, flat = cast("tuple[bytes, list[bytes]]", log_replies.listed(partition.producers, scanned))
        for name, text in zip(flat[::2], flat[1::2], strict=True):
            row = _ROW.fullmatch(text)
            if row is None:
                raise log_replies.malformed(partition.producers, f"the row of producer {name!r}")
            epoch, last_ms, last_sequence = map(int, row.groups())
            rows[int(name)] = ActiveProducer(int(name), epoch, last_sequence, last_ms)
    except (ValueError, TypeError) as error:
        raise log_replies.malformed(partition.producers, "the answer to HSCAN") from error
    return cursor
