"""What acks=all promises beyond acks=1: that Redis' replicas have the records (setting `replicas`).

WAIT counts the replicas that have the writes of its own connection only, and blocks whatever else that connection
carries. So it has a connection of its own, shared by all requests that wait, and one small write goes before it. The
appends were answered before that write was sent: a replica that has this write has the appends, if both connections
lead to one master. So the histories of both are compared (`replies.history_of`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import gevent
from gevent.event import AsyncResult

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.append import AppendResult
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import RespError, history_of

WAIT_SHARE = 0.8
"""Of the connection's timeout: WAIT must have given up, and answered, before that."""


class _Round(NamedTuple):
    """How many replicas `held` all that was written to a `history` before."""

    history: str
    held: int


_UNKNOWN = _Round("", 0)


class Replicas:
    """The replicas of one worker's Redis, waited for over `waits`, which carries nothing else and has this timeout.

    `appends` carries the appends.
    """

    def __init__(self, waits: Redis, appends: Redis, keys: Keys, *, replicas: int, timeout_ms: int) -> None:
        """`replicas` 0 waits for none."""
        self._waits, self._appends = waits, appends
        self._key = keys.replication_mark
        self._replicas = replicas
        self._wait_ms = int(timeout_ms * WAIT_SHARE)
        self._next: AsyncResult[_Round] | None = None
        self._running = False

    @property
    def awaited(self) -> bool:
        """Whether `confirm` has anything to wait for."""
        return self._replicas > 0

    def confirm(self, results: Sequence[AppendResult]) -> list[AppendResult]:
        """Wait until the replicas have what was appended; returns the results for the producer.

        If too few have it in time, each append is NOT_ENOUGH_REPLICAS_AFTER_APPEND: the records are written, and an
        idempotent producer that sends them again is answered as soon as the replicas have caught up. So is an append to
        a master that has become another one since: the new master may not have it.
        """
        if all(isinstance(each, KafkaError) for each in results):
            return list(results)
        history, held = self._wait()
        enough = held >= self._replicas and history != ""
        if enough and self._appends.history != history:
            with contextlib.suppress(StorageUnavailableError):
                self._appends.refresh_history()
        message = "the records are written, but too few replicas of Redis have them yet"
        short = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message)
        return [
            each if isinstance(each, KafkaError) or (enough and each.history == history) else short
            for each in results
        ]

    def _wait(self) -> _Round:
        """Wait until the replicas have everything that was written before, or for as long as Redis may take.

        A caller that comes while a round is under way shares the next one: its write must come after the appends.
        """
        if self._next is None:
            self._next = AsyncResult()
        mine = self._next
        if not self._running:
            self._running = True
            gevent.spawn(self._run)
        return mine.get() or _UNKNOWN

    def _run(self) -> None:
        """Do rounds for as long as any caller waits for one."""
        try:
            while (waiting := self._next) is not None:
                self._next = None
                waiting.set(self._round())
        finally:
            self._running = False

    def _round(self) -> _Round:
        """Ask once. The history is asked for last: if it is that of an append, no other was there in between."""
        try:
            written, held, info = self._waits.pipeline(
                [
                    ("SET", self._key, "1"),
                    ("WAIT", self._replicas, self._wait_ms),
                    ("INFO", "replication"),
                ],
            )
        except StorageUnavailableError:
            return _UNKNOWN
        if isinstance(written, RespError | KafkaError) or not isinstance(held, int):
            return _UNKNOWN
        return _Round(history_of(info), held)
