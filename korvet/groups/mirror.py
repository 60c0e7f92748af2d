"""Commits as users of Redis see them: consumer groups of the streams, which have read up to the committed offsets.

They are advice. Those of many commits are sent together, some 100 ms later, the last one alone of each group and
stream. What a stream or a full memory refuses is not sent again before the next commit.

A late position may create the Redis group of an offset that was deleted meanwhile. So a worker that creates
one reads the offset afterwards, and a deletion of offsets deletes the Redis groups before and after: the later of the
two finds what the other has done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from korvet.clock import CLOCK, Clock
from korvet.groups.deferred import Deferred
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import RespError
from korvet.topics.entry_ids import id_of_end
from korvet.topics.types import Partition
from korvet.turns import in_parts

_AT_ONCE = 1000
"""Commands of one round trip: a millisecond or two of Redis."""


class _Position(NamedTuple):
    """Where a Redis group is to continue; `field` is that of the committed offset."""

    group: str
    stream: str
    field: str
    entry_id: str


class CommitMirror:
    """The Redis groups of one worker's commits; `enabled` is group.mirror."""

    def __init__(self, redis: Redis, keys: Keys, *, enabled: bool, clock: Clock = CLOCK) -> None:
        self._redis = redis
        self._keys = keys
        self._enabled = enabled
        self._moved: Deferred[tuple[str, str], tuple[Partition, int]] = Deferred(self._send, clock=clock)

    def move(self, group: str, offsets: Iterable[tuple[Partition, int]]) -> None:
        """Have the Redis groups continue at offsets, soon."""
        if self._enabled:
            self._moved.put({(group, to[0].stream): to for to in offsets})

    def flush(self) -> None:
        """Send what `move` has gathered. Redis may be away."""
        self._moved.flush()

    def destroy(self, group: str, streams: Sequence[str]) -> None:
        """Delete the Redis groups of these streams; raises StorageUnavailableError."""
        if self._enabled and streams:
            self._redis.announce([self._keys.group_offsets(group), *streams])
            self._moved.flush()
            for chunk in in_parts(streams, _AT_ONCE):
                self._redis.pipeline([("XGROUP", "DESTROY", stream, group) for stream in chunk])

    def _send(self, moved: dict[tuple[str, str], tuple[Partition, int]]) -> None:
        positions = [
            _Position(*at, self._keys.stream(to[0].topic, to[0].index), id_of_end(to[1], to[0].bits))
            for at, to in moved.items()
        ]
        for chunk in in_parts(positions, _AT_ONCE):
            replies = self._redis.pipeline(
                [("XGROUP", "SETID", item.stream, item.group, item.entry_id) for item in chunk]
            )
            missing = [
                item
                for item, reply in zip(chunk, replies, strict=True)
                if isinstance(reply, RespError) and reply.name == "NOGROUP"
            ]
            if missing:
                self._create(missing)

    def _create(self, missing: Sequence[_Position]) -> None:
        self._redis.pipeline(
            [("XGROUP", "CREATE", package.stream, package.group, package.entry_id) for package in missing]
        )
        result = self._redis.pipeline(
            [("HEXISTS", self._keys.group_offsets(package.group), package.field) for package in missing]
        )
        gone = [item for item, exists in zip(missing, result, strict=True) if exists == 0]
        self._redis.pipeline([("XGROUP", "DESTROY", item.stream, item.group) for item in gone])
