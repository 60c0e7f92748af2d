"""The settings of one broker as they are now: those of its start, and what clients have set over them since.

Knows when to look in Redis and who has to be told of a change; not what is done with a setting, nor who may alter it.
What stands in Redis and cannot be so is left out, with one log line: another version may have set it.
"""

from __future__ import annotations

from collections.abc import Callable

from gevent.lock import RLock

from korvet import logs
from korvet.config import Layers, Settings
from korvet.config.layers import lay_what_can_be
from korvet.storage.broker_config_store import DEFAULT, BrokerConfigStore

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
            self.layers, problems = lay_what_can_be(static, *seen)
            for problem in problems:
                if problem not in self._told:
                    _log.error("a setting in Redis is left out", reason=problem)
            self._told = problems
            if self.settings != before:
                for use in self._users:
                    use(self.settings)
