"""Offsets that groups have committed: how they are committed and asked for.

Knows which topics they may be of and what limits they have; nothing of messages. A topic may have been made anew since
this worker last looked: a commit that the partition's log does not know looks again, once.

Committed offsets in Redis: what a group has committed, and its commits.

Knows the hash of offsets, its rows and lua/group/commit.lua; nothing of messages or of what a group may commit.
A row carries the id of the topic that it speaks of. It is no commit where the partition's state, the fence of its log,
has another: offsets of a topic that was deleted never come to count for one of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import msgspec

from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.types import TopicPartition
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.connection import Arg
from korvet.redis.keys import Keys, encode_group_id
from korvet.redis.replies import Reply, RespError, listed, malformed, refused
from korvet.topics.registry import Topic, TopicRegistry, check_name
from korvet.topics.types import Partition, PartitionRef

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
            encode_group_id(by.group),
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
        return [outcome == 1 for outcome in listed(offsets, reply)]

    def fetch(self, group: str, places: Sequence[TopicPartition]) -> list[Committed | None]:
        """Return what the group has committed for each; None: nothing. Raises KafkaError KAFKA_STORAGE_ERROR."""
        if not places:
            return []
        key = self._keys.group_offsets(group)
        fields = [self._keys.stream(*place) for place in places]
        replies = self._redis.pipeline([("HMGET", key, *fields), *map(self._topic_of, places)])
        texts = cast("list[bytes | None]", listed(key, replies[0]))
        rows = [self._row(key, text) for text in texts]
        topics = replies[1:]
        return [self._counted(*each) for each in zip(places, rows, topics, strict=True)]

    def fetch_all(self, group: str) -> dict[TopicPartition, Committed]:
        """Return all that the group has committed. Raises KafkaError KAFKA_STORAGE_ERROR."""
        rows = self.rows(group)
        topics = self._redis.pipeline([self._topic_of(place) for place in rows])
        counted = {
            place: self._counted(place, row, topic)
            for (place, row), topic in zip(rows.items(), topics, strict=True)
        }
        return {place: row for place, row in counted.items() if row is not None}

    def rows(self, group: str) -> dict[TopicPartition, Committed]:
        """Return every row, also of topics that are gone. Raises KafkaError KAFKA_STORAGE_ERROR."""
        key = self._keys.group_offsets(group)
        [reply] = self._redis.pipeline([("HGETALL", key)])
        flat = cast("list[bytes]", listed(key, reply))
        found: Mapping[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
        rows = ((self._keys.parse_stream(field), self._row(key, text)) for field, text in found.items())
        return {TopicPartition(*place): row for place, row in rows if place is not None and row is not None}

    def group_exists(self, group: str) -> bool:
        """Tell whether there is such a group."""
        return self._redis.call("EXISTS", self._keys.group_state(group)) == 1

    def _topic_of(self, place: TopicPartition) -> tuple[str, ...]:
        return ("HGET", self._keys.state(*place), "topic")

    def _counted(self, place: TopicPartition, row: Committed | None, topic: Reply) -> Committed | None:
        """Return the row, if the partition is still of the topic that it speaks of."""
        if isinstance(topic, KafkaError):
            raise topic
        if isinstance(topic, RespError):
            raise refused(self._keys.state(*place), topic)
        return row if row is not None and topic == row.topic_id.encode() else None

    @staticmethod
    def _row(key: str, text: bytes | None) -> Committed | None:
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=Committed)
        except msgspec.DecodeError as error:
            raise malformed(key, "a committed offset") from error


def _read_up_to(partition: Partition, offset: int) -> str:
    """Return the id of the last entry that lies before an offset, as a Redis group has it."""
    if offset <= 0:
        return _BEGINNING
    if partition.format == "batch":
        return f"{offset}-0"
    return f"{offset - 1 >> partition.bits}-{offset - 1 & (1 << partition.bits) - 1}"


class OffsetToCommit(NamedTuple):
    """What is to be committed for a partition; the fields are those of Commit."""

    offset: int
    epoch: int
    metadata: str
    retention_ms: int | None = None


class CommittedOffsets:
    """Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, store: OffsetStore, topics: TopicRegistry, settings: Settings) -> None:
        self._store = store
        self._topics = topics
        self._metadata_max = settings.offset_metadata_max_bytes

    def commit(
        self, by: Committer, offsets: Sequence[PartitionRef[OffsetToCommit]]
    ) -> list[KafkaError | None]:
        """Commit all that can be, at once; returns for each what kept it from being committed.

        These are UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, OFFSET_METADATA_TOO_LARGE. Raises KafkaError for all of
        them as OffsetStore.commit does. If no partition is known the group is not asked for.
        """

        def commit(commits: list[Commit]) -> list[KafkaError | None]:
            done = self._store.commit(by, commits)
            return [None if each else _stale(one) for each, one in zip(done, commits, strict=True)]

        return self._topics.ask(offsets, self._commit, commit)

    def fetch(self, group: str, places: Sequence[TopicPartition]) -> list[Committed | None]:
        """Return what the group has committed for each; None: nothing, be it that there is no such topic or group.

        Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        named = [place for place in places if _may_be(place)]
        found = dict(zip(named, self._store.fetch(group, named), strict=True))
        return [found.get(place) for place in places]

    def fetch_all(self, group: str) -> dict[TopicPartition, Committed]:
        """Return all that the group has committed. Raises KafkaError KAFKA_STORAGE_ERROR."""
        return self._store.fetch_all(group)

    def exists(self, group: str) -> bool:
        """Tell whether there is such a group."""
        return self._store.group_exists(group)

    def _commit(self, asked: OffsetToCommit, _topic: Topic, partition: Partition) -> Commit:
        size = len(asked.metadata.encode())
        if size > self._metadata_max:
            message = f"metadata of {size} bytes is more than offset.metadata.max.bytes allows"
            raise KafkaError(ErrorCode.OFFSET_METADATA_TOO_LARGE, message)
        return Commit(partition, *asked)


def _stale(commit: Commit) -> KafkaError:
    message = f"{commit.partition.stream} is of another topic by now"
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def _may_be(place: TopicPartition) -> bool:
    """Tell whether a topic can have that name: no other names a key of a log."""
    try:
        check_name(place.topic, "")
    except KafkaError:
        return False
    return place.partition >= 0
