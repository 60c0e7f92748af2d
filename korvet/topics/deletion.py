"""The deletion of topics in Redis: marked and fenced first, and then deleted in steps.

A topic that is marked is gone for clients: no request finds it. Before the deletion is answered its logs are fenced,
and refuse appends. Every step names the topic id that it deletes, so it may run twice, in two processes at once, or
long after a topic of the same name was created. It keeps to one slot of Redis Cluster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import cast

import msgspec

from korvet.errors import ErrorCode, KafkaError
from korvet.redis import scripts
from korvet.redis.client import Redis, ScriptCall
from korvet.redis.keys import Keys, decode_group_id
from korvet.redis.replies import Reply, checked, listed, malformed
from korvet.topics.rows import RegistryRows
from korvet.topics.types import TopicRow, decode, encode, unclaimed
from korvet.turns import in_parts

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


class TopicDeletion:
    """Deletes topics of one namespace.

    Every method raises KafkaError KAFKA_STORAGE_ERROR and StorageUnavailableError.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._registry = keys.topics
        self._rows = RegistryRows(redis, keys)

    def delete(self, name: str, topic_id: str) -> Iterator[None]:
        """Mark a topic as deleted and fence its logs; returns the steps that delete the rest.

        Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION (no such topic, or of another id). If Redis goes away meanwhile the
        topic may be gone for clients already.
        """
        for _ in range(_ATTEMPTS_MAX):
            text = self._rows.text(name)
            row = None if text is None else self._decoded(name, text)
            if text is None or row is None or row.id != topic_id or row.state != "live":
                message = f"there is no topic {name} of id {topic_id}"
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
            marked = self.mark(row, text)
            if marked is not None:
                waiting: list[int] = []
                for some in in_parts(range(_count(marked)), _FENCED_PER_STEP):
                    waiting += self._clear(marked, some, 0, 0)
                return self._steps(marked, encode(marked), waiting)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._registry}: the row of {name} keeps changing")

    def mark(self, row: TopicRow, text: bytes) -> TopicRow | None:
        """Mark a topic as deleted; returns its row, None if the one that was read as `text` has changed."""
        marked = unclaimed(msgspec.structs.replace(row, state="deleting"))
        return marked if self._rows.replace(row.name, text, marked) else None

    def steps(self, row: TopicRow) -> Iterator[None]:
        """Delete the rest of a topic whose row is marked, one bounded step before each yield.

        If another process completes the deletion meanwhile, there is nothing left to do.
        """
        text = self._rows.text(row.name)
        if text is not None and self._decoded(row.name, text) == row:
            # From the beginning: the process that marked the row may have died before all partitions were fenced.
            yield from self._steps(row, text, range(_count(row)))

    def _steps(self, row: TopicRow, text: bytes, partitions: Sequence[int]) -> Iterator[None]:
        yield from self.clear(row, partitions)
        streams = [self._keys.stream(row.name, index) for index in range(_count(row))]
        for page in self._redis.scan_sorted_set(self._keys.groups, _GROUPS_PER_PAGE):
            yield from self._forget(row.id, streams, [self._offsets_of(group) for group in page])
        self._rows.replace(row.name, text, None)
        yield

    def clear(self, row: TopicRow, partitions: Sequence[int]) -> Iterator[None]:
        """Delete partitions of a deleted topic by turns, one bounded step before each yield."""
        waiting = deque(partitions)
        while waiting:
            some = [waiting.popleft() for _ in range(min(len(waiting), _CLEARED_PER_STEP))]
            waiting += self._clear(row, some, _ENTRIES_MAX // len(some), _BYTES_MAX // len(some))
            yield

    def _clear(self, row: TopicRow, indexes: Sequence[int], entries: int, size: int) -> list[int]:
        """Fence partitions and free these entries and bytes of each at most; returns those that are not empty."""
        names = self._keys
        calls: list[ScriptCall] = []
        for index in indexes:
            of = (row.name, index, row.tag(index))
            keys = (names.state(*of), names.stream(*of), *side_keys(names, *of))
            calls.append((_CLEAR, keys, [row.id, entries, size, names.append_channel(*of)]))
        replies = self._redis.scripts(calls)
        states = [keys[0] for _, keys, _ in calls]
        done = [checked(str(state), reply) for state, reply in zip(states, replies, strict=True)]
        return [index for index, finished in zip(indexes, done, strict=True) if finished != 1]

    def _forget(self, topic_id: str, streams: Sequence[str], groups: list[tuple[str, str]]) -> Iterator[None]:
        """Delete the offsets committed for the topic, or pending, from these keys of groups."""
        nothing: list[Reply] = [None] * len(streams)
        if len(streams) <= _FIELDS_PER_STEP:
            found: list[tuple[str, str]] = []
            for page in in_parts(groups, _FIELDS_PER_STEP // len(streams)):
                replies = self._redis.pipeline(
                    [
                        command
                        for offsets, pending in page
                        for command in (("HMGET", offsets, *streams), ("EXISTS", pending))
                    ]
                )
                found += [
                    keys
                    for keys, rows, is_pending in zip(page, replies[::2], replies[1::2], strict=True)
                    if rows != nothing or is_pending != 0
                ]
                yield
            groups = found
        waiting = iter([(keys, "0") for keys in groups])
        unfinished: list[tuple[tuple[str, str], str]] = []
        while some := [*unfinished, *islice(waiting, _GROUPS_PER_STEP - len(unfinished))]:
            calls: list[ScriptCall] = [
                (_FORGET, keys, [topic_id, cursor, _ROWS_PER_GROUP]) for keys, cursor in some
            ]
            replies = self._redis.scripts(calls)
            unfinished = []
            for (keys, _), reply in zip(some, replies, strict=True):
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


def _count(row: TopicRow) -> int:
    """Return how many partitions may exist."""
    return max(row.partitions, row.growing)


def side_keys(names: Keys, topic: str, index: int, tag: str = "") -> tuple[str, ...]:
    """Return the keys of a partition besides its stream and its state, as the scripts take them."""
    of = (topic, index, tag)
    clean = (names.clean(topic, index, which, tag) for which in (0, 1))
    others = (names.open_transactions(*of), names.aborted(*of), names.share_groups(*of))
    return (names.producers(*of), names.index(*of), names.moving(*of), *clean, *others)
