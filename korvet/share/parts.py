"""The partitions of a share session, and what is known of each since it was last looked at."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from korvet.cluster.group_configs import SharePolicy
from korvet.errors import KafkaError
from korvet.protocol.wire import Buffer
from korvet.redis.pubsub import Watch
from korvet.share.types import AcquiredRange
from korvet.topics.registry import Topic
from korvet.topics.types import Partition, TopicRef


class ShareAsk(NamedTuple):
    """What a member wants: up to `records_max` records, more only to take batches whole unless `exact`.

    Unless `exact`, ranges of acquired records are cut after at least `batch_size` of them. With `committed` it gets
    nothing of transactions that are open, or were aborted.
    """

    group: str
    member: str
    records_max: int
    batch_size: int
    exact: bool
    policy: SharePolicy
    committed: bool


class ShareResult(msgspec.Struct):
    """What a member gets of one partition: an error, or batches in pieces, and what of them it has acquired."""

    error: KafkaError | None = None
    chunks: list[Buffer] = []
    acquired: list[AcquiredRange] = []
    size_bytes: int = 0
    record_count: int = 0


class SharePart:
    """A partition of a session.

    `due`: look at it. If not, nothing was available, and changes are announced, with two exceptions: a lock that ends
    at `wake_at`, and entries of other Redis clients. For these the log, which ended at `end`, is searched after a
    wait, and read again at `search_at` (monotonic time of the clock). `blocked`: too many records are in flight to
    acquire more. `withheld`: the log goes on past the high watermark. `answered`: the partition
    was in a response of the session; `failed`: in the last of these with an error.
    """

    __slots__ = (
        "answered",
        "blocked",
        "due",
        "end",
        "failed",
        "index",
        "partition",
        "place",
        "ref",
        "search_at",
        "topic",
        "wake_at",
        "withheld",
    )

    def __init__(self, ref: TopicRef, index: int, place: int) -> None:
        self.ref, self.index, self.place = ref, index, place
        self.topic: Topic | None = None
        self.partition: Partition | None = None
        self.due = True
        self.blocked = self.withheld = self.answered = self.failed = False
        self.end = -1
        self.wake_at = self.search_at = math.inf

    def resolved(self) -> tuple[Topic, Partition]:
        assert self.topic is not None  # noqa: S101 - for the type checker
        assert self.partition is not None  # noqa: S101 - as above
        return self.topic, self.partition


class ShareSet:
    """The partitions of a session by place, and the watch on them; those that had records come last."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.parts: dict[int, SharePart] = {}
        self.closed = False

    def use(self, part: SharePart, topic: Topic, partition: Partition) -> None:
        before = part.partition
        part.topic = topic
        if before is partition:
            return
        part.partition, part.due, part.blocked, part.end = partition, True, False, -1
        if before is None or before.channel != partition.channel:
            if before is not None:
                self.watch.remove(part.place)
            self.watch.add(part.place, partition.channel)

    def forget(self, part: SharePart) -> None:
        if part.partition is not None:
            self.watch.remove(part.place)
        del self.parts[part.place]

    def close(self) -> None:
        """Stop listening; a fetch that is under way acquires nothing more."""
        self.closed = True
        self.watch.wake_all()
        self.watch.close()

    def wait(self, seconds: float) -> None:
        self._note(self.watch.wait(seconds))

    def _note(self, woken: Iterable[int]) -> None:
        for place in woken:
            if (part := self.parts.get(place)) is not None:
                part.due = True

    def due(self, places: Collection[int], now: float, *, all_of_them: bool = False) -> list[SharePart]:
        """Return which of those at `places` are to be looked at by now, in their order."""
        self._note(self.watch.take())
        due = []
        for place, part in self.parts.items():
            if place in places:
                part.due = part.due or min(part.wake_at, part.search_at) <= now
                if part.due or all_of_them:
                    due.append(part)
        return due
