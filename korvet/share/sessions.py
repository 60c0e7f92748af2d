"""Share sessions: which partitions a member of a share group fetches, kept from one request to the next (KIP-932).

A session is of one member, and ends with the connection over which it began. Its epoch rises with every request, so one
that comes twice is noticed. ShareFetch and ShareAcknowledge share it, also over different connections. As Kafka does,
the worker releases what a member has acquired by a session when it ends, be it by the member (epoch -1) or with its
connection. What a member acquires by a new session stays when the old one ends, however late that is noticed.

Another connection may lead to another worker, which does not know the session. It takes acknowledgements all the same,
by the locks that Redis has (share/acknowledge.lua); so the epoch may have risen by more than one when the next request
comes here. A session that is ended (epoch -1) there ends here with its connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Protocol

from korvet.clock import CLOCK, Clock
from korvet.config.definition import INT32_MAX
from korvet.errors import ErrorCode, KafkaError
from korvet.logs import Log, RateLimitedLogger
from korvet.redis.pubsub import Subscriptions, Watch
from korvet.share.parts import SharePart, ShareSet
from korvet.share.types import AcquiredRange, HeldRanges
from korvet.topics.types import Partition, TopicRef

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
"""The first asks for a new session, the other one ends it."""

SESSION_PARTITIONS_MAX = 10_000
"""Partitions of one session."""

PARTITIONS_MAX = 100_000
"""Partitions in all sessions of a worker, at about 1 KiB each."""

OF_CONNECTION_MAX = 10
"""Sessions of one connection. Clients have one; one that opens ever new ones would have the slots of all others."""

_ELSEWHERE_MAX = 100_000
"""Requests of a session that other workers may have served since the last one here."""

_log = RateLimitedLogger(Log(__name__))

Release = Callable[[str, str, Sequence[HeldRanges]], object]
"""Releases what a member of a group still has of what it acquired; raises KafkaError."""

SessionRef = tuple[TopicRef, int]
"""A partition as a request names it."""


class Owner(Protocol):
    """The connection of a session."""

    def on_end(self, call: Callable[[], object]) -> None:
        """Have `call` called when it has ended."""


def not_found() -> KafkaError:
    return KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, "The share session was not found.")


class ShareSession:
    """The partitions that one member fetches. `acquired` is what it has acquired of each."""

    def __init__(self, owner: Owner, group: str, member: str, watch: Watch) -> None:
        self.owner, self.group, self.member = owner, group, member
        self.epoch = 1
        self.reads = ShareSet(watch)
        self.acquired: dict[tuple[str, int], HeldRanges] = {}
        self.used_at = 0.0
        self._by_ref: dict[SessionRef, SharePart] = {}
        self._places = count()

    def __len__(self) -> int:
        return len(self._by_ref)

    @property
    def parts(self) -> list[SharePart]:
        """The partitions, in the order in which they are to be read."""
        return list(self.reads.parts.values())

    def add(self, refs: Iterable[SessionRef]) -> None:
        for ref in refs:
            if ref not in self._by_ref:
                part = self._by_ref[ref] = SharePart(*ref, next(self._places))
                self.reads.parts[part.place] = part

    def forget(self, refs: Iterable[SessionRef]) -> None:
        """Remove partitions; those that it does not have are no error."""
        for ref in refs:
            if (part := self._by_ref.pop(ref, None)) is not None:
                self.reads.forget(part)

    def note_acquired(self, partition: Partition, ranges: Iterable[AcquiredRange]) -> None:
        key = partition.topic_id, partition.index
        if key not in self.acquired:
            self.acquired[key] = HeldRanges(partition)
        self.acquired[key].add(ranges)


class ShareSessions:
    """The sessions of one worker (Kafka's ShareSessionCache)."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        slots: int,
        release: Release,
        *,
        is_alone: bool = False,
        clock: Clock = CLOCK,
    ) -> None:
        """`slots` is how many there may be; `is_alone`: no other worker takes acknowledgements."""
        self._subscriptions = subscriptions
        self._slots = slots
        self._release = release
        self.is_alone = is_alone
        self._clock = clock
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._owned: dict[Owner, dict[ShareSession, None]] = {}

    def open(self, owner: Owner, group: str, member: str, refs: Sequence[SessionRef]) -> ShareSession:
        """Begin a session in place of one that the member has; raises KafkaError SHARE_SESSION_LIMIT_REACHED."""
        before = self._sessions.get((group, member))
        if before is not None:
            # What it has acquired stays: the member may acknowledge it yet.
            self._remove(before)
        owned = self._owned.get(owner, {})
        if len(owned) >= OF_CONNECTION_MAX:
            self.end(min(owned, key=lambda item: item.used_at))
        partitions = len(refs) + sum(map(len, self._sessions.values()))
        if (
            len(self._sessions) >= self._slots
            or len(refs) > SESSION_PARTITIONS_MAX
            or partitions > PARTITIONS_MAX
        ):
            if before is not None:
                self._release_held(before)
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, "there are too many share sessions")
        session = ShareSession(owner, group, member, Watch(self._subscriptions, clock=self._clock))
        session.used_at = self._clock.monotonic()
        if before is not None:
            session.acquired = before.acquired
        session.add(refs)
        if owner not in self._owned:
            self._owned[owner] = {}
            owner.on_end(partial(self._end_all, owner))
        self._owned[owner][session] = None
        self._sessions[group, member] = session
        return session

    def resume(self, group: str, member: str, epoch: int) -> ShareSession | None:
        """Return the session of a member, in which the next request has the next epoch; the last one has any.

        None: this worker has none. Raises KafkaError INVALID_SHARE_SESSION_EPOCH.
        """
        session = self._sessions.get((group, member))
        if session is None:
            return None
        if epoch != FINAL_EPOCH:
            ahead_max = 0 if self.is_alone else _ELSEWHERE_MAX
            if not 0 <= (epoch - session.epoch) % INT32_MAX <= ahead_max:
                raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "The share session epoch is invalid.")
            session.epoch = 1 if epoch == INT32_MAX else epoch + 1
        session.used_at = self._clock.monotonic()
        return session

    def change(
        self, session: ShareSession, refs: Sequence[SessionRef], forgotten: Sequence[SessionRef]
    ) -> None:
        """Add partitions to a session, and remove others; raises KafkaError SHARE_SESSION_LIMIT_REACHED."""
        session.add(refs)
        session.forget(forgotten)
        if len(session) > SESSION_PARTITIONS_MAX:
            self.end(session)
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, "the share session is too large")

    def end(self, session: ShareSession) -> None:
        """End a session, and release what its member has acquired by it; if Redis is away, the locks end."""
        self._remove(session)
        self._release_held(session)

    def _release_held(self, session: ShareSession) -> None:
        acquired = list(session.acquired.values())
        if not acquired:
            return
        try:
            self._release(session.group, session.member, acquired)
        except KafkaError as error:
            _log.info(
                "release", "records not released, their locks will end", group=session.group, reason=error
            )

    def _remove(self, session: ShareSession) -> None:
        session.reads.close()
        self._owned.get(session.owner, {}).pop(session, None)
        if self._sessions.get((session.group, session.member)) is session:
            del self._sessions[session.group, session.member]

    def _end_all(self, owner: Owner) -> None:
        for session in list(self._owned.pop(owner)):
            self.end(session)
