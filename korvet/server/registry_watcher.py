"""Following what is kept in Redis for all workers: topics, and whatever else is announced as they are.

Knows the channel on which every change is told, and that a message may be lost; nothing of what has changed. Whoever
keeps a copy in memory gives a look: a function that takes in what is new, with a small question where nothing is. It is
called as soon as a message was heard, within milliseconds of the change, and now and then without one: pub/sub forgets
what nobody heard.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from gevent.event import Event

from korvet.errors import KafkaError, StorageUnavailableError
from korvet.logs import Log
from korvet.redis.pubsub import Subscriptions

_log = Log(__name__)

LOOK_INTERVAL_MS = 5000
"""How late a change is seen whose message was lost: one small question to Redis per worker and look."""

Look = Callable[[], object]
"""Takes in what is new; may raise KafkaError, StorageUnavailableError."""


class RegistryWatcher:
    """Calls the looks, one after the other and never two at once, until its greenlet is ended."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        channel: str,
        looks: Sequence[Look],
        *,
        interval_ms: int = LOOK_INTERVAL_MS,
    ) -> None:
        """Prepare to call `looks` for every message on `channel`, in their order, and every `interval_ms`."""
        self._subscriptions = subscriptions
        self._channel = channel
        self._looks = tuple(looks)
        self._interval_s = interval_ms / 1000
        self._news = Event()

    def run(self) -> None:
        """Follow until the greenlet is ended; Redis may go away and come back meanwhile."""
        refusals: tuple[str, ...] = ()
        try:
            while True:
                # Where the channel was not live, what happened before is not told: look after this, not before.
                with contextlib.suppress(StorageUnavailableError):
                    self._subscriptions.listen(self._channel, self._heard)
                said, refusals = refusals, self._look()
                for refusal in dict.fromkeys(refusals):
                    # One line per outage: what is asked for meanwhile tells of it too.
                    if refusal not in said:
                        _log.warning("cannot look at what others have changed", reason=refusal)
                self._news.wait(self._interval_s)
        finally:
            self._subscriptions.forget(self._channel, self._heard)

    def _look(self) -> tuple[str, ...]:
        """Call every look; return why some could not."""
        self._news.clear()
        refusals = []
        for look in self._looks:
            try:
                look()
            except KafkaError as error:
                refusals.append(str(error))
        return tuple(refusals)

    def _heard(self, _message: bytes | None) -> None:
        self._news.set()
