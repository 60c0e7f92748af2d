"""Groups as administrators see them: described, listed, deleted, and made to forget offsets.

Knows what Kafka tells of a group in which state, and what may be done with it; nothing of messages.

What becomes of groups and offsets that are to go: deleted groups, and offsets that are forgotten.

Knows lua/group/delete.lua and lua/group/forget.lua; nothing of when something is to go. Both scripts are told what the
caller has seen, and do nothing where that has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import msgspec

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.membership import CONSUMER, subscribed_topics
from korvet.groups.offsets import Committed
from korvet.groups.store import Described, GroupList, GroupStore, Listed
from korvet.protocol.types import TopicPartition
from korvet.redis import scripts
from korvet.redis.client import Redis, ScriptCall
from korvet.redis.connection import Arg
from korvet.redis.keys import Keys, encode_group_id
from korvet.redis.replies import Reply, RespError, listed, malformed, refused
from korvet.topics.registry import TopicRegistry
from korvet.topics.types import TopicRef

_DELETE = scripts.get("group/delete")
_FORGET = scripts.get("group/forget")

_DELETE_ROUNDS_MAX = 5
"""Tries of a deletion while offsets are committed under it."""

FORGOTTEN_PER_STEP = 1000
"""Offsets that one script forgets: some 3 us of Redis each."""

ANY_ROW = b""
"""Stands for whatever a row says."""


class Seen(NamedTuple):
    """A group as it was seen: its state, generation and the time (ms) of its last change, empty where it has none."""

    state: bytes = b""
    generation: bytes = b""
    since: bytes = b""
    protocol_type: bytes = b""

    @property
    def is_empty(self) -> bool:
        """Whether it had no members."""
        return self.state in (b"", b"Empty")


class Held(NamedTuple):
    """A committed offset: its row as it lies in Redis, when it was committed (ms), None where nobody can read it.

    `counts`: it may be of the topic that is there now. `retention_ms`: for how long its client wants it kept, None: as
    the broker does.
    """

    place: TopicPartition
    row: bytes
    ms: int | None
    counts: bool
    retention_ms: int | None = None


class Forgotten(NamedTuple):
    """What was done: whether the group was still as it was seen, how many offsets went, and whether it went itself."""

    done: bool
    offsets: int
    dropped: bool


class GroupRemoval:
    """Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, redis: Redis, keys: Keys, *, mirror: bool) -> None:
        """`mirror` is group.mirror: whether Redis groups are Korvet's to remove."""
        self._redis = redis
        self._keys = keys
        self._mirror = "mirror" if mirror else "hide"

    def delete(self, group: str) -> None:
        """Delete a group without members, offsets and all.

        Raises KafkaError NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, KAFKA_STORAGE_ERROR.
        """
        key = self._keys.group_offsets(group)
        for _ in range(_DELETE_ROUNDS_MAX):
            [fields] = self._redis.pipeline([("HKEYS", key)])
            named = cast("list[bytes]", listed(key, fields))
            streams = [field for field in named if self._is_stream(field)]
            args: list[Arg] = [group, encode_group_id(group), self._mirror, len(named)]
            [reply] = self._redis.scripts([(_DELETE, [*self._group_keys(group), *streams], args)])
            if self._number(key, reply):
                return
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"offsets of {group} are committed all the time")

    def look(self, groups: Sequence[str]) -> list[Seen | KafkaError]:
        """Return groups as they are now, in one round trip; in the answers KafkaError KAFKA_STORAGE_ERROR."""
        keys = [self._keys.group_state(group) for group in groups]
        commands = [("HMGET", key, "state", "generation", "since", "protocol_type") for key in keys]
        return [_seen(key, reply) for key, reply in zip(keys, self._redis.pipeline(commands), strict=True)]

    def look_now(self, groups: Sequence[str]) -> tuple[int, list[Seen | KafkaError]]:
        """Return Redis' clock (ms) and what `look` does. Raises KafkaError KAFKA_STORAGE_ERROR."""
        seconds, microseconds = cast("list[bytes]", listed("TIME", self._redis.call("TIME")))
        return int(seconds) * 1000 + int(microseconds) // 1000, self.look(groups)

    def held(self, group: str) -> list[Held]:
        """Return the offsets that a group has. Raises KafkaError KAFKA_STORAGE_ERROR."""
        key = self._keys.group_offsets(group)
        [reply] = self._redis.pipeline([("HGETALL", key)])
        flat = cast("list[bytes]", listed(key, reply))
        named = (
            (self._keys.parse_stream(field), row) for field, row in zip(flat[::2], flat[1::2], strict=True)
        )
        rows = {TopicPartition(*place): row for place, row in named if place is not None}
        topics = self._redis.pipeline([("HGET", self._keys.state(*place), "topic") for place in rows])
        return [_held(place, row, topic) for (place, row), topic in zip(rows.items(), topics, strict=True)]

    def forget(
        self, group: str, seen: Seen, rows: Mapping[TopicPartition, bytes], *, drop: bool
    ) -> Forgotten:
        """Forget offsets whose rows are still these (ANY_ROW: whatever they are), if the group is as it was seen.

        Very many go in steps, and the rest stays where the group changes between two of them. `drop`: let the group go
        too, where it has neither members nor offsets then. Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        places, offsets = list(rows), 0
        while len(places) > FORGOTTEN_PER_STEP:
            some, places = places[:FORGOTTEN_PER_STEP], places[FORGOTTEN_PER_STEP:]
            step = self._forget(group, seen, {place: rows[place] for place in some}, drop=False)
            offsets += step.offsets
            if not step.done:
                return step._replace(offsets=offsets)
        last = self._forget(group, seen, {place: rows[place] for place in places}, drop=drop)
        return last._replace(offsets=offsets + last.offsets)

    def _forget(
        self, group: str, seen: Seen, rows: Mapping[TopicPartition, bytes], *, drop: bool
    ) -> Forgotten:
        keys = [*self._group_keys(group), *(self._keys.stream(*place) for place in rows)]
        args: list[Arg] = [
            group,
            encode_group_id(group),
            self._mirror,
            "drop" if drop else "keep",
            seen.state,
            seen.generation,
            seen.since,
            *rows.values(),
        ]
        call: ScriptCall = (_FORGET, keys, args)
        [reply] = self._redis.scripts([call])
        key = self._keys.group_offsets(group)
        match listed(key, reply):
            case [int() as done, int() as offsets, int() as dropped]:
                return Forgotten(done == 1, offsets, dropped == 1)
        raise malformed(key, "the answer of lua/group/forget.lua")

    def _group_keys(self, group: str) -> list[str | bytes]:
        names = self._keys
        return [*names.membership_of(group), names.groups, names.group_offsets(group)]

    def _is_stream(self, field: bytes) -> bool:
        return self._keys.parse_stream(field) is not None

    @staticmethod
    def _number(key: str, reply: Reply) -> int:
        if isinstance(reply, KafkaError):
            raise reply
        if isinstance(reply, RespError):
            raise refused(key, reply)
        if not isinstance(reply, int):
            raise malformed(key, "the answer of lua/group/delete.lua")
        return reply


def _held(place: TopicPartition, row: bytes, topic: Reply) -> Held:
    try:
        committed = msgspec.json.decode(row, type=Committed)
    except msgspec.DecodeError:
        # Who asks for it is told; what it was is still to be seen then.
        return Held(place, row, None, counts=True)
    # A state that cannot be read is no sign that the topic is gone.
    gone = topic is None or (isinstance(topic, bytes) and topic != committed.topic_id.encode())
    return Held(place, row, committed.ms, counts=not gone, retention_ms=committed.retention_ms)


def _seen(key: str, reply: Reply) -> Seen | KafkaError:
    try:
        fields = cast("list[bytes | None]", listed(key, reply))
        return Seen(*(field or b"" for field in fields))
    except KafkaError as error:
        return error


CLASSIC = "classic"
"""The type of every group: that of the classic protocol."""

STABLE, DEAD = "Stable", "Dead"

_FORGET_ROUNDS_MAX = 5
"""Tries to forget offsets while the group changes under it."""


class GroupListing:
    """Every method raises StorageUnavailableError where Redis is away."""

    def __init__(
        self, groups: GroupStore, names: GroupList, removal: GroupRemoval, topics: TopicRegistry
    ) -> None:
        self._groups = groups
        self._names = names
        self._removal = removal
        self._topics = topics

    def describe(self, groups: Sequence[str]) -> list[Described | KafkaError]:
        """Return each group as it is now, or KAFKA_STORAGE_ERROR; Dead is one that does not exist."""
        return self._groups.describe(groups)

    def listed(self, states: Iterable[str], types: Iterable[str]) -> list[Listed]:
        """Return the groups in one of the states and of one of the types, in any case; none named is all of them.

        Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        wanted = {state.lower() for state in states}
        kinds = {kind.lower() for kind in types}
        if kinds and CLASSIC not in kinds:
            return []
        return [each for each in self._names.every() if not wanted or each.state.lower() in wanted]

    def delete(self, group: str) -> None:
        """Delete a group; raises KafkaError NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, KAFKA_STORAGE_ERROR."""
        self._removal.delete(group)

    def forget(self, group: str, places: Sequence[TopicPartition]) -> list[KafkaError | None]:
        """Forget committed offsets; returns for each partition what kept it from being forgotten.

        These are UNKNOWN_TOPIC_OR_PARTITION and GROUP_SUBSCRIBED_TO_TOPIC. Raises KafkaError for all of them:
        GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (members that are no consumers), KAFKA_STORAGE_ERROR.
        """
        for _ in range(_FORGET_ROUNDS_MAX):
            [seen] = self._removal.look([group])
            [described] = self._groups.describe([group])
            if isinstance(seen, KafkaError):
                raise seen
            if isinstance(described, KafkaError):
                raise described
            subscribed = self._subscribed(group, seen, described)
            outcomes = {place: self._refusal(group, place, subscribed) for place in places}
            rows: Mapping[TopicPartition, bytes] = {
                place: ANY_ROW for place, refused in outcomes.items() if refused is None
            }
            if self._removal.forget(group, seen, rows, drop=False).done:
                return [outcomes[place] for place in places]
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group} changes all the time")

    def _subscribed(self, group: str, seen: Seen, described: Described) -> set[str] | None:
        """Return the topics that the members are subscribed to; None: nobody can tell, so it may be any."""
        if described.state == DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group}")
        if seen.is_empty:
            return set()
        if described.protocol_type != CONSUMER:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group} is {described.state}")
        return subscribed_topics(described)

    def _refusal(self, group: str, place: TopicPartition, subscribed: set[str] | None) -> KafkaError | None:
        try:
            self._topics.partition(TopicRef(place.topic), place.partition)
        except KafkaError as error:
            return error
        if subscribed is None or place.topic in subscribed:
            message = f"group {group} is subscribed to {place.topic}"
            return KafkaError(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, message)
        return None
