"""Keeps a worker's copies of topics and settings up to date, and of what else is announced as they are.

Each copy has a refresh, a function with a small command where nothing has changed. All of them are called as soon as a
message comes on the channel of changes, within milliseconds of the change, and now and then without one: pub/sub
forgets a message that nobody received.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from gevent.event import Event

from korvet.clock import CLOCK, Clock
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.logs import Log
from korvet.redis.pubsub import Subscriptions

_log = Log(__name__)

REFRESH_INTERVAL_MS = 5000
"""How late a change is seen whose message was lost: one small command to Redis per worker and refresh."""

Refresh = Callable[[], object]
"""May raise KafkaError, StorageUnavailableError."""


def watch(
    subscriptions: Subscriptions,
    channel: str,
    refreshes: Sequence[Refresh],
    *,
    interval_ms: int = REFRESH_INTERVAL_MS,
    clock: Clock = CLOCK,
) -> None:
    """Call `refreshes` for every message on `channel`, in their order, and every `interval_ms`.

    Never two at once, until the greenlet is ended; Redis may go away and come back meanwhile.
    """
    changed = Event()

    def on_change(_message: bytes | None) -> None:
        changed.set()

    errors: list[str] = []
    try:
        while True:
            # No message says what happened before the channel was live: refresh after this, not before.
            with contextlib.suppress(StorageUnavailableError):
                subscriptions.listen(channel, on_change)
            changed.clear()
            former, errors = errors, []
            for refresh in refreshes:
                try:
                    refresh()
                except KafkaError as error:
                    errors.append(str(error))
            for reason in dict.fromkeys(errors):
                # One line per outage: requests that fail meanwhile report it too.
                if reason not in former:
                    _log.warning("cannot refresh topics and settings", reason=reason)
            clock.wait(changed, clock.to_whole_second(interval_ms / 1000))
    finally:
        subscriptions.forget(channel, on_change)
