"""The list of all groups: their names, states and protocol types, page by page.

Knows where the list lies; nothing of members or offsets. A name in the list that is no group any more is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from korvet.errors import KafkaError
from korvet.storage import log_replies
from korvet.storage.keys import Keys, group_decoded
from korvet.storage.replies import Reply
from korvet.storage.resp import Redis

_PAGE = 500
"""Groups of one round trip: a millisecond of Redis."""


class Listed(NamedTuple):
    """A group: `state` is Kafka's name of it, `protocol_type` empty where it never had members."""

    group: str
    state: str
    protocol_type: str


class GroupLook(NamedTuple):
    """A group as its state tells of it: `members` have joined."""

    group: str
    state: str
    generation: int
    members: int


class GroupList:
    """The groups of one namespace."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def names(self) -> Iterator[list[str]]:
        """Yield the names of all groups, so many at a time that one round trip may ask for all of them.

        A group that comes or goes meanwhile may be missing, one that stays is there. Raises KafkaError
        KAFKA_STORAGE_ERROR, StorageUnavailableError.
        """
        cursor, seen = b"0", set[bytes]()
        while True:
            [reply] = self._redis.pipeline([("ZSCAN", self._keys.groups, cursor, "COUNT", _PAGE)])
            step = log_replies.listed(self._keys.groups, reply)
            cursor, found = cast("tuple[bytes, list[bytes]]", step)
            fresh = [name for name in found[::2] if name not in seen]
            seen.update(fresh)
            for at in range(0, len(fresh), _PAGE):
                yield [group_decoded(_text(name)) for name in fresh[at : at + _PAGE]]
            if cursor == b"0":
                return

    def look(self, names: Sequence[str]) -> list[GroupLook | KafkaError]:
        """Return those of the groups that there are, all in one round trip; KAFKA_STORAGE_ERROR names a damaged one."""
        keys = [self._keys.group_state(name) for name in names]
        replies = self._redis.pipeline([("HMGET", key, "state", "generation", "size") for key in keys])
        found = [_look(name, key, reply) for name, key, reply in zip(names, keys, replies, strict=True)]
        return [each for each in found if each is not None]

    def every(self) -> list[Listed]:
        """Return all groups by name. Raises KafkaError KAFKA_STORAGE_ERROR, StorageUnavailableError."""
        listed: list[Listed] = []
        for names in self.names():
            keys = [self._keys.group_state(name) for name in names]
            replies = self._redis.pipeline([("HMGET", key, "state", "protocol_type") for key in keys])
            for name, key, reply in zip(names, keys, replies, strict=True):
                state, protocol_type = cast("list[bytes | None]", log_replies.listed(key, reply))
                if state is not None:
                    listed.append(Listed(name, _text(state), _text(protocol_type or b"")))
        return sorted(listed)


def _look(group: str, key: str, reply: Reply) -> GroupLook | KafkaError | None:
    try:
        fields = cast("list[bytes | None]", log_replies.listed(key, reply))
        state, generation, members = fields
        # A group of which only offsets were ever committed never had members.
        return (
            None if state is None else GroupLook(group, _text(state), int(generation or 0), int(members or 0))
        )
    except KafkaError as error:
        return error
    except ValueError:
        return log_replies.malformed(key, "a field")


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "replace")
