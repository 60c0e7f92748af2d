"""Dynamic settings in Redis: those of all brokers and those of each, and one broker's settings as they result.

Content of Redis that cannot be applied is left out, with one log line for it. The next change replaces a row that
cannot be read; a key of another type has to be deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from gevent.lock import RLock

from korvet import logs
from korvet.cluster.rows import RowStore
from korvet.config.dynamic import DEFAULT, Layers, merge_valid
from korvet.config.settings import Settings
from korvet.errors import KafkaError
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import RespError

_LOG = logging.getLogger(__name__)
_log = logs.Log(__name__)

FEED_MEMBER = "/brokers"
"""Member of the change feed that stands for a change of settings: no topic can have that name."""

BrokerRow = dict[str, str]


class BrokerConfigStore:
    """The settings of one namespace's brokers.

    Every method raises KafkaError KAFKA_STORAGE_ERROR and StorageUnavailableError.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._rows = RowStore(redis, keys, keys.broker_configs, FEED_MEMBER, BrokerRow)
        self._key = keys.broker_configs
        self._is_hash = True

    def load(self, *whose: str) -> list[BrokerRow]:
        """Return the settings of each; an empty row for one on which nothing is set, and for what is no hash."""
        try:
            rows = self._rows.load(*whose)
        except KafkaError as error:
            refusal = error.__cause__
            if isinstance(refusal, RespError) and refusal.name == "WRONGTYPE":
                if self._is_hash:
                    _LOG.error("%s: %s", self._key, error)
                self._is_hash = False
                return [{} for _ in whose]
            raise
        self._is_hash = True
        return [row or {} for row in rows]

    def alter(self, whose: str, change: Callable[[Mapping[str, str]], BrokerRow]) -> BrokerRow:
        return self._rows.alter(whose, lambda row: change(row or {}) or None) or {}


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
