"""The failed appends of a worker: counted by error, and logged as outages that begin and end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from korvet.errors import ErrorCode, KafkaError
from korvet.log.append import AppendResult
from korvet.logs import Log
from korvet.redis.replies import MemoryFullError
from korvet.turns import in_turns

_log = Log(__name__)

QUIET_SECONDS = 5.0
"""Time without a failure after which a success ends an outage: near a limit some batches fit, and some do not."""


_AWAY = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)


class Failures:
    """The failed appends of one worker. `count` is called with the name of each error."""

    def __init__(
        self,
        count: Callable[[str], None] = lambda _error: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count, self._clock = count, clock
        self._began: float | None = None
        self._last = 0.0
        self._failed = 0

    def note(self, results: Sequence[AppendResult]) -> bool:
        """Note the results of a request; returns whether one failed because Redis' memory is full."""
        failed = [each for each in results if isinstance(each, KafkaError)]
        if failed:
            return self._take(failed)
        if self._began is not None:
            self._end(self._began)
        return False

    def refused(self, error: KafkaError, count: int) -> None:
        """Note `count` batches that were refused before they were tried, which is logged elsewhere."""
        for _ in in_turns(range(count)):
            self._count(error.code.name)

    def _take(self, failed: list[KafkaError]) -> bool:
        for error in in_turns(failed):
            self._count(error.code.name)
        away = [error for error in failed if error.code in _AWAY]
        if away:
            self._last = self._clock()
            self._failed += len(away)
            if self._began is None:
                self._began = self._last
                _log.error("appends fail", reason=away[0].message)
        return any(isinstance(error, MemoryFullError) for error in away)

    def _end(self, began: float) -> None:
        now = self._clock()
        if now - self._last >= QUIET_SECONDS:
            _log.info("appends succeed again", failed=self._failed, seconds=round(self._last - began, 3))
            self._began, self._failed = None, 0
