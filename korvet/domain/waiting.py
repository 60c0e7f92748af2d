"""Waiting for appends: what parks a fetch, and what wakes it.

Knows channels and deadlines; nothing of records. An append publishes on its partition's channel; the worker listens
to the channels of its parked fetches. A wake-up may be lost with the connection to Redis, so whoever waits reads
once more at its deadline: that read is the backstop, and there is no polling.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

from gevent.event import Event

from korvet.storage.subscriptions import Subscriptions


class Watch:
    """The partitions one fetch waits for, by their place in its request. A context manager: leaving it forgets them."""

    def __init__(self, subscriptions: Subscriptions, channels: Sequence[str]) -> None:
        self._subscriptions = subscriptions
        self._event = Event()
        self._woken: set[int] = set()
        self._listeners = [(channel, partial(self._wake, place)) for place, channel in enumerate(channels)]
        self._listening = False

    def __enter__(self) -> Self:
        """Listen at once where that needs no word with Redis; see `live`."""
        if all(self._subscriptions.live(channel) for channel, _ in self._listeners):
            self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening."""
        if self._listening:
            for channel, listener in self._listeners:
                self._subscriptions.forget(channel, listener)

    @property
    def live(self) -> bool:
        """Whether every append from now on wakes this watch. What was read before this was true must be read again."""
        return self._listening

    def listen(self) -> None:
        """Subscribe; on return appends wake this watch. Raises StorageUnavailableError where Redis is away."""
        self._listening = True
        self._subscriptions.listen_all(self._listeners)

    def wait(self, seconds: float) -> set[int]:
        """Wait for appends; returns the places in the request that may have news, none after `seconds`."""
        self._event.wait(seconds)
        self._event.clear()
        woken, self._woken = self._woken, set()
        return woken

    def wake_all(self) -> None:
        """Wake the waiter without news, as at the end of its worker."""
        self._event.set()

    def _wake(self, place: int, _message: bytes | None) -> None:
        self._woken.add(place)
        self._event.set()
