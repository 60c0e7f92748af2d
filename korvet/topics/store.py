"""The registry of topics in Redis: rows, how they are created and changed, and the feed of changes.

A row that cannot be read is no topic: it is logged once, and the others are served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias, cast

import msgspec

from korvet.cluster.rows import CHANGES_MAX
from korvet.errors import ErrorCode, KafkaError
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.connection import Arg
from korvet.redis.keys import Keys
from korvet.redis.replies import Reply, errors_about, listed, malformed, value_of
from korvet.topics.deletion import TopicDeletion, side_keys
from korvet.topics.types import TopicRow, decode, encode

_ALTER = scripts.get("topic/alter")
_CREATE = scripts.get("topic/create")
_GROW = scripts.get("topic/grow")

RowChange: TypeAlias = Callable[[TopicRow], TopicRow]
"""Returns the row that replaces a row; may be called more than once, and may raise KafkaError."""

_ATTEMPTS_MAX = 20
"""Tries of a change while others change the same row: each but the last has met one of theirs that was done."""


class TopicChanges(NamedTuple):
    """The changes of the registry up to `epoch`: rows created or changed, and names that are gone."""

    epoch: int
    upserts: list[TopicRow]
    deletions: list[str]


class TopicRows(NamedTuple):
    """All topics by name, at `epoch`."""

    epoch: int
    rows: dict[str, TopicRow]


class TopicStore:
    """The registry of one namespace; `deletion` deletes topics from it.

    Every method raises KafkaError KAFKA_STORAGE_ERROR and StorageUnavailableError.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.deletion = TopicDeletion(redis, keys)
        self._redis = redis
        self._keys = keys
        self._registry = keys.topics
        self._loaded_over: int | None = None

    def create(self, row: TopicRow, known_epoch: int = 0) -> int:
        """Write the row and the state of every partition at once; returns the change's epoch.

        `known_epoch` is that of a registry without topics whose names collide with this one. Returns 0, with nothing
        done, if the feed no longer has the changes since then; that concerns names with `.` or `_`. Raises KafkaError
        TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION (a topic created since collides), INVALID_CONFIG (format `batch`
        over streams that exist already).
        """
        keys = self._new_partitions(row, 0)
        args = [row.name, row.id, encode(row), *self._feed, _streams(row), known_epoch]
        return self._run(_CREATE, keys, args)

    def alter(self, name: str, topic_id: str, change: RowChange) -> TopicRow:
        """Replace configs and assignment of a topic by those of the row that `change` returns; returns the new row.

        `change` is called again if another process changed the row meanwhile; an equal row is not written. Raises
        KafkaError UNKNOWN_TOPIC_OR_PARTITION (no such topic, or of another id).
        """

        def write(_before: TopicRow, text: bytes, row: TopicRow) -> int:
            return self._run(_ALTER, [], [name, text, encode(row), *self._feed])

        def changed(row: TopicRow) -> TopicRow:
            wanted = change(row)
            return msgspec.structs.replace(row, configs=wanted.configs, assignment=wanted.assignment)

        return self._replace(name, topic_id, changed, write)

    def add_partitions(self, name: str, topic_id: str, change: RowChange) -> TopicRow:
        """Give a topic more partitions, as `alter` changes configs: `change` sets their number and assignment.

        Raises KafkaError INVALID_CONFIG too: format `batch` over streams that exist already.
        """

        def write(before: TopicRow, text: bytes, row: TopicRow) -> int:
            keys = self._new_partitions(row, before.partitions)
            return self._run(_GROW, keys, [name, topic_id, text, encode(row), *self._feed, _streams(row)])

        def changed(row: TopicRow) -> TopicRow:
            wanted = change(row)
            partitions = max(wanted.partitions, row.partitions)
            return msgspec.structs.replace(row, partitions=partitions, assignment=wanted.assignment)

        return self._replace(name, topic_id, changed, write)

    def _replace(
        self, name: str, topic_id: str, change: RowChange, write: Callable[[TopicRow, bytes, TopicRow], int]
    ) -> TopicRow:
        """Replace a row by `write`, which returns 0 if the row is no longer the one that was read."""
        for _ in range(_ATTEMPTS_MAX):
            with errors_about(self._registry):
                text = self._redis.call("HGET", self._registry, name)
            row = decode(self._registry, name.encode(), text) if isinstance(text, bytes) else None
            if not isinstance(text, bytes) or row is None or row.id != topic_id or row.state != "live":
                message = f"there is no topic {name} of id {topic_id}"
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
            changed = change(row)
            if changed == row or write(row, text, changed):
                return changed
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._registry}: the row of {name} keeps changing")

    def _new_partitions(self, row: TopicRow, first: int) -> list[str]:
        """Return the keys of partitions from `first` on, as the scripts that create them take them."""
        keys: list[str] = []
        for index in range(first, row.partitions):
            of = (row.name, index)
            keys += (self._keys.state(*of), *side_keys(self._keys, *of), self._keys.stream(*of))
        return keys

    def load(self) -> TopicRows:
        """Return all topics and the epoch to ask for changes from."""
        connection = self._redis.connections
        newest, rows = self._transaction(
            ("ZREVRANGE", self._keys.topic_changes, 0, 0, "WITHSCORES"),
            ("HGETALL", self._registry),
        )
        flat = cast("list[bytes]", listed(self._registry, rows))
        self._loaded_over = connection
        read = (decode(self._registry, name, row) for name, row in zip(flat[::2], flat[1::2], strict=True))
        return TopicRows(self._epoch(newest), {row.name: row for row in read if row is not None})

    def changes(self, epoch: int) -> TopicChanges | None:
        """Return the changes since `epoch`; None if they are too many or too long ago to tell, so that `load` is due.

        It is due on another connection than that of the last load, too: a Redis that took over the name may lack the
        last changes, and count others by the same epochs.
        """
        feed = self._keys.topic_changes
        newest, dropped, changed = self._transaction(
            ("ZREVRANGE", feed, 0, 0, "WITHSCORES"),
            ("ZSCORE", feed, ""),
            ("ZRANGEBYSCORE", feed, f"({epoch}", "+inf"),
        )
        names = cast("list[bytes]", listed(feed, changed))
        now = self._epoch(newest)
        if self._loaded_over not in (None, self._redis.connections):
            return None
        # An epoch from the future: the feed was lost or restored from an older copy.
        if now < epoch or (dropped is not None and self._int(dropped) > epoch):
            return None
        if not names:
            return TopicChanges(now, [], [])
        with errors_about(self._registry):
            rows = listed(self._registry, self._redis.call("HMGET", self._registry, *names))
        upserts, deletions = [], []
        for name, text in zip(names, cast("list[bytes | None]", rows), strict=True):
            row = None if text is None else decode(self._registry, name, text)
            if row is None:
                deletions.append(name.decode("utf-8", "backslashreplace"))
            else:
                upserts.append(row)
        return TopicChanges(now, upserts, deletions)

    @property
    def _feed(self) -> tuple[Arg, Arg]:
        return self._keys.topics_channel, CHANGES_MAX

    def _run(self, script: scripts.Script, partitions: list[str], args: list[Arg]) -> int:
        with errors_about(self._registry):
            reply = self._redis.script(script, [self._registry, self._keys.topic_changes, *partitions], args)
        return self._int(reply)

    def _transaction(self, *commands: tuple[Arg, ...]) -> list[Reply]:
        with errors_about(self._registry):
            return [value_of(reply) for reply in self._redis.transaction(commands)]

    def _epoch(self, newest: Reply) -> int:
        scored = listed(self._keys.topic_changes, newest)
        return self._int(scored[1]) if scored else 0

    def _int(self, reply: Reply) -> int:
        try:
            return int(cast("bytes", reply))
        except (ValueError, TypeError) as error:
            raise malformed(self._registry, "a number") from error


def _streams(row: TopicRow) -> str:
    """Return what a script does with streams that exist already: their entries are no records in format `batch`."""
    return "refuse" if row.configs.get("storage.format") == "batch" else "adopt"
