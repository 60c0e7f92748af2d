"""The deletion of topics in Redis: marked and fenced first, and then deleted in steps.

A topic that is marked is gone for clients: no request finds it. Before the deletion is answered its logs are fenced,
and refuse appends. Every step names the topic id that it deletes, so it may run twice, in two processes at once, or
long after a topic of the same name was created. It keeps to one slot of Redis Cluster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias, cast

import msgspec

from korvet.clock import Clock
from korvet.errors import ErrorCode, KafkaError, or_raise
from korvet.redis import scripts
from korvet.redis.client import Redis, ScriptCall
from korvet.redis.keys import Keys, decode_group_id
from korvet.redis.replies import Reply, listed, malformed, parsed
from korvet.topics.rows import RegistryRows
from korvet.topics.types import TopicRow, decode, encode, unclaimed
from korvet.turns import CALLS_PER_LOOK, give_turn, in_parts

_CLEAR = scripts.get("topic/clear")
_FORGET = scripts.get("topic/forget")

_FENCED_PER_STEP = 100
"""Partitions: some 10 us of Redis each."""

_CLEARED_PER_STEP = 20
"""Partitions: some 10 us of Redis each, beside what they hold."""

_ENTRIES_MAX = 20_000
"""Entries that one step frees: some 0.5 ms of Redis if they are small."""

_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of them: some 0.5 ms of Redis if they are large (loadtest/micro/trim.py)."""

_GROUPS_PER_PAGE = 500
_GROUPS_PER_STEP = 20
_ROWS_PER_GROUP = 100
"""Rows of a group that a step reads: all groups of a step together cost about 1 ms of Redis."""

_FIELDS_PER_STEP = 2_000
"""Rows of groups that are asked for by name, some 0.3 us of Redis each; for a wider topic all rows are read."""

_ATTEMPTS_MAX = 5
"""Tries of a deletion while the row changes under it."""

_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.001, 0.05
"""Between steps of a deletion; shorter pauses are joined."""

_Part: TypeAlias = tuple[TopicRow, int]
_Marked: TypeAlias = tuple[TopicRow, bytes]
"""A row that is marked, and its text in Redis."""


def paced(steps: Iterator[None], clock: Clock) -> Iterator[None]:
    """Yield after each step; Redis then serves others for as long as it served this."""
    busy = 0.0
    while True:
        began = clock.monotonic()
        if next(steps, steps) is steps:
            return
        busy += clock.monotonic() - began
        yield
        if busy > _PAUSE_SECONDS_MIN:
            clock.sleep(min(busy, _PAUSE_SECONDS_MAX))
            busy = 0.0


