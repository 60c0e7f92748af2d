"""What acks=all promises beyond acks=1: that Redis' replicas have the records (setting `replicas`).

WAIT counts the replicas that have the writes of its own connection only, and blocks whatever else that connection
carries. So it has a connection of its own, shared by all requests that wait, and one small write goes before it. The
appends were answered before that write was sent: a replica that has this write has the appends.
"""

from __future__ import annotations

from collections.abc import Sequence

import gevent
from gevent.event import AsyncResult

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.append import AppendResult
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import RespError

WAIT_SHARE = 0.8
"""Of the connection's timeout: WAIT must have given up, and answered, before that."""


class Replicas:
    """The replicas of one worker's Redis. `redis` carries nothing else; `timeout_ms` is its timeout."""

    def __init__(self, redis: Redis, keys: Keys, *, replicas: int, timeout_ms: int) -> None:
        """`replicas` 0 waits for none."""
        self._redis = redis
        self._key = keys.replication_mark
        self._replicas = replicas
        self._wait_ms = int(timeout_ms * WAIT_SHARE)
        self._next: AsyncResult[int] | None = None
        self._running = False

    @property
    def awaited(self) -> bool:
        """Whether `confirm` has anything to wait for."""
        return self._replicas > 0

    def confirm(self, results: Sequence[AppendResult]) -> list[AppendResult]:
        """Wait until the replicas have what was appended; returns the results for the producer.

        If too few have it in time, each append is NOT_ENOUGH_REPLICAS_AFTER_APPEND: the records are written, and an
        idempotent producer that sends them again is answered as soon as the replicas have caught up.
        """
        answers = list(results)
        if all(isinstance(each, KafkaError) for each in answers) or self.wait():
            return answers
        message = "the records are written, but too few replicas of Redis have them yet"
        short = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message)
        return [each if isinstance(each, KafkaError) else short for each in answers]

    def wait(self) -> bool:
        """Wait until the replicas have everything that was written before; False if too few have in time.

        A caller that comes while a round is under way shares the next one: its write must come after the appends.
        """
        if not self.awaited:
            return True
        if self._next is None:
            self._next = AsyncResult()
        mine = self._next
        if not self._running:
            self._running = True
            gevent.spawn(self._run)
        held = mine.get()
        return held is not None and held >= self._replicas

    def _run(self) -> None:
        """Do rounds for as long as any caller waits for one."""
        try:
            while (waiting := self._next) is not None:
                self._next = None
                waiting.set(self._round())
        finally:
            self._running = False

    def _round(self) -> int:
        """Return how many replicas have all that was written so far; 0 if Redis cannot say."""
        try:
            written, held = self._redis.pipeline(
                [("SET", self._key, "1"), ("WAIT", self._replicas, self._wait_ms)],
            )
        except StorageUnavailableError:
            return 0
        if isinstance(written, RespError | KafkaError) or not isinstance(held, int):
            return 0
        return held
