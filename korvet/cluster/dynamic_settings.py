"""The settings of one broker as they are now: those of its start, and what clients have set over them since.

Knows when to look in Redis and who has to be told of a change; not what is done with a setting, nor who may alter it.
What stands in Redis and cannot be so is left out, with one log line: another version may have set it.

The dynamic settings of brokers in Redis: those of all brokers and those of each, as texts by name.

Knows where they are kept and how they are changed; not which settings there are. A row that cannot be read sets
nothing: one log line for each such text, and the next change replaces it. No more does a key of another type, which
has to be deleted: it must not keep brokers from starting.
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
from korvet.redis.connection import Arg
from korvet.redis.keys import Keys
from korvet.redis.replies import Reply, RespError
from korvet.topics.deletion import CHANGES_MAX

_LOG = logging.getLogger(__name__)
_CONFIGURE = scripts.get("broker/configure")

DEFAULT = "default"
"""Whose settings are those of all brokers; every other row is named by a broker's id."""

FEED_MEMBER = "/brokers"
"""What the change feed of the topics calls a change of settings: no topic can be named so."""

_ALTER_ROUNDS_MAX = 20
"""Tries of a change while others change the same row: each but the last has met one of theirs that was done."""

Row = dict[str, str]
Change = Callable[[Mapping[str, str]], Mapping[str, str]]


class BrokerConfigStore:
    """The settings of one namespace's brokers.

    Every method raises KafkaError KAFKA_STORAGE_ERROR and StorageUnavailableError.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._unreadable: dict[bytes, bytes] = {}

    def load(self, *whose: str) -> list[Row]:
        """Return the settings of each; an empty row where nothing is set."""
        try:
            texts = self._redis.call("HMGET", self._keys.broker_configs, *whose)
        except RespError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise self._malformed(str(error)) from error
            self._tell(b"", b"", error)
            return [{} for _ in whose]
        if not isinstance(texts, list):
            raise self._malformed(str(texts))
        return [
            self._row(name.encode(), text)
            for name, text in zip(whose, cast("list[bytes | None]", texts), strict=True)
        ]

    def alter(self, whose: str, change: Change) -> Row:
        """Change the settings of one row: `change` is given them, and gives what is to stand there; returns that.

        `change` is called again where somebody else was faster, and may raise; what it leaves as it is is not written.
        """
        for _ in range(_ALTER_ROUNDS_MAX):
            text = self._call("HGET", self._keys.broker_configs, whose)
            held = self._row(whose.encode(), cast("bytes | None", text))
            changed = dict(change(held))
            if changed == held:
                return held
            args: list[Arg] = [
                whose,
                b"" if text is None else cast("bytes", text),
                msgspec.json.encode(changed, order="sorted") if changed else b"",
                FEED_MEMBER,
                self._keys.topics_channel,
                CHANGES_MAX,
            ]
            if self._run([self._keys.broker_configs, self._keys.topic_changes], args) != 0:
                return changed
        message = f"{self._keys.broker_configs}: the row of {whose} changes all the time"
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    def _row(self, name: bytes, text: bytes | None) -> Row:
        if text is None:
            return {}
        try:
            row = msgspec.json.decode(text, type=Row)
        except msgspec.DecodeError as error:
            self._tell(name, text, error)
            return {}
        self._unreadable.pop(name, None)
        return row

    def _tell(self, name: bytes, text: bytes, error: Exception) -> None:
        if self._unreadable.get(name) != text:
            self._unreadable[name] = text
            _LOG.error("%s: the row of %r is malformed: %s", self._keys.broker_configs, name, error)

    def _run(self, keys: list[str], args: list[Arg]) -> Reply:
        try:
            return self._redis.script(_CONFIGURE, keys, args)
        except RespError as error:
            raise self._malformed(str(error)) from error

    def _call(self, *command: Arg) -> Reply:
        try:
            return self._redis.call(*command)
        except RespError as error:
            raise self._malformed(str(error)) from error

    def _malformed(self, what: str) -> KafkaError:
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{self._keys.broker_configs}: Redis answered {what}"
        )


_log = logs.Log(__name__)

Use = Callable[[Settings], object]
"""Takes over new settings; must not fail."""


class LiveSettings:
    """The settings of one process of a broker."""

    def __init__(self, static: Settings, store: BrokerConfigStore) -> None:
        """Begin with the settings of the start, `static`; nothing is read from Redis yet."""
        self.layers = Layers(settings=static, static=static)
        self._store = store
        self._users: list[Use] = []
        self._seen: list[dict[str, str]] = [{}, {}]
        self._told: list[str] = []
        self._refreshing = RLock()

    @property
    def settings(self) -> Settings:
        """What counts now."""
        return self.layers.settings

    def follow(self, use: Use) -> None:
        """Call `use` with the settings of now, and again whenever they change."""
        self._users.append(use)
        use(self.settings)

    def refresh(self) -> None:
        """Look in Redis, with one small command; raises KafkaError and StorageUnavailableError where that cannot be."""
        with self._refreshing:
            static = self.layers.static
            seen = self._store.load(DEFAULT, str(static.broker_id))
            if seen == self._seen:
                return
            self._seen, before = seen, self.settings
            self.layers, problems = merge_valid(static, *seen)
            for problem in problems:
                if problem not in self._told:
                    _log.error("a setting in Redis is left out", reason=problem)
            self._told = problems
            if self.settings != before:
                for use in self._users:
                    use(self.settings)
