"""The deletion of topics in Redis: at once where that is little, else marked first and then removed step by step.

Knows the scripts that delete, and how much each of them may do; nothing of who wants a topic deleted. A topic that is
marked is gone for everybody: who asks for it does not find it, and its logs are fenced. Every step says whose it wants
to remove, so it may be done twice, by two at once, or long after the topic was made anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import cast

import msgspec

from korvet.cluster.dynamic_settings import CHANGES_MAX
from korvet.errors import ErrorCode, KafkaError
from korvet.groups.store import GroupList
from korvet.redis import scripts
from korvet.redis.client import Redis, ScriptCall
from korvet.redis.connection import Arg
from korvet.redis.keys import Keys, decode_group_id
from korvet.redis.replies import Reply, RespError, listed, malformed, refused, value_of
from korvet.topics import types as topic_rows
from korvet.topics.types import TopicRow

_DELETE = scripts.get("topic/delete")
_MARK = scripts.get("topic/mark")
_CLEAR = scripts.get("topic/clear")
_FORGET = scripts.get("topic/forget")
_REMOVE = scripts.get("topic/remove")

AT_ONCE_PARTITIONS_MAX = 100
"""Partitions of a topic that one script deletes: some 20 us of Redis each."""

AT_ONCE_OFFSETS_MAX = 5_000
"""Groups times partitions whose committed offsets one script removes: a few ms of Redis."""

_FENCED_PER_STEP = 500
"""Partitions: some 4 us of Redis each."""

_CLEARED_PER_STEP = 20
"""Partitions: some 10 us of Redis each, beside what they hold."""

_ENTRIES_MAX = 20_000
"""Entries that one script gives back: some 0.5 ms of Redis where they are small."""

_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of them: some 0.5 ms of Redis where they are large (loadtest/micro/trim.py)."""

_GROUPS_PER_STEP = 20
_ROWS_PER_GROUP = 100
"""Rows of a group that a step looks at: all groups of a step together cost about 1 ms of Redis."""

_ROUNDS_MAX = 5
"""Tries of a deletion while the row changes under it."""


