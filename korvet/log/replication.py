"""What is confirmed by Redis' replicas: appends with acks=all, and changes of groups, topics and configs.

How many an append waits for is the larger of `replicas` and `min.insync.replicas` less the master. If fewer servers
than the latter are in sync, acks=all is refused before anything is written.

WAIT counts the replicas that have the writes of its own connection only, and blocks whatever else that connection
carries. So each number of replicas has a connection of its own, shared by all requests that wait for that number, and
one small write goes before WAIT. The appends were answered before that write was sent: a replica that has this write
has the appends, if both connections lead to one master. So the histories of both are compared (`replies.history_of`).
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import gevent
from gevent.event import AsyncResult

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.types import Appended
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import Reply, RespError, history_of, replication_info

WAIT_SHARE = 0.8
"""Of the connection's timeout: WAIT must have given up, and answered, before that."""

ROUND_MS_MAX = 500
"""How long one round may wait: those that come meanwhile share the next one, and who still waits begins again."""


T = TypeVar("T")

INSYNC_AGE_S = 1.0
"""How old the number of servers in sync may be."""

_REPLICA = re.compile(r"slave\d+")

LAG_S_MAX = 10
"""A replica that has reported nothing for longer is not in sync (as Redis' min-replicas-max-lag by default)."""


class Round(NamedTuple):
    """How many replicas `held` all that was written to a `history` before."""

    history: str
    held: int

    def confirms(self, history: str, needed: int) -> bool:
        """Return whether as many as `needed` have what was written to, or read from, a history before the round."""
        return self.held >= needed and history == self.history != ""


_UNKNOWN = Round("", 0)


class Replicas:
    """The replicas of one worker's Redis; `appends` carries what it writes."""

    def __init__(
        self, connection: Callable[[], Redis], appends: Redis, keys: Keys, *, replicas: int, timeout_ms: int
    ) -> None:
        """Wait for `replicas` also if a topic wants fewer; 0 for none.

        `connection` returns another connection to the same Redis, with this timeout.
        """
        self.least = replicas
        self._connection, self._appends = connection, appends
        self._key = keys.replication_mark
        self._wait_ms = int(timeout_ms * WAIT_SHARE)
        self._rounds: dict[int, _Rounds] = {}
        self._insync = 0
        self._counted_at = -math.inf

    def recount(self) -> None:
        """Let `insync` ask again: it may be of before a failover."""
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
        # Not the history of a connection that is lost: the change would go to another one.
        history = self._appends.connect() if self.least else ""
        result = change()
        if self.least:
            round_ = self._wait(self.least, self.begin(self.least), self._wait_until())
            if not round_.confirms(history, self.least):
                raise KafkaError(unconfirmed, "too few replicas of Redis have the change yet")
        return result

    def confirm(self, results: Sequence[Appended | KafkaError]) -> list[Appended | KafkaError]:
        """Wait until the replicas have what was appended; returns the results for the producer.

        If too few have it in time, each append is NOT_ENOUGH_REPLICAS_AFTER_APPEND: the records are written, and an
        idempotent producer that sends them again is answered as soon as the replicas have caught up. So is an append to
        a master that has become another one since: the new master may not have it.
        """
        needed = [max(self.least, each.replicas) if isinstance(each, Appended) else 0 for each in results]
        until = self._wait_until()
        # In order: those that the fewest replicas must have are waited for first, and are in time if any are.
        begun = {count: self.begin(count) for count in sorted(set(needed)) if count}
        rounds = {count: self._wait(count, each, until) for count, each in begun.items()}
        message = "the records are written, but too few replicas of Redis have them yet"
        short = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message)
        return [
            each
            if isinstance(each, KafkaError) or not count or rounds[count].confirms(each.history, count)
            else short
            for each, count in zip(results, needed, strict=True)
        ]

    def begin(self, count: int) -> AsyncResult[Round]:
        """Begin to wait until `count` replicas have all that was written before, or for ROUND_MS_MAX."""
        rounds = self._rounds.get(count)
        if rounds is None:
            rounds = self._rounds[count] = _Rounds(
                self._connection(), self._key, count, min(self._wait_ms, ROUND_MS_MAX)
            )
        return rounds.begin()

    def _wait_until(self) -> float:
        """Return when what begins to wait for replicas now has to give up (time.monotonic)."""
        return time.monotonic() + self._wait_ms / 1000

    def _wait(self, count: int, begun: AsyncResult[Round], until: float) -> Round:
        """Wait for a round, and for more while too few replicas have it and it is not yet `until`.

        Learns the history of the appends if it is another one by now.
        """
        round_ = begun.get() or _UNKNOWN
        while (
            round_.held < count and "" != round_.history == self._appends.history and time.monotonic() < until
        ):
            round_ = self.begin(count).get() or _UNKNOWN
        if round_.held and self._appends.history != round_.history:
            with contextlib.suppress(StorageUnavailableError):
                self._appends.refresh_history()
        return round_


class _Rounds:
    """The rounds of those that wait for one number of replicas, over a connection that carries nothing else."""

    def __init__(self, waits: Redis, key: str, count: int, wait_ms: int) -> None:
        self._waits, self._key, self._count, self._wait_ms = waits, key, count, wait_ms
        self._next: AsyncResult[Round] | None = None
        self._running = False

    def begin(self) -> AsyncResult[Round]:
        """Return the next round; while one is under way it is the one after that, since its write must come later."""
        if self._next is None:
            self._next = AsyncResult()
        if not self._running:
            self._running = True
            gevent.spawn(self._run)
        return self._next

    def _run(self) -> None:
        """Do rounds for as long as any caller waits for one."""
        try:
            while (waiting := self._next) is not None:
                self._next = None
                found = _UNKNOWN
                try:
                    found = self._round()
                finally:
                    waiting.set(found)
        finally:
            self._running = False
            if self._next is not None:
                self.begin()

    def _round(self) -> Round:
        """Ask once; the history last: if it is that of the append, the master did not change in between."""
        try:
            written, held, info = self._waits.pipeline(
                [
                    ("SET", self._key, "1"),
                    ("WAIT", self._count, self._wait_ms),
                    ("INFO", "replication"),
                ],
            )
        except StorageUnavailableError:
            return _UNKNOWN
        if isinstance(written, RespError | KafkaError) or not isinstance(held, int):
            return _UNKNOWN
        return Round(history_of(info), held)


def insync_of(info: Reply) -> int:
    """Return how many servers are in sync by the answer to INFO replication: the master, and replicas that report."""
    found = replication_info(info)
    if found.get("role") != "master":
        return 0
    lines = [text for name, text in found.items() if _REPLICA.fullmatch(name)]
    replicas = [dict(part.partition("=")[::2] for part in line.split(",")) for line in lines]
    return 1 + sum(map(_is_in_sync, replicas))


def _is_in_sync(replica: Mapping[str, str]) -> bool:
    lag = replica.get("lag", "")
    return replica.get("state") == "online" and lag.isdecimal() and int(lag) <= LAG_S_MAX
