"""Single rows of the registry in Redis, replaced by compare and set: every change is in the feed, and published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from korvet.cluster.rows import CHANGES_MAX
from korvet.errors import KafkaError, or_raise
from korvet.redis import scripts
from korvet.redis.client import Redis, ScriptCall
from korvet.redis.keys import Keys
from korvet.redis.replies import Arg, Reply, errors_about, malformed, parsed
from korvet.topics.types import TopicRow, encode, unclaimed

_CLAIM = scripts.get("topic/claim")
_CREATE = scripts.get("topic/create")
_REPLACE = scripts.get("row/replace")

CLAIM_MS = 10_000
"""For how long the process that creates a topic's partitions may do so: of 10,000 it takes a second or two of Redis."""

CLOCKS_MS = 2_000
"""By which the clocks of a cluster's nodes may differ: so much later a claim has ended on each of them."""


class RegistryRows:
    """The rows of one namespace. Methods raise KafkaError KAFKA_STORAGE_ERROR, StorageUnavailableError."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def text(self, name: str) -> bytes | None:
        [text] = self.texts([name])
        return text

    def texts(self, names: Sequence[str]) -> list[bytes | None]:
        with errors_about(self._keys.topics):
            return cast("list[bytes | None]", self._redis.call("HMGET", self._keys.topics, *names))

    def create(self, row: TopicRow, known_epoch: int) -> bytes | None:
        """Write the row of a topic that is being created, and return it with its claim.

        None if the registry must be read again first. Raises KafkaError TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION.
        """
        claimed = self._run(_CREATE, [row.name, encode(row), CLAIM_MS, CHANGES_MAX, known_epoch])
        return claimed if isinstance(claimed, bytes) else None

    def claim(self, text: bytes, row: TopicRow, lowest: int = 0) -> bytes | int:
        """Replace the row that was read as `text`, and return the new one with its claim: see lua/topic/claim.lua.

        0 if the row has changed, 1 if another process may create partitions now. With `lowest` the claim of this
        process is renewed, and is at least that.
        """
        encoded = encode(unclaimed(row))
        reply = self._run(_CLAIM, [row.name, text, encoded, CLAIM_MS, CHANGES_MAX, CLOCKS_MS, lowest])
        if isinstance(reply, bytes | int):
            return reply
        raise malformed(self._keys.topics, "the reply of lua/topic/claim.lua")

    def replace(self, name: str, text: bytes, row: TopicRow | None) -> bool:
        """Replace the row that was read as `text`, or delete it; returns whether it was still that."""
        return or_raise(*self.replace_all([(name, text, row)]))

    def replace_all(self, changes: Sequence[tuple[str, bytes, TopicRow | None]]) -> list[bool | KafkaError]:
        """Do what `replace` does for each name, text and new row, in one round trip; errors stay in their places."""
        keys = (self._keys.topics, self._keys.topic_changes)
        calls: list[ScriptCall] = [
            (
                _REPLACE,
                keys,
                (name, text, encode(row) if row else b"", name, self._keys.topics_channel, CHANGES_MAX, ""),
            )
            for name, text, row in changes
        ]
        replies = self._redis.scripts(calls)
        return [parsed(keys[0], "the reply of lua/row/replace.lua", reply, bool) for reply in replies]

    def _run(self, script: scripts.Script, args: list[Arg]) -> Reply:
        with errors_about(self._keys.topics):
            return self._redis.script(script, [self._keys.topics, self._keys.topic_changes], args)
