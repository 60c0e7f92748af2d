"""Reads of committed offsets, of many groups in few round trips.

A row counts only while its partition's state has the same topic id (offsets.py). What is wrong with one group stands in
the place of its result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError, or_raise
from korvet.groups.types import CONSUMER, GROUPS_AT_ONCE, STREAMS
from korvet.protocol.types import TopicPartition
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import Reply, RespError, malformed, parsed, refused
from korvet.topics.registry import PARTITIONS_AT_ONCE
from korvet.turns import in_parts, in_turns

_Row: TypeAlias = bytes | KafkaError | None
_Rows: TypeAlias = dict[TopicPartition, bytes]
_TopicIds: TypeAlias = dict[tuple[TopicPartition, str], Reply]
"""The topic id in a partition's state, by the partition and its slot tag."""


class OffsetRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row but for its time, which the script appends."""

    offset: int
    epoch: int
    metadata: str
    topic_id: str
    retention_ms: int | None = None
    tag: str = ""


class Committed(OffsetRow, frozen=True, kw_only=True):
    """A row, with the time of its commit (ms, Redis' clock)."""

    ms: int


class _PendingRow(msgspec.Struct, frozen=True):
    """What the last transaction of a producer is to commit: rows by stream; ended if it is not open."""

    open: bool
    rows: dict[str, str]


class StoredOffset(NamedTuple):
    """A row as it lies in Redis, with the time of its commit (ms), None if it cannot be read.

    `counts`: its topic may still exist. `retention_ms`: how long its client wants it kept; None = the broker decides.
    """

    at: TopicPartition
    row: bytes
    ms: int | None
    counts: bool
    retention_ms: int | None = None


class OffsetReads:
    """Every method raises StorageUnavailableError if Redis is away; in a cluster it is the result of a group."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def unstable(self, groups: Sequence[str]) -> list[set[TopicPartition] | KafkaError]:
        """Return the partitions of which an open transaction is to commit an offset of the group."""
        outcomes: list[set[TopicPartition] | KafkaError] = []
        for chunk in in_parts(groups, GROUPS_AT_ONCE) if groups else ():
            keys = [self._keys.group_pending(group) for group in chunk]
            replies = self._redis.pipeline([("HGETALL", key) for key in keys])
            outcomes += [
                parsed(key, "the answer", reply, partial(self._unstable, key))
                for key, reply in zip(keys, replies, strict=True)
            ]
        return outcomes

    def _unstable(self, key: str, flat: list[bytes]) -> set[TopicPartition]:
        try:
            rows = [msgspec.json.decode(text, type=_PendingRow) for text in flat[1::2]]
        except msgspec.DecodeError as error:
            raise malformed(key, "offsets of a transaction") from error
        streams = (self._keys.parse_stream(field.encode()) for row in rows if row.open for field in row.rows)
        return {TopicPartition(*at) for at in streams if at is not None}

    def check_readers(self, readers: Sequence[tuple[str, str, int]]) -> list[KafkaError | None]:
        """Return for each group, member and epoch what prevents the member from fetching offsets (KIP-848).

        These are UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, STALE_MEMBER_EPOCH, KAFKA_STORAGE_ERROR.
        """
        outcomes: list[KafkaError | None] = []
        for chunk in in_parts(readers, GROUPS_AT_ONCE) if readers else ():
            commands = [
                command
                for group, member, _ in chunk
                for command in (
                    ("HMGET", self._keys.group_state(group), "type"),
                    ("HMGET", self._keys.group_members(group), f"m:{member}", f"e:{member}"),
                )
            ]
            replies = [
                parsed(command[1], "the answer", reply, list[Any])
                for command, reply in zip(commands, self._redis.pipeline(commands), strict=True)
            ]
            outcomes += map(_refusal, chunk, replies[::2], replies[1::2])
        return outcomes

    def fetch(
        self, asked: Sequence[tuple[str, TopicPartition]], known_ids: Mapping[str, str] = {}
    ) -> list[Committed | KafkaError | None]:
        """Return what each group has committed for a partition, None for nothing.

        `known_ids` are those of topics by name, for partitions whose node of a cluster is away.
        """
        outcomes: list[Committed | KafkaError | None] = []
        for chunk in in_parts(asked, PARTITIONS_AT_ONCE) if asked else ():
            rows, ids = self._rows_at(chunk)
            outcomes += [self._counted(group, at, rows[group, at], ids, known_ids) for group, at in chunk]
        return outcomes

    def _rows_at(
        self, asked: Sequence[tuple[str, TopicPartition]]
    ) -> tuple[dict[tuple[str, TopicPartition], _Row], _TopicIds]:
        by_group: dict[str, list[TopicPartition]] = {}
        for group, at in asked:
            by_group.setdefault(group, []).append(at)
        keys = map(self._keys.group_offsets, by_group)
        commands = [
            ("HMGET", key, *(self._keys.stream(*at) for at in partitions))
            for key, partitions in zip(keys, by_group.values(), strict=True)
        ]
        places = [(at, "") for at in dict.fromkeys(at for _, at in asked)]
        replies = self._redis.pipeline([*commands, *(self._topic_of(*place) for place in places)])
        rows: dict[tuple[str, TopicPartition], _Row] = {}
        tagged: dict[tuple[TopicPartition, str], None] = {}
        for command, reply, (group, partitions) in zip(commands, replies, by_group.items(), strict=False):
            texts = parsed(command[1], "the answer", reply, list[Any])
            for place, at in enumerate(partitions):
                row: _Row = texts if isinstance(texts, KafkaError) else texts[place]
                rows[group, at] = row
                if tag := tag_of(row):
                    tagged[at, tag] = None
        ids = dict(zip(places, replies[len(commands) :], strict=True))
        return rows, ids | self._topic_ids(tagged)

    def fetch_all(
        self, groups: Sequence[str], known_ids: Mapping[str, str] = {}
    ) -> list[dict[TopicPartition, Committed] | KafkaError]:
        outcomes: list[dict[TopicPartition, Committed] | KafkaError] = []
        for chunk in self._in_parts(groups):
            rows, ids = self._all_rows(chunk)
            outcomes += [
                self._all_counted(group, of, ids, known_ids) for group, of in zip(chunk, rows, strict=True)
            ]
        return outcomes

    def _all_counted(
        self, group: str, rows: _Rows | KafkaError, ids: _TopicIds, known_ids: Mapping[str, str]
    ) -> dict[TopicPartition, Committed] | KafkaError:
        if isinstance(rows, KafkaError):
            return rows
        counted: dict[TopicPartition, Committed] = {}
        for at, text in in_turns(rows.items()):
            row = self._counted(group, at, text, ids, known_ids)
            if isinstance(row, KafkaError):
                return row
            if row is not None:
                counted[at] = row
        return counted

    def stored(self, group: str) -> list[StoredOffset]:
        """Return every row, with unreadable ones and those of deleted topics."""
        [rows], ids = self._all_rows([group])
        return [_stored(at, row, ids[at, tag_of(row)]) for at, row in or_raise(rows).items()]

    def _in_parts(self, groups: Sequence[str]) -> Iterator[list[str]]:
        """Yield groups that have PARTITIONS_AT_ONCE offsets together, and a larger one alone."""
        for chunk in in_parts(groups, GROUPS_AT_ONCE) if groups else ():
            part: list[str] = []
            offsets = 0
            if len(chunk) == 1:
                yield list(chunk)
                continue
            sizes = self._redis.pipeline([("HLEN", self._keys.group_offsets(group)) for group in chunk])
            for group, size in zip(chunk, sizes, strict=True):
                count = size if isinstance(size, int) else 0
                if part and offsets + count > PARTITIONS_AT_ONCE:
                    yield part
                    part, offsets = [], 0
                part.append(group)
                offsets += count
            yield part

    def _all_rows(self, groups: Sequence[str]) -> tuple[list[_Rows | KafkaError], _TopicIds]:
        keys = [self._keys.group_offsets(group) for group in groups]
        replies = self._redis.pipeline([("HGETALL", key) for key in keys])
        rows = [
            parsed(key, "the answer", reply, self._by_place) for key, reply in zip(keys, replies, strict=True)
        ]
        of_all = [of for of in rows if not isinstance(of, KafkaError)]
        return rows, self._topic_ids([(at, tag_of(row)) for of in of_all for at, row in of.items()])

    def _by_place(self, flat: list[bytes]) -> _Rows:
        places = (
            (self._keys.parse_stream(field), row)
            for field, row in in_turns(zip(flat[::2], flat[1::2], strict=True))
        )
        return {TopicPartition(*at): row for at, row in places if at is not None}

    def _topic_ids(self, places: Iterable[tuple[TopicPartition, str]]) -> _TopicIds:
        ids: _TopicIds = {}
        for chunk in in_parts(list(dict.fromkeys(places)), PARTITIONS_AT_ONCE):
            ids |= zip(chunk, self._redis.pipeline([self._topic_of(*place) for place in chunk]), strict=True)
        return ids

    def _topic_of(self, partition: TopicPartition, tag: str) -> tuple[str, ...]:
        return ("HGET", self._keys.state(*partition, tag), "topic")

    def _counted(
        self, group: str, partition: TopicPartition, row: _Row, ids: _TopicIds, known_ids: Mapping[str, str]
    ) -> Committed | KafkaError | None:
        if isinstance(row, KafkaError):
            return row
        tag = tag_of(row)
        topic_id = ids[partition, tag]
        if (
            isinstance(topic_id, StorageUnavailableError)
            and (known := known_ids.get(partition.topic)) is not None
        ):
            topic_id = known.encode()
        if isinstance(topic_id, RespError):
            return refused(self._keys.state(*partition, tag), topic_id)
        if isinstance(topic_id, KafkaError):
            return topic_id
        if row is None:
            return None
        try:
            committed = committed_of(self._keys.group_offsets(group), row)
        except KafkaError as error:
            return error.without_frames()
        return committed if topic_id == committed.topic_id.encode() else None


def _refusal(
    reader: tuple[str, str, int], group_row: list[Any] | KafkaError, member_rows: list[Any] | KafkaError
) -> KafkaError | None:
    group, member, epoch = reader
    if isinstance(group_row, KafkaError):
        return group_row
    if isinstance(member_rows, KafkaError):
        return member_rows
    [kind], (row, epoch_row) = group_row, member_rows
    # A share group commits nothing, and Kafka says no more than that.
    if kind in (CONSUMER.encode(), STREAMS.encode()):
        if row is None or epoch_row is None:
            return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group} has no member {member}")
        if not epoch_row.startswith(b'{"epoch":%d,' % epoch):
            is_classic = b'"protocols":[]' not in row
            code = ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
            return KafkaError(code, f"member {member} of group {group} has another epoch than {epoch}")
    return None


def committed_of(key: str, text: bytes) -> Committed:
    """Return a row; raises KafkaError KAFKA_STORAGE_ERROR."""
    try:
        return msgspec.json.decode(text, type=Committed)
    except msgspec.DecodeError as error:
        raise malformed(key, "a committed offset") from error


def tag_of(row: _Row) -> str:
    """Return the slot tag of the partition of a row; "" if it has none, or the row cannot be read."""
    if not isinstance(row, bytes) or b'"tag":"' not in row:  # most have none
        return ""
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(row, type=Committed).tag
    return ""


def _stored(partition: TopicPartition, row: bytes, topic: Reply) -> StoredOffset:
    try:
        committed = msgspec.json.decode(row, type=Committed)
    except msgspec.DecodeError:
        # It is an error for a client that fetches it, and evidence for an administrator.
        return StoredOffset(partition, row, None, counts=True)
    # A state that cannot be read does not show that the topic was deleted.
    gone = topic is None or (isinstance(topic, bytes) and topic != committed.topic_id.encode())
    return StoredOffset(partition, row, committed.ms, counts=not gone, retention_ms=committed.retention_ms)
