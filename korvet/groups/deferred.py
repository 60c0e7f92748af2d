"""What may follow a change a little later: gathered by key, and sent together by a greenlet of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from gevent.lock import RLock

from korvet.clock import CLOCK, Clock
from korvet.errors import KafkaError
from korvet.logs import Log

K = TypeVar("K")
V = TypeVar("V")

_log = Log(__name__)

DELAY_S = 0.1
"""Between the first change and the sending: what changes again meanwhile is sent once."""

GATHERED_MAX = 10_000
"""Keys that wait. Who adds more sends them first, and waits for that."""


class Deferred(Generic[K, V]):
    """Values by key; the last value of a key counts, and what cannot be sent is dropped."""

    def __init__(self, send: Callable[[dict[K, V]], None], *, clock: Clock = CLOCK) -> None:
        self._send = send
        self._clock = clock
        self._gathered: dict[K, V] = {}
        self._sending = RLock()

    def get(self, key: K) -> V | None:
        return self._gathered.get(key)

    def put(self, values: Mapping[K, V]) -> None:
        if len(self._gathered) >= GATHERED_MAX:
            self.flush()
        if not self._gathered:
            self._clock.spawn_later(DELAY_S, self.flush)
        self._gathered.update(values)

    def flush(self) -> None:
        """Send what waits, one sending after the other; what is being sent has been when this returns."""
        with self._sending:
            gathered, self._gathered = self._gathered, {}
            if not gathered:
                return
            try:
                self._send(gathered)
            except KafkaError as error:
                _log.debug("not sent", changes=len(gathered), reason=error)
