"""The deletion of topics in Redis: in one script if they are small, or else marked first and then deleted in steps.

A topic that is marked is gone for clients: no request finds it, and its logs refuse appends. Every step names the topic
id that it deletes, so it may run twice, in two processes at once, or long after a topic of the same name was created.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import cast

import msgspec

from korvet.cluster.rows import CHANGES_MAX
from korvet.errors import ErrorCode, KafkaError
from korvet.redis import scripts
from korvet.redis.client import Redis, ScriptCall
from korvet.redis.connection import Arg
from korvet.redis.keys import Keys, decode_group_id
from korvet.redis.replies import Reply, errors_about, listed, malformed
from korvet.topics.types import TopicRow, decode, encode

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
"""Entries that one script frees: some 0.5 ms of Redis if they are small."""

_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of them: some 0.5 ms of Redis if they are large (loadtest/micro/trim.py)."""

_GROUPS_PER_PAGE = 500
_GROUPS_PER_STEP = 20
_ROWS_PER_GROUP = 100
"""Rows of a group that a step reads: all groups of a step together cost about 1 ms of Redis."""

_ATTEMPTS_MAX = 5
"""Tries of a deletion while the row changes under it."""


class TopicDeletion:
    """Deletes topics of one namespace.

    Every method raises KafkaError KAFKA_STORAGE_ERROR and StorageUnavailableError.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._registry = keys.topics

    def delete(self, name: str, topic_id: str) -> TopicRow | None:
        """Delete a topic with its records, side keys, Redis groups and the offsets committed for it.

        Returns None if one script has deleted all of it. If that would block Redis for long, the topic is only
        marked and its marked row returned: `steps` does the rest. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION (no such
        topic, or of another id).
        """
        for _ in range(_ATTEMPTS_MAX):
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
            marked = msgspec.structs.replace(row, state="deleting")
            if self._mark(marked, text, encode(marked), range(min(row.partitions, _FENCED_PER_STEP))):
                return marked
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._registry}: the row of {name} keeps changing")

    def steps(self, row: TopicRow) -> Iterator[None]:
        """Delete the rest of a topic whose row is marked, one bounded step before each yield.

        If another process completes the deletion meanwhile, there is nothing left to do.
        """
        text = self._text(row.name)
        if text is None or self._row(row.name, text) != row:
            return
        # From the beginning: the process that marked the row may have died before all partitions were fenced.
        for first in range(0, row.partitions, _FENCED_PER_STEP):
            fenced = range(first, min(first + _FENCED_PER_STEP, row.partitions))
            if not self._mark(row, text, text, fenced):
                return
            yield
        first = 0
        while first < row.partitions:
            first += self._clear(row, range(first, min(first + _CLEARED_PER_STEP, row.partitions)))
            yield
        for page in self._redis.scan_sorted_set(self._keys.groups, _GROUPS_PER_PAGE):
            yield from self._forget(row.id, [self._offsets_of(group) for group in page])
        args: list[Arg] = [row.name, text, self._keys.topics_channel, CHANGES_MAX]
        self._run(_REMOVE, [self._keys.topics, self._keys.topic_changes], args)
        yield

    def _delete_at_once(self, row: TopicRow, groups: list[str]) -> bool:
        """Return whether all is deleted; it is not if the number of partitions is another one by now."""
        names = self._keys
        keys = [names.topics, names.topic_changes]
        args: list[Arg] = [row.name, row.id, names.topics_channel, CHANGES_MAX, len(groups)]
        for index in range(row.partitions):
            of = (row.name, index)
            keys += (names.stream(*of), names.state(*of), *side_keys(names, *of))
            args.append(names.append_channel(*of))
        match self._run(_DELETE, keys + groups, args):
            case [int() as done, bytes()]:
                return done == 1
        raise malformed(names.topics, "the reply of lua/topic/delete.lua")

    def _mark(self, row: TopicRow, text: bytes, marked: bytes, partitions: range) -> bool:
        """Return whether the row with this text is marked now, and the partitions fenced."""
        states = [self._keys.state(row.name, index) for index in partitions]
        keys = [self._keys.topics, self._keys.topic_changes, *states]
        args: list[Arg] = [row.name, row.id, text, marked, self._keys.topics_channel, CHANGES_MAX]
        return self._run(_MARK, keys, args) == 1

    def _clear(self, row: TopicRow, partitions: range) -> int:
        """Return how many of the partitions, from the first on, are deleted completely."""
        names = self._keys
        keys: list[str] = []
        for index in partitions:
            of = (row.name, index)
            keys += (names.state(*of), names.stream(*of), *side_keys(names, *of))
        channels = (names.append_channel(row.name, index) for index in partitions)
        finished = self._run(_CLEAR, keys, [row.id, _ENTRIES_MAX, _BYTES_MAX, *channels])
        if not isinstance(finished, int):
            raise malformed(names.topics, "the reply of lua/topic/clear.lua")
        return finished

    def _holds_little(self, row: TopicRow) -> bool:
        """Return whether one script may free all that the topic's logs hold."""
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
            # A key of another type is no log, and is deleted as it is.
            if isinstance(reply, int):
                entries += reply
            elif isinstance(reply, list):
                appended, trimmed = (_number(each) for each in reply)
                counted += max(appended - trimmed, 0)
        return entries <= _ENTRIES_MAX and counted <= _BYTES_MAX

    def _forget(self, topic_id: str, groups: list[str]) -> Iterator[None]:
        """Delete the offsets committed for the topic from these keys."""
        waiting = iter([(key, "0") for key in groups])
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
        """Return the keys of the groups' committed offsets; None if there are more than `most`."""
        [reply] = self._redis.pipeline([("ZRANGE", self._keys.groups, 0, most)])
        names = cast("list[bytes]", listed(self._keys.groups, reply))
        if len(names) > most:
            return None
        return [self._offsets_of(name) for name in names]

    def _offsets_of(self, group: bytes) -> str:
        return self._keys.group_offsets(decode_group_id(group.decode("utf-8", "replace")))

    def _text(self, name: str) -> bytes | None:
        """Return the row as it is in the registry."""
        with errors_about(self._registry):
            return cast("bytes | None", self._redis.call("HGET", self._registry, name))

    def _row(self, name: str, text: bytes) -> TopicRow:
        row = decode(self._registry, name.encode(), text)
        if row is None:
            raise malformed(self._registry, f"the row of {name}")
        return row

    def _run(self, script: scripts.Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        with errors_about(self._registry):
            return self._redis.script(script, keys, args)


def side_keys(names: Keys, topic: str, index: int) -> tuple[str, ...]:
    """Return the keys of a partition besides its stream and its state, as the scripts take them."""
    clean = (names.clean(topic, index, which) for which in (0, 1))
    return (names.producers(topic, index), names.index(topic, index), names.moving(topic, index), *clean)


def _number(text: Reply) -> int:
    """Return a counter of the state, 0 for another text."""
    return int(text) if isinstance(text, bytes) and text.isdigit() else 0
