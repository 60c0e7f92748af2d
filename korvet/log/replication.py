"""What is confirmed by Redis' replicas: appends with acks=all, and changes of groups, topics and configs.

How many an append waits for is the larger of `replicas` and `min.insync.replicas` less the master. If fewer servers
than the latter are in sync, acks=all is refused before anything is written.

WAIT counts the replicas that have the writes of its own connection only, and blocks whatever else that connection
carries. So it has a connection of its own, shared by all requests that wait, and one small write goes before it. The
appends were answered before that write was sent: a replica that has this write has the appends, if both connections
lead to one master. So the histories of both are compared (`replies.history_of`).
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import gevent
from gevent.event import AsyncResult

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.append import AppendResult
from korvet.log.types import Appended
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import Reply, RespError, history_of, replication_info

WAIT_SHARE = 0.8
"""Of the connection's timeout: WAIT must have given up, and answered, before that."""


T = TypeVar("T")

INSYNC_AGE_S = 1.0
"""How old the number of servers in sync may be."""

_REPLICA = re.compile(r"slave\d+")

LAG_S_MAX = 10
"""A replica that has reported nothing for longer is not in sync (as Redis' min-replicas-max-lag by default)."""


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
        """Wait for `replicas` also if a topic wants fewer; 0 for none."""
        self.least = replicas
        self._waits, self._appends = waits, appends
        self._key = keys.replication_mark
        self._wait_ms = int(timeout_ms * WAIT_SHARE)
        self._next: AsyncResult[_Round] | None = None
        self._next_count = 0
        self._running = False
        self._insync = 0
        self._counted_at = -math.inf

    def insync(self) -> int:
        """Return how many servers have nearly all that was written, the master among them; INSYNC_AGE_S old at most.

        Raises StorageUnavailableError.
        """
        if time.monotonic() - self._counted_at >= INSYNC_AGE_S:
            self._insync = insync_of(self._appends.call("INFO", "replication"))
            self._counted_at = time.monotonic()
            if not self._insync:
                # No write would fail, and so show it: nothing is sent.
                self._appends.reconnect("the server is a read-only replica")
        return self._insync

    def confirm_call(self, change: Callable[[], T], unconfirmed: ErrorCode) -> T:
        """Make a change of groups, topics or configs, and return its result once the replicas have it.

        Raises KafkaError `unconfirmed`: before anything is done if too few replicas are in sync, or if too few have the
        change in time; then it is made, but a failover may lose it.
        """
        if self.least and self.insync() <= self.least:
            raise KafkaError(unconfirmed, "too few replicas of Redis are in sync")
        history = self._appends.history
        result = change()
        if self.least and not self._is_held(history, self.least, self._wait_for(self.least)):
            raise KafkaError(unconfirmed, "too few replicas of Redis have the change yet")
        return result

    def confirm(self, results: Sequence[AppendResult]) -> list[AppendResult]:
        """Wait until the replicas have what was appended; returns the results for the producer.

        If too few have it in time, each append is NOT_ENOUGH_REPLICAS_AFTER_APPEND: the records are written, and an
        idempotent producer that sends them again is answered as soon as the replicas have caught up. So is an append to
        a master that has become another one since: the new master may not have it.
        """
        most = max(
            (max(self.least, each.replicas) for each in results if isinstance(each, Appended)), default=0
        )
        if not most:
            return list(results)
        round_ = self._wait_for(most)
        message = "the records are written, but too few replicas of Redis have them yet"
        short = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message)
        return [
            each
            if isinstance(each, KafkaError)
            or self._is_held(each.history, max(self.least, each.replicas), round_)
            else short
            for each in results
        ]

    def _is_held(self, history: str, needed: int, round_: _Round) -> bool:
        return not needed or (round_.held >= needed and history == round_.history != "")

    def _wait_for(self, count: int) -> _Round:
        """Wait as `_wait` does, and learn the history if it is another one by now."""
        round_ = self._wait(count)
        if round_.held and self._appends.history != round_.history:
            with contextlib.suppress(StorageUnavailableError):
                self._appends.refresh_history()
        return round_

    def _wait(self, count: int) -> _Round:
        """Wait until `count` replicas have everything that was written before, or for as long as Redis may take.

        A caller that comes while a round is under way shares the next one: its write must come after the appends.
        """
        if self._next is None:
            self._next, self._next_count = AsyncResult(), 0
        self._next_count = max(self._next_count, count)
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
                waiting.set(self._round(self._next_count))
        finally:
            self._running = False

    def _round(self, count: int) -> _Round:
        """Ask once; the history last: if it is that of the append, the master did not change in between."""
        try:
            written, held, info = self._waits.pipeline(
                [
                    ("SET", self._key, "1"),
                    ("WAIT", count, self._wait_ms),
                    ("INFO", "replication"),
                ],
            )
        except StorageUnavailableError:
            return _UNKNOWN
        if isinstance(written, RespError | KafkaError) or not isinstance(held, int):
            return _UNKNOWN
        return _Round(history_of(info), held)


def insync_of(info: Reply) -> int:
    """Return how many servers are in sync by the answer to INFO replication: the master, and replicas that report."""
    found = replication_info(info)
    if found.get("role") != "master":
        return 0
    lines = [text for name, text in found.items() if _REPLICA.fullmatch(name)]
    replicas = [dict(part.split("=", 1) for part in line.split(",")) for line in lines]
    return 1 + sum(each["state"] == "online" and int(each["lag"]) <= LAG_S_MAX for each in replicas)
