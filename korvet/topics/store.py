"""The registry of topics in Redis: rows, how they are made and changed, and the feed of changes.

Knows the registry's keys and the scripts under lua/topic; nothing of names that are allowed, of defaults or of the
wire. A row that cannot be read is no topic: one log line, and the others are served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias, cast

import msgspec

from korvet.cluster.dynamic_settings import CHANGES_MAX
from korvet.errors import ErrorCode, KafkaError
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.connection import Arg
from korvet.redis.keys import Keys
from korvet.redis.replies import Reply, RespError, value_of
from korvet.topics import types as topic_rows
from korvet.topics.deletion import TopicRemoval
from korvet.topics.types import TopicRow

__all__ = ["CHANGES_MAX", "Changes", "Registry", "TopicRow", "TopicStore"]

_ALTER = scripts.get("topic/alter")
_CREATE = scripts.get("topic/create")
_GROW = scripts.get("topic/grow")

Change: TypeAlias = Callable[[TopicRow], TopicRow]
"""Gives what is to stand in the place of a row; may be called more than once, and may raise KafkaError."""

_ROUNDS_MAX = 20
"""Tries of a change while others change the same row: each but the last has met one of theirs that was done."""


class Changes(NamedTuple):
    """What happened to the registry up to `epoch`: rows created or changed, and names that are gone."""

    epoch: int
    upserts: list[TopicRow]
    deletions: list[str]


class Registry(NamedTuple):
    """All topics by name, at `epoch`."""

    epoch: int
    rows: dict[str, TopicRow]


class TopicStore:
    """The registry of one namespace; `removal` deletes topics from it."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.removal = TopicRemoval(redis, keys)
        self._redis = redis
        self._keys = keys
        self._loaded_over: int | None = None

    def create(self, row: TopicRow, known_epoch: int = 0) -> int:
        """Write the row and the state of every partition at once; returns the change's epoch.

        `known_epoch` is that of a registry without topics whose names collide with this one. Returns 0, and nothing is
        done, where nobody can tell what was made since; that concerns names with `.` or `_`. Raises KafkaError:
        TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION (a topic made since collides), INVALID_CONFIG (format `batch` over
        streams that are there already), KAFKA_STORAGE_ERROR; StorageUnavailableError.
        """
        keys = [self._keys.topics, self._keys.topic_changes, *self._new_partitions(row, 0)]
        text = topic_rows.encode(row)
        channel = self._keys.topics_channel
        args: list[Arg] = [row.name, row.id, text, channel, CHANGES_MAX, _streams(row), known_epoch]
        return self._int(self._run(_CREATE, keys, args))

    def alter(self, name: str, topic_id: str, change: Change) -> TopicRow:
        """Change the row of a topic: `change` is given it, and gives what is to stand there; returns that.

        `change` is called again where somebody else was faster, and may raise; a row that it leaves as it is is not
        written. It has no say in name, id, state or the number of partitions, which scripts of their own change. Raises
        KafkaError: UNKNOWN_TOPIC_OR_PARTITION (no such topic, or of another id), KAFKA_STORAGE_ERROR;
        StorageUnavailableError.
        """

        def write(_before: TopicRow, text: bytes, row: TopicRow) -> Reply:
            args: list[Arg] = [name, text, topic_rows.encode(row), self._keys.topics_channel, CHANGES_MAX]
            return self._run(_ALTER, [self._keys.topics, self._keys.topic_changes], args)

        def changed(row: TopicRow) -> TopicRow:
            wanted = change(row)
            return msgspec.structs.replace(row, configs=wanted.configs, assignment=wanted.assignment)

        return self._replace(name, topic_id, changed, write)

    def grow(self, name: str, topic_id: str, change: Change) -> TopicRow:
        """Give a topic more partitions: as `alter`, but that `change` says how many, and which brokers they are for.

        Raises KafkaError INVALID_CONFIG too: format `batch` over streams that are there already.
        """

        def write(before: TopicRow, text: bytes, row: TopicRow) -> Reply:
            partitions = self._new_partitions(row, before.partitions)
            keys = [self._keys.topics, self._keys.topic_changes, *partitions]
            channel = self._keys.topics_channel
            args: list[Arg] = [
                name,
                topic_id,
                text,
                topic_rows.encode(row),
                channel,
                CHANGES_MAX,
                _streams(row),
            ]
            return self._run(_GROW, keys, args)

        def changed(row: TopicRow) -> TopicRow:
            wanted = change(row)
            partitions = max(wanted.partitions, row.partitions)
            return msgspec.structs.replace(row, partitions=partitions, assignment=wanted.assignment)

        return self._replace(name, topic_id, changed, write)

    def _replace(
        self, name: str, topic_id: str, change: Change, write: Callable[[TopicRow, bytes, TopicRow], Reply]
    ) -> TopicRow:
        """Put a changed row in the place of that which was read, by `write`, which answers 0 where that is gone."""
        registry = self._keys.topics
        for _ in range(_ROUNDS_MAX):
            text = self._call("HGET", registry, name)
            row = self._row(name.encode(), text) if isinstance(text, bytes) else None
            if not isinstance(text, bytes) or row is None or row.id != topic_id or row.state != "live":
                message = f"there is no topic {name} of id {topic_id}"
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
            changed = change(row)
            if changed == row:
                return row
            if self._int(write(row, text, changed)):
                return changed
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{registry}: the row of {name} changes all the time")

    def _new_partitions(self, row: TopicRow, first: int) -> list[str]:
        """Return the keys of partitions from `first` on, as the scripts that make them take them."""
        keys: list[str] = []
        for index in range(first, row.partitions):
            of = (row.name, index)
            keys += (
                self._keys.state(*of),
                self._keys.producers(*of),
                self._keys.index(*of),
                self._keys.moving(*of),
                self._keys.clean(*of, 0),
                self._keys.clean(*of, 1),
                self._keys.stream(*of),
            )
        return keys

    def load(self) -> Registry:
        """Return all topics and the epoch to ask for changes from. Raises KafkaError, StorageUnavailableError."""
        connection = self._redis.connections
        newest, rows = self._transaction(
            ("ZREVRANGE", self._keys.topic_changes, 0, 0, "WITHSCORES"),
            ("HGETALL", self._keys.topics),
        )
        if not isinstance(newest, list) or not isinstance(rows, list):
            raise self._malformed("the answer")
        flat = cast("list[bytes]", rows)
        self._loaded_over = connection
        read = (self._row(name, row) for name, row in zip(flat[::2], flat[1::2], strict=True))
        return Registry(self._epoch(newest), {row.name: row for row in read if row is not None})

    def changes(self, epoch: int) -> Changes | None:
        """Return what has changed since `epoch`; None: too much or too long ago to tell, `load` again.

        So it is where the connection is another one than at the last load: a Redis that took over the name may never
        have had the last changes, and count others by the same epochs. Raises KafkaError, StorageUnavailableError.
        """
        feed = self._keys.topic_changes
        newest, dropped, changed = self._transaction(
            ("ZREVRANGE", feed, 0, 0, "WITHSCORES"),
            ("ZSCORE", feed, ""),
            ("ZRANGEBYSCORE", feed, f"({epoch}", "+inf"),
        )
        if not isinstance(newest, list) or not isinstance(changed, list):
            raise self._malformed("the answer")
        now = self._epoch(newest)
        if self._loaded_over not in (None, self._redis.connections):
            return None
        # An epoch from the future: the feed was lost or restored from an older copy.
        if now < epoch or (dropped is not None and self._int(dropped) > epoch):
            return None
        if not changed:
            return Changes(now, [], [])
        names = cast("list[bytes]", changed)
        rows = value_of(self._call("HMGET", self._keys.topics, *names))
        if not isinstance(rows, list):
            raise self._malformed("the answer")
        upserts, deletions = [], []
        for name, text in zip(names, cast("list[bytes | None]", rows), strict=True):
            row = None if text is None else self._row(name, text)
            if row is None:
                deletions.append(name.decode("utf-8", "backslashreplace"))
            else:
                upserts.append(row)
        return Changes(now, upserts, deletions)

    def _row(self, name: bytes, text: bytes) -> TopicRow | None:
        return topic_rows.decode(self._keys.topics, name, text)

    def _run(self, script: scripts.Script, keys: list[str], args: list[Arg]) -> Reply:
        try:
            return self._redis.script(script, keys, args)
        except RespError as error:
            raise self._refused(error) from error

    def _call(self, *command: Arg) -> Reply:
        try:
            return self._redis.call(*command)
        except RespError as error:
            raise self._refused(error) from error

    def _transaction(self, *commands: tuple[Arg, ...]) -> list[Reply]:
        try:
            return [value_of(reply) for reply in self._redis.transaction(commands)]
        except RespError as error:
            raise self._refused(error) from error

    def _epoch(self, newest: list[Reply]) -> int:
        return self._int(newest[1]) if newest else 0

    def _int(self, reply: Reply) -> int:
        try:
            return int(cast("bytes", reply))
        except (ValueError, TypeError) as error:
            raise self._malformed("a number") from error

    def _refused(self, error: RespError) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._keys.topics}: Redis answered {error}")

    def _malformed(self, what: str) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._keys.topics}: {what} is malformed")


def _streams(row: TopicRow) -> str:
    """Say what is to become of streams that are there already: entries of others are no records in format `batch`."""
    return "refuse" if row.configs.get("storage.format") == "batch" else "adopt"
