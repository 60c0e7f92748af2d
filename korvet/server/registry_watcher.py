"""Keeps a worker's copies of topics and settings up to date, and of what else is announced as they are.

Each copy has a refresh, a function with a small command where nothing has changed. All of them are called as soon as a
message comes on the channel of changes, within milliseconds of the change, and now and then without one: pub/sub
forgets a message that nobody received.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from gevent.event import Event

from korvet.errors import KafkaError, StorageUnavailableError
from korvet.logs import Log
from korvet.redis.pubsub import Subscriptions

_log = Log(__name__)

REFRESH_INTERVAL_MS = 5000
"""How late a change is seen whose message was lost: one small command to Redis per worker and refresh."""

Refresh = Callable[[], object]
"""May raise KafkaError, StorageUnavailableError."""


class RegistryWatcher:
    """Calls the refreshes, one after the other and never two at once, until its greenlet is ended."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        channel: str,
        refreshes: Sequence[Refresh],
        *,
        interval_ms: int = REFRESH_INTERVAL_MS,
    ) -> None:
        """Prepare to call `refreshes` for every message on `channel`, in their order, and every `interval_ms`."""
        self._subscriptions = subscriptions
        self._channel = channel
        self._refreshes = tuple(refreshes)
        self._interval_s = interval_ms / 1000
        self._changed = Event()

    def run(self) -> None:
        """Watch until the greenlet is ended; Redis may go away and come back meanwhile."""
        errors: tuple[str, ...] = ()
        try:
            while True:
                # No message says what happened before the channel was live: refresh after this, not before.
                with contextlib.suppress(StorageUnavailableError):
                    self._subscriptions.listen(self._channel, self._on_change)
                former, errors = errors, self._refresh()
                for error in dict.fromkeys(errors):
                    # One line per outage: requests that fail meanwhile report it too.
                    if error not in former:
                        _log.warning("cannot refresh topics and settings", reason=error)
                self._changed.wait(self._interval_s)
        finally:
            self._subscriptions.forget(self._channel, self._on_change)

    def _refresh(self) -> tuple[str, ...]:
        """Call every refresh; return why some failed."""
        self._changed.clear()
        errors = []
        for refresh in self._refreshes:
            try:
                refresh()
            except KafkaError as error:
                errors.append(str(error))
        return tuple(errors)

    def _on_change(self, _message: bytes | None) -> None:
        self._changed.set()
