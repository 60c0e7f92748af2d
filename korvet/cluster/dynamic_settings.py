"""Dynamic settings in Redis: those of all brokers and those of each, and one broker's settings as they result.

Content of Redis that cannot be applied is left out, with one log line for it: another version may have set it, and it
must not keep brokers from starting. The next change replaces a row that cannot be read; a key of another type has to be
deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import cast

import msgspec
from gevent.lock import RLock

from korvet import logs
from korvet.config.dynamic import Layers, merge_valid
from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import RespError, errors_about, listed, refused

_LOG = logging.getLogger(__name__)
_log = logs.Log(__name__)
_CONFIGURE = scripts.get("broker/configure")

DEFAULT = "default"
"""Field of the row that counts for all brokers; every other row is named by a broker's id."""

FEED_MEMBER = "/brokers"
"""Member of the change feed that stands for a change of settings: no topic can have that name."""

CHANGES_MAX = 10_000
"""Members whose last change the feed remembers: topics and FEED_MEMBER; a worker that missed more reads everything."""

_ATTEMPTS_MAX = 20
"""Tries of a change while others change the same row: each but the last has met one of theirs that was done."""

BrokerRow = dict[str, str]


class BrokerConfigStore:
    """The settings of one namespace's brokers.

    Every method raises KafkaError KAFKA_STORAGE_ERROR and StorageUnavailableError.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._unreadable: dict[bytes, bytes] = {}

    def load(self, *whose: str) -> list[BrokerRow]:
        """Return the settings of each; an empty row for one on which nothing is set."""
        key = self._keys.broker_configs
        try:
            texts = listed(key, self._redis.call("HMGET", key, *whose))
        except RespError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise refused(key, error) from error
            self._log_unreadable(b"", b"", error)
            return [{} for _ in whose]
        return [
            self._row(name.encode(), text)
            for name, text in zip(whose, cast("list[bytes | None]", texts), strict=True)
        ]

    def alter(self, whose: str, change: Callable[[Mapping[str, str]], BrokerRow]) -> BrokerRow:
        """Replace one row by what `change` returns for it, and return that.

        `change` is called again if another process altered the row meanwhile, and may raise. An equal row is
        not written.
        """
        key = self._keys.broker_configs
        for _ in range(_ATTEMPTS_MAX):
            with errors_about(key):
                text = cast("bytes | None", self._redis.call("HGET", key, whose))
                row = self._row(whose.encode(), text)
                changed = change(row)
                if changed == row:
                    return row
                encoded = msgspec.json.encode(changed, order="sorted") if changed else b""
                args = (whose, text or b"", encoded, FEED_MEMBER, self._keys.topics_channel, CHANGES_MAX)
                if self._redis.script(_CONFIGURE, [key, self._keys.topic_changes], args) != 0:
                    return changed
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{key}: the row of {whose} keeps changing")

    def _row(self, name: bytes, text: bytes | None) -> BrokerRow:
        if text is None:
            return {}
        try:
            row = msgspec.json.decode(text, type=BrokerRow)
        except msgspec.DecodeError as error:
            self._log_unreadable(name, text, error)
            return {}
        self._unreadable.pop(name, None)
        return row

    def _log_unreadable(self, name: bytes, text: bytes, error: Exception) -> None:
        if self._unreadable.get(name) != text:
            self._unreadable[name] = text
            _LOG.error("%s: the row of %r is malformed: %s", self._keys.broker_configs, name, error)


class LiveSettings:
    """The settings of one process of a broker."""

    def __init__(self, static: Settings, store: BrokerConfigStore) -> None:
        """Begin with the settings of the start, `static`; nothing is read from Redis yet."""
        self.layers = Layers(settings=static, static=static)
        self._store = store
        self._followers: list[Callable[[Settings], object]] = []
        self._rows: list[BrokerRow] = [{}, {}]
        self._problems: list[str] = []
        self._refreshing = RLock()

    @property
    def settings(self) -> Settings:
        """The settings in effect."""
        return self.layers.settings

    def follow(self, use: Callable[[Settings], object]) -> None:
        """Call `use`, which must not fail, with the settings in effect, and again after each change."""
        self._followers.append(use)
        use(self.settings)

    def refresh(self) -> None:
        """Read Redis, with one small command; raises KafkaError and StorageUnavailableError if that fails."""
        with self._refreshing:
            static = self.layers.static
            rows = self._store.load(DEFAULT, str(static.broker_id))
            if rows == self._rows:
                return
            self._rows, before = rows, self.settings
            self.layers, problems = merge_valid(static, *rows)
            for problem in problems:
                if problem not in self._problems:
                    _log.error("ignoring a setting in Redis", reason=problem)
            self._problems = problems
            if self.settings != before:
                for use in self._followers:
                    use(self.settings)