class TopicDeletion:
    """Deletes topics of one namespace.

    Every method raises KafkaError KAFKA_STORAGE_ERROR and StorageUnavailableError.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._registry = keys.topics
        self._rows = RegistryRows(redis, keys)

    def delete(self, topics: Mapping[str, str]) -> tuple[dict[str, KafkaError], Iterator[None]]:
        """Mark topics as deleted, ids by name, and fence their logs.

        Returns by name what prevented it, and the steps that delete the rest of the other topics. The errors are
        UNKNOWN_TOPIC_OR_PARTITION (no such topic, or of another id), KAFKA_STORAGE_ERROR and StorageUnavailableError,
        after which the topic may be gone for clients already.
        """
        errors: dict[str, KafkaError] = {}
        marked: list[_Marked] = []
        names = list(topics)
        for _ in range(_ATTEMPTS_MAX):
            names = self._mark_all(names, topics, marked, errors)
        for name in names:
            message = f"{self._registry}: the row of {name} keeps changing"
            errors[name] = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
        waiting: list[_Part] = []
        parts = _parts(marked)
        while chunk := list(islice(parts, _FENCED_PER_STEP)):
            give_turn(CALLS_PER_LOOK)
            for part, done in zip(chunk, self._clear(chunk, 0, 0), strict=True):
                if isinstance(done, KafkaError):
                    errors.setdefault(part[0].name, done)
                elif not done:
                    waiting.append(part)
        fenced = [(row, text) for row, text in marked if row.name not in errors]
        return errors, self._steps(fenced, [part for part in waiting if part[0].name not in errors])

    def _mark_all(
        self,
        names: Sequence[str],
        topics: Mapping[str, str],
        marked: list[_Marked],
        errors: dict[str, KafkaError],
    ) -> list[str]:
        """Mark topics, add what became of them to `marked` and `errors`; returns those whose rows have changed."""
        rows: list[TopicRow] = []
        changes: list[tuple[str, bytes, TopicRow | None]] = []
        for name, text in zip(names, self._rows.texts(names) if names else (), strict=True):
            row = None if text is None else decode(self._registry, name.encode(), text)
            if text is not None and row is None:
                errors[name] = malformed(self._registry, f"the row of {name}")
            elif text is None or row is None or row.id != topics[name] or row.state != "live":
                message = f"there is no topic {name} of id {topics[name]}"
                errors[name] = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
            else:
                rows.append(_deleting(row))
                changes.append((name, text, rows[-1]))
        changed: list[str] = []
        for row, replaced in zip(rows, self._rows.replace_all(changes), strict=True):
            if isinstance(replaced, KafkaError):
                errors[row.name] = replaced
            elif replaced:
                marked.append((row, encode(row)))
            else:
                changed.append(row.name)
        return changed

    def mark(self, row: TopicRow, text: bytes) -> TopicRow | None:
        """Mark a topic as deleted; returns its row, None if the one that was read as `text` has changed."""
        marked = _deleting(row)
        return marked if self._rows.replace(row.name, text, marked) else None

    def steps(self, row: TopicRow) -> Iterator[None]:
        """Delete the rest of a topic whose row is marked, one bounded step before each yield.

        If another process completes the deletion meanwhile, there is nothing left to do.
        """
        text = self._rows.text(row.name)
        if text is not None and self._decoded(row.name, text) == row:
            # From the beginning: the process that marked the row may have died before all partitions were fenced.
            yield from self._steps([(row, text)], _parts([(row, text)]))

    def _steps(self, marked: Sequence[_Marked], parts: Iterable[_Part]) -> Iterator[None]:
        if not marked:
            return
        yield from self.clear(parts)
        rows = [row for row, _ in marked]
        for page in self._redis.scan_sorted_set(self._keys.groups, _GROUPS_PER_PAGE):
            yield from self._forget(rows, [self._offsets_of(group) for group in page])
        for replaced in self._rows.replace_all([(row.name, text, None) for row, text in marked]):
            or_raise(replaced)
        yield

    def clear(self, parts: Iterable[_Part]) -> Iterator[None]:
        """Delete partitions of deleted topics by turns, one bounded step before each yield."""
        waiting = deque(parts)
        while waiting:
            chunk = [waiting.popleft() for _ in range(min(len(waiting), _CLEARED_PER_STEP))]
            replies = self._clear(chunk, _ENTRIES_MAX // len(chunk), _BYTES_MAX // len(chunk))
            for part, done in zip(chunk, replies, strict=True):
                if not or_raise(done):
                    waiting.append(part)
            yield

    def _clear(self, parts: Sequence[_Part], entries: int, size: int) -> list[bool | KafkaError]:
        """Fence partitions and free these entries and bytes of each at most; returns which are empty."""
        names = self._keys
        calls: list[ScriptCall] = []
        for row, index in parts:
            of = (row.name, index, row.tag(index))
            keys = (names.state(*of), names.stream(*of), *side_keys(names, *of))
            calls.append((_CLEAR, keys, [row.id, entries, size, names.append_channel(*of)]))
        replies = self._redis.scripts(calls)
        return [
            parsed(str(keys[0]), "the reply of lua/topic/clear.lua", reply, bool)
            for (_, keys, _), reply in zip(calls, replies, strict=True)
        ]

    def _forget(self, rows: Sequence[TopicRow], groups: list[tuple[str, str]]) -> Iterator[None]:
        """Delete the offsets committed for topics, or pending, from these keys of groups."""
        ids = [row.id for row in rows]
        count = sum(map(_count, rows))
        nothing: list[Reply] = [None] * count
        if count <= _FIELDS_PER_STEP:
            streams = [self._keys.stream(row.name, index) for row in rows for index in range(_count(row))]
            result: list[tuple[str, str]] = []
            for page in in_parts(groups, _FIELDS_PER_STEP // count):
                replies = self._redis.pipeline(
                    [
                        command
                        for offsets, pending in page
                        for command in (("HMGET", offsets, *streams), ("EXISTS", pending))
                    ]
                )
                result += [
                    keys
                    for keys, rows, is_pending in zip(page, replies[::2], replies[1::2], strict=True)
                    if rows != nothing or is_pending != 0
                ]
                yield
            groups = result
        waiting = iter([(keys, "0") for keys in groups])
        unfinished: list[tuple[tuple[str, str], str]] = []
        while chunk := [*unfinished, *islice(waiting, _GROUPS_PER_STEP - len(unfinished))]:
            calls: list[ScriptCall] = [
                (_FORGET, keys, [cursor, _ROWS_PER_GROUP, *ids]) for keys, cursor in chunk
            ]
            replies = self._redis.scripts(calls)
            unfinished = []
            for (keys, _), reply in zip(chunk, replies, strict=True):
                cursor, _ = cast("tuple[bytes, int]", listed(keys[0], reply))
                if cursor != b"0":
                    unfinished.append((keys, cursor.decode()))
            yield

    def _offsets_of(self, group: bytes) -> tuple[str, str]:
        name = decode_group_id(group.decode("utf-8", "replace"))
        return self._keys.group_offsets(name), self._keys.group_pending(name)

    def _decoded(self, name: str, text: bytes) -> TopicRow:
        row = decode(self._registry, name.encode(), text)
        if row is None:
            raise malformed(self._registry, f"the row of {name}")
        return row


def _deleting(row: TopicRow) -> TopicRow:
    return unclaimed(msgspec.structs.replace(row, state="deleting"))


def _parts(marked: Iterable[_Marked]) -> Iterator[_Part]:
    return ((row, index) for row, _ in marked for index in range(_count(row)))


def _count(row: TopicRow) -> int:
    return max(row.partitions, row.growing)


def side_keys(names: Keys, topic: str, index: int, tag: str = "") -> tuple[str, ...]:
    """Return the keys of a partition besides its stream and its state, as the scripts take them."""
    of = (topic, index, tag)
    clean = (names.clean(topic, index, which, tag) for which in (0, 1))
    others = (names.open_transactions(*of), names.aborted(*of), names.share_groups(*of))
    return (names.index(*of), names.moving(*of), *clean, *others)