class TopicRemoval:
    """What is deleted of one namespace. Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._groups = GroupList(redis, keys)

    def delete(self, name: str, topic_id: str) -> TopicRow | None:
        """Delete a topic, with records, side keys, Redis groups and what groups have committed of it.

        Returns None where all of it is gone, by one script. Where that would keep Redis from others for long, the topic
        is marked only and its marked row returned: `steps` is to do the rest. Raises KafkaError:
        UNKNOWN_TOPIC_OR_PARTITION (no such topic, or of another id), KAFKA_STORAGE_ERROR.
        """
        for _ in range(_ROUNDS_MAX):
            text = self._text(name)
            row = None if text is None else self._row(name, text)
            if text is None or row is None or row.id != topic_id or row.state != "live":
                message = f"there is no topic {name} of id {topic_id}"
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
            groups = self._few_groups(AT_ONCE_OFFSETS_MAX // row.partitions)
            if row.partitions <= AT_ONCE_PARTITIONS_MAX and groups is not None and self._holds_little(row):
                if self._delete_at_once(row, groups):
                    return None
                continue
            gone = msgspec.structs.replace(row, state="deleting")
            if self._mark(gone, text, topic_rows.encode(gone), range(min(row.partitions, _FENCED_PER_STEP))):
                return gone
        message = f"{self._keys.topics}: the row of {name} changes all the time"
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    def steps(self, row: TopicRow) -> Iterator[None]:
        """Remove what is left of a topic whose row is marked, one bounded step before each yield.

        Where somebody else has removed it meanwhile there is nothing left to do. Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        text = self._text(row.name)
        if text is None or self._row(row.name, text) != row:
            return
        # From the beginning: whoever marked the row may have died before all of it was fenced.
        for some in _pieces(row.partitions, _FENCED_PER_STEP):
            if not self._mark(row, text, text, some):
                return
            yield
        first = 0
        while first < row.partitions:
            first += self._clear(row, range(first, min(first + _CLEARED_PER_STEP, row.partitions)))
            yield
        for names in self._groups.names():
            yield from self._forget(row.id, names)
        args: list[Arg] = [row.name, text, self._keys.topics_channel, CHANGES_MAX]
        self._run(_REMOVE, [self._keys.topics, self._keys.topic_changes], args)
        yield

    def _delete_at_once(self, row: TopicRow, groups: list[str]) -> bool:
        """Return whether all is gone; not so where the number of partitions is another one by now."""
        names = self._keys
        keys = [names.topics, names.topic_changes]
        args: list[Arg] = [row.name, row.id, names.topics_channel, CHANGES_MAX, len(groups)]
        for index in range(row.partitions):
            of = (row.name, index)
            keys += (names.stream(*of), names.state(*of), *self._side_keys(*of))
            args.append(names.append_channel(*of))
        match self._run(_DELETE, keys + groups, args):
            case [int() as done, bytes()]:
                return done == 1
        raise malformed(names.topics, "the answer of lua/topic/delete.lua")

    def _mark(self, row: TopicRow, text: bytes, marked: bytes, partitions: range) -> bool:
        """Return whether the row that reads `text` is marked, and the partitions fenced."""
        states = [self._keys.state(row.name, index) for index in partitions]
        keys = [self._keys.topics, self._keys.topic_changes, *states]
        args: list[Arg] = [row.name, row.id, text, marked, self._keys.topics_channel, CHANGES_MAX]
        return self._run(_MARK, keys, args) == 1

    def _clear(self, row: TopicRow, partitions: range) -> int:
        """Return how many of the partitions, from the first on, nothing is left of."""
        names = self._keys
        keys: list[str] = []
        for index in partitions:
            of = (row.name, index)
            keys += (names.state(*of), names.stream(*of), *self._side_keys(*of))
        channels = (names.append_channel(row.name, index) for index in partitions)
        finished = self._run(_CLEAR, keys, [row.id, _ENTRIES_MAX, _BYTES_MAX, *channels])
        if not isinstance(finished, int):
            raise malformed(names.topics, "the answer of lua/topic/clear.lua")
        return finished

    def _holds_little(self, row: TopicRow) -> bool:
        """Tell whether one script may give back all that the topic's logs hold."""
        names = self._keys
        commands: list[tuple[str, ...]] = []
        for index in range(row.partitions):
            of = (row.name, index)
            commands.append(("HMGET", names.state(*of), "bytes", "start_bytes"))
            streams = (names.stream(*of), names.moving(*of), names.clean(*of, 0), names.clean(*of, 1))
            commands += [("XLEN", stream) for stream in streams]
        entries = counted = 0
        for reply in self._redis.pipeline(commands):
            if isinstance(reply, KafkaError):
                raise reply
            # What is of another type is no log, and goes as it is.
            if isinstance(reply, int):
                entries += reply
            elif isinstance(reply, list):
                held, gone = (_number(each) for each in reply)
                counted += max(held - gone, 0)
        return entries <= _ENTRIES_MAX and counted <= _BYTES_MAX

    def _forget(self, topic_id: str, groups: list[str]) -> Iterator[None]:
        waiting = iter([(self._keys.group_offsets(group), "0") for group in groups])
        unfinished: list[tuple[str, str]] = []
        while some := [*unfinished, *islice(waiting, _GROUPS_PER_STEP - len(unfinished))]:
            calls: list[ScriptCall] = [
                (_FORGET, (key,), [topic_id, cursor, _ROWS_PER_GROUP]) for key, cursor in some
            ]
            replies = self._redis.scripts(calls)
            unfinished = []
            for (key, _), reply in zip(some, replies, strict=True):
                cursor, _ = cast("tuple[bytes, int]", listed(key, reply))
                if cursor != b"0":
                    unfinished.append((key, cursor.decode()))
            yield

    def _few_groups(self, most: int) -> list[str] | None:
        """Return where the groups keep their committed offsets; None where they are more than `most`."""
        [reply] = self._redis.pipeline([("ZRANGE", self._keys.groups, 0, most)])
        names = cast("list[bytes]", listed(self._keys.groups, reply))
        if len(names) > most:
            return None
        return [self._keys.group_offsets(decode_group_id(name.decode("utf-8", "replace"))) for name in names]

    def _side_keys(self, topic: str, index: int) -> tuple[str, ...]:
        names = self._keys
        return (
            names.producers(topic, index),
            names.index(topic, index),
            names.moving(topic, index),
            names.clean(topic, index, 0),
            names.clean(topic, index, 1),
        )

    def _text(self, name: str) -> bytes | None:
        """Return the row as it stands in the registry."""
        registry = self._keys.topics
        [reply] = self._redis.pipeline([("HGET", registry, name)])
        if isinstance(reply, RespError):
            raise refused(registry, reply)
        return cast("bytes | None", value_of(reply))

    def _row(self, name: str, text: bytes) -> TopicRow:
        row = topic_rows.decode(self._keys.topics, name.encode(), text)
        if row is None:
            raise malformed(self._keys.topics, f"the row of {name}")
        return row

    def _run(self, script: scripts.Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        try:
            return self._redis.script(script, keys, args)
        except RespError as error:
            raise refused(self._keys.topics, error) from error


def _pieces(partitions: int, most: int) -> Iterator[range]:
    """Yield all partitions, at most so many at a time."""
    for first in range(0, partitions, most):
        yield range(first, min(first + most, partitions))


def _number(text: Reply) -> int:
    """Return a counter of the state, 0 for what is none."""
    return int(text) if isinstance(text, bytes) and text.isdigit() else 0
