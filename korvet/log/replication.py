"""What acks=all promises beyond acks=1: that Redis' replicas have the records (setting `replicas`).

Knows what an unkept promise is called; how replicas are asked is storage's.

Waiting until Redis' replicas have what was appended: WAIT, on a connection of its own, shared by all who wait.

Knows WAIT and what it counts; nothing of producers. WAIT speaks of the writes of its own connection only, and holds up
whatever else that connection carries; so one small write goes before it, behind the appends, whose answers were there
already: a replica that has this write has the appends.
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
"""Of the connection's time-out: WAIT must have given up, and said so, before that."""


class Replication:
    """Confirms appends for one worker. `redis` carries nothing else; `timeout_ms` is its time-out."""

    def __init__(self, redis: Redis, keys: Keys, *, replicas: int, timeout_ms: int) -> None:
        """`replicas` 0 confirms everything at once."""
        self._redis = redis
        self._key = keys.replication_mark
        self._replicas = replicas
        self._wait_ms = int(timeout_ms * WAIT_SHARE)
        self._next: AsyncResult[int] | None = None
        self._running = False

    @property
    def awaited(self) -> bool:
        """Whether replicas are asked for at all."""
        return self._replicas > 0

    def confirm(self) -> bool:
        """Wait until the replicas have everything that was written before; False where too few have in time.

        Whoever comes while a round is under way shares the next one: its mark must lie behind the appends.
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
        """Do rounds for as long as somebody waits for one."""
        try:
            while (waiting := self._next) is not None:
                self._next = None
                waiting.set(self._round())
        finally:
            self._running = False

    def _round(self) -> int:
        """Return how many replicas have all that was written so far; none where Redis cannot say."""
        try:
            written, held = self._redis.pipeline(
                [("SET", self._key, "1"), ("WAIT", self._replicas, self._wait_ms)],
            )
        except StorageUnavailableError:
            return 0
        if isinstance(written, RespError | KafkaError) or not isinstance(held, int):
            return 0
        return held


class Replicas:
    """The replicas of one worker's Redis."""

    def __init__(self, replication: Replication) -> None:
        self._replication = replication

    @property
    def awaited(self) -> bool:
        """Whether `confirm` has anything to wait for."""
        return self._replication.awaited

    def confirm(self, results: Sequence[AppendResult]) -> list[AppendResult]:
        """Wait until the replicas have what was appended; returns the results as the producer is to be told them.

        Where too few follow in time, each append is NOT_ENOUGH_REPLICAS_AFTER_APPEND: the records are written, and an
        idempotent producer that sends them again is answered as soon as the replicas have caught up.
        """
        answers = list(results)
        if all(isinstance(each, KafkaError) for each in answers) or self._replication.confirm():
            return answers
        message = "the records are written, but too few replicas of Redis have them yet"
        short = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message)
        return [each if isinstance(each, KafkaError) else short for each in answers]
