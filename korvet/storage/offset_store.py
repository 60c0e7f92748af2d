"""Committed offsets in Redis: what a group has committed, and its commits.

Knows the hash of offsets, its rows and lua/group/commit.lua; nothing of messages or of what a group may commit.
A row carries the id of the topic that it speaks of. It is no commit where the partition's state, the fence of its log,
has another: offsets of a topic that was deleted never come to count for one of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import msgspec

from korvet.errors import KafkaError
from korvet.storage import log_replies, scripts
from korvet.storage.keys import Keys, group_encoded
from korvet.storage.log_types import Partition
from korvet.storage.replies import Reply, RespError
from korvet.storage.resp import Arg, Redis

_COMMIT = scripts.get("group/commit")
_BEGINNING = "0-0"


class Committer(NamedTuple):
    """Who commits: a member of the group in its generation, or nobody's member (generation -1, empty ids)."""

    group: str
    generation: int = -1
    member: str = ""
    instance: str = ""


class Commit(NamedTuple):
    """The offset of the next record to be read, the leader epoch of the last one read (-1: unknown), and a note.

    `retention_ms` is for how long the client wants it kept from now on, None: as the broker does.
    """

    partition: Partition
    offset: int
    epoch: int
    metadata: str
    retention_ms: int | None = None


class Committed(msgspec.Struct, frozen=True):
    """A row: what was committed when (ms, Redis' clock), and of which topic; see Commit for the rest."""

    offset: int
    epoch: int
    metadata: str
    topic_id: str
    ms: int
    retention_ms: int | None = None


class Place(NamedTuple):
    """A partition of whatever topic has that name now."""

    topic: str
    partition: int


class _Row(msgspec.Struct, frozen=True, omit_defaults=True):
    offset: int
    epoch: int
    metadata: str
    topic_id: str
    retention_ms: int | None = None


class OffsetStore:
    """Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, redis: Redis, keys: Keys, *, mirror: bool) -> None:
        """`mirror` is group.mirror: whether commits move Redis consumer groups."""
        self._redis = redis
        self._keys = keys
        self._mirror = "mirror" if mirror else "hide"

    def commit(self, by: Committer, commits: Sequence[Commit]) -> list[bool]:
        """Commit at once; tells of each whether it was done: not where the topic id is not that of the log.

        Raises KafkaError, and nothing is done: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        REBALANCE_IN_PROGRESS, GROUP_ID_NOT_FOUND (a generation of a group that is not there), KAFKA_STORAGE_ERROR.
        """
        offsets = self._keys.group_offsets(by.group)
        keys = [*self._keys.membership_of(by.group), self._keys.groups, offsets]
        args: list[Arg] = [
            by.group,
            group_encoded(by.group),
            by.generation,
            by.member,
            by.instance,
            self._mirror,
        ]
        for partition, offset, epoch, metadata, retention_ms in commits:
            keys += (partition.stream, partition.state)
            row = msgspec.json.encode(_Row(offset, epoch, metadata, partition.topic_id, retention_ms))
            # The time stands last, for the script to write it: only Redis knows it.
            args += (partition.topic_id, row[:-1] + b',"ms":', _read_up_to(partition, offset))
        [reply] = self._redis.scripts([(_COMMIT, keys, args)])
        return [outcome == 1 for outcome in log_replies.listed(offsets, reply)]

    def fetch(self, group: str, places: Sequence[Place]) -> list[Committed | None]:
        """Return what the group has committed for each; None: nothing. Raises KafkaError KAFKA_STORAGE_ERROR."""
        if not places:
            return []
        key = self._keys.group_offsets(group)
        fields = [self._keys.stream(*place) for place in places]
        replies = self._redis.pipeline([("HMGET", key, *fields), *map(self._topic_of, places)])
        texts = cast("list[bytes | None]", log_replies.listed(key, replies[0]))
        rows = [self._row(key, text) for text in texts]
        topics = replies[1:]
        return [self._counted(*each) for each in zip(places, rows, topics, strict=True)]

    def fetch_all(self, group: str) -> dict[Place, Committed]:
        """Return all that the group has committed. Raises KafkaError KAFKA_STORAGE_ERROR."""
        rows = self.rows(group)
        topics = self._redis.pipeline([self._topic_of(place) for place in rows])
        counted = {
            place: self._counted(place, row, topic)
            for (place, row), topic in zip(rows.items(), topics, strict=True)
        }
        return {place: row for place, row in counted.items() if row is not None}

    def rows(self, group: str) -> dict[Place, Committed]:
        """Return every row, also of topics that are gone. Raises KafkaError KAFKA_STORAGE_ERROR."""
        key = self._keys.group_offsets(group)
        [reply] = self._redis.pipeline([("HGETALL", key)])
        flat = cast("list[bytes]", log_replies.listed(key, reply))
        found: Mapping[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
        rows = ((self._keys.place(field), self._row(key, text)) for field, text in found.items())
        return {Place(*place): row for place, row in rows if place is not None and row is not None}

    def group_exists(self, group: str) -> bool:
        """Tell whether there is such a group."""
        return self._redis.call("EXISTS", self._keys.group_state(group)) == 1

    def _topic_of(self, place: Place) -> tuple[str, ...]:
        return ("HGET", self._keys.state(*place), "topic")

    def _counted(self, place: Place, row: Committed | None, topic: Reply) -> Committed | None:
        """Return the row, if the partition is still of the topic that it speaks of."""
        if isinstance(topic, KafkaError):
            raise topic
        if isinstance(topic, RespError):
            raise log_replies.refused(self._keys.state(*place), topic)
        return row if row is not None and topic == row.topic_id.encode() else None

    @staticmethod
    def _row(key: str, text: bytes | None) -> Committed | None:
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=Committed)
        except msgspec.DecodeError as error:
            raise log_replies.malformed(key, "a committed offset") from error


def _read_up_to(partition: Partition, offset: int) -> str:
    """Return the id of the last entry that lies before an offset, as a Redis group has it."""
    if offset <= 0:
        return _BEGINNING
    if partition.format == "batch":
        return f"{offset}-0"
    return f"{offset - 1 >> partition.bits}-{offset - 1 & (1 << partition.bits) - 1}"
