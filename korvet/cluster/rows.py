"""Hashes in Redis that every worker follows: named rows of JSON, changed by compare and set, announced to all.

A row that cannot be read has one log line: another version may have written it, and it must not keep brokers from
starting. What it means is for the subject to say. The next change replaces it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import msgspec

from korvet.errors import ErrorCode, KafkaError
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import errors_about, listed, value_of
from korvet.turns import in_turns

_log = logging.getLogger(__name__)
_REPLACE = scripts.get("row/replace")

CHANGES_MAX = 10_000
"""Members whose last change the feed remembers: topics and hashes; a worker that missed more reads everything."""

ATTEMPTS_MAX = 20
"""Tries of a change while others change the same row: each but the last has met one of theirs that was done."""

R = TypeVar("R")


class RowStore(Generic[R]):
    """The rows of one hash.

    Every method raises KafkaError KAFKA_STORAGE_ERROR and StorageUnavailableError.
    """

    def __init__(
        self, redis: Redis, keys: Keys, key: str, member: str, row_type: type[R], *, by_row: bool = False
    ) -> None:
        """`member` stands for the hash in the change feed: not a topic's name, and for no other hash.

        With `by_row` each row has a member too, for hashes that are too large to be read at each change.
        """
        self._redis = redis
        self._keys = keys
        self._key = key
        self._member = member
        self._by_row = by_row
        self._row_type = row_type
        self._seen: object = None
        self.unreadable: dict[bytes, bytes] = {}
        """Rows that could not be read when they were last loaded: name and content."""

    def changed(self) -> tuple[bytes | None, bytes | None]:
        """Return what differs after each change of the hash, and may differ after others: it costs little to read."""
        feed = self._keys.topic_changes
        with errors_about(feed):
            replies = self._redis.transaction([("ZSCORE", feed, self._member), ("ZSCORE", feed, "")])
            at, dropped = (cast("bytes | None", value_of(reply)) for reply in replies)
        # Topics may have pushed the member out of the feed.
        return at, None if at else dropped

    def load_if_changed(self) -> dict[str, R] | None:
        """Return every row that can be read if the hash has changed since the last call, which one command says."""
        # Asked for first: a change between the two is seen the next time.
        changed = self.changed()
        if changed == self._seen:
            return None
        rows = self.load_all()
        self._seen = changed
        return rows

    def changed_since(self, epoch: bytes | None) -> list[str] | None:
        """Return the names of the rows changed after an epoch of `changed`; None if that is not known."""
        if epoch is None:
            return None
        feed = self._keys.topic_changes
        commands = (
            ("ZSCORE", feed, self._member),
            ("ZSCORE", feed, ""),
            ("ZRANGEBYSCORE", feed, b"(" + epoch, "+inf"),
        )
        with errors_about(feed):
            at, dropped, members = map(value_of, self._redis.transaction(commands))
            scores = [float(cast("bytes", item or b"0")) for item in (at, dropped, epoch)]
        # Before that epoch: the feed was lost, or restored from an older copy.
        if not scores[1] <= scores[2] <= scores[0]:
            return None
        prefix = f"{self._member}/".encode()
        names = [
            item.removeprefix(prefix).decode("utf-8", "backslashreplace")
            for item in in_turns(cast("list[bytes]", listed(feed, members)))
            if item.startswith(prefix)
        ]
        # A change without a name was not made by `alter`.
        return names or None

    def load(self, *names: str) -> list[R | None]:
        """Return these rows, None for one that is absent or cannot be read."""
        with errors_about(self._key):
            texts = listed(self._key, self._redis.call("HMGET", self._key, *names))
        return [
            self._row(name.encode(), text)
            for name, text in zip(names, cast("list[bytes | None]", texts), strict=True)
        ]

    def load_all(self) -> dict[str, R]:
        with errors_about(self._key):
            result = listed(self._key, self._redis.call("HGETALL", self._key))
        pairs = cast("list[bytes]", result)
        texts = dict(zip(pairs[::2], pairs[1::2], strict=True))
        for gone in self.unreadable.keys() - texts.keys():
            del self.unreadable[gone]
        rows = {
            name.decode("utf-8", "backslashreplace"): self._row(name, text)
            for name, text in in_turns(texts.items())
        }
        return {name: row for name, row in rows.items() if row is not None}

    def alter(self, name: str, change: Callable[[R | None], R | None]) -> R | None:
        """Replace one row by what `change` returns for it, and return that; None: there is no such row.

        `change` is called again if another process altered the row meanwhile, and may raise. An equal row is
        not written.
        """
        for _ in range(ATTEMPTS_MAX):
            with errors_about(self._key):
                text = cast("bytes | None", self._redis.call("HGET", self._key, name))
                row = self._row(name.encode(), text)
                changed = change(row)
                if changed == row and name.encode() not in self.unreadable:
                    return row
                encoded = b"" if changed is None else msgspec.json.encode(changed, order="sorted")
                args = (
                    name,
                    text or b"",
                    encoded,
                    self._member,
                    self._keys.topics_channel,
                    CHANGES_MAX,
                    f"{self._member}/{name}" if self._by_row else "",
                )
                if self._redis.script(_REPLACE, [self._key, self._keys.topic_changes], args) != 0:
                    self.unreadable.pop(name.encode(), None)
                    return changed
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._key}: the row of {name} keeps changing")

    def _row(self, name: bytes, text: bytes | None) -> R | None:
        if text is None:
            self.unreadable.pop(name, None)
            return None
        try:
            row = msgspec.json.decode(text, type=self._row_type)
        except msgspec.DecodeError as error:
            self._note_unreadable(name, text, error)
            return None
        self.unreadable.pop(name, None)
        return row

    def _note_unreadable(self, name: bytes, text: bytes, error: Exception) -> None:
        if self.unreadable.get(name) != text:
            self.unreadable[name] = text
            _log.error("%s: the row of %r is malformed: %s", self._key, name, error)
