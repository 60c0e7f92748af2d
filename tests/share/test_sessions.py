"""Share sessions: how many there may be, and what is released when they end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from korvet.config.definition import INT32_MAX
from korvet.errors import ErrorCode, StorageUnavailableError
from korvet.security.session import Session
from korvet.share.sessions import FINAL_EPOCH, ShareSession, ShareSessions
from korvet.share.types import HELD_RANGES_MAX, AcquiredRange, HeldRanges
from korvet.topics.registry import TopicSpec
from korvet.topics.types import TopicRef
from tests.support.domain import Domain
from tests.support.refusals import refusal

REFS = [(TopicRef("orders"), 0), (TopicRef("orders"), 1)]


class Sessions:
    """The sessions of a worker, and what was released."""

    def __init__(self, view: Domain, slots: int = 3) -> None:
        self.released: list[tuple[str, str, list[int]]] = []
        self.ranges: list[list[tuple[int, int]]] = []
        self.fails = False
        self.view = view
        self.cache = ShareSessions(view.subscriptions, slots, self._release)
        view.topics.create(TopicSpec(name="orders", partitions=2))

    def _release(self, group: str, member: str, held: Sequence[HeldRanges]) -> None:
        self.released.append((group, member, [item.partition.index for item in held]))
        self.ranges = [list(item.in_order()) for item in held]
        if self.fails:
            raise StorageUnavailableError("Redis is away")

    def acquire(self, session: ShareSession, index: int, first: int = 0, last: int = 0) -> None:
        ranges = [AcquiredRange(first, last, 1)]
        session.note_acquired(self.view.topics.get("orders").partition(index), ranges)


@pytest.fixture
def sessions(here: Domain) -> Sessions:
    return Sessions(here)


def test_there_are_as_many_as_there_are_slots(sessions: Sessions) -> None:
    owners = [Session(f"10.0.0.1:{port}") for port in range(4)]
    made = [sessions.cache.open(owner, "g", owner.peer, REFS) for owner in owners[:3]]
    refused = refusal(sessions.cache.open, owners[3], "g", "m", REFS)
    assert refused is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    # A member that begins again has its slot.
    sessions.cache.open(owners[0], "g", owners[0].peer, REFS)
    sessions.cache.end(made[1])
    sessions.cache.open(owners[3], "g", "m", REFS)


def test_an_end_releases_where_anything_was_acquired_and_no_end_does_it_twice(sessions: Sessions) -> None:
    owner = Session("10.0.0.1:1")
    session = sessions.cache.open(owner, "g", "m", REFS)
    sessions.acquire(session, 1)
    # Also what the session has no more.
    sessions.cache.change(session, [], [REFS[1]])
    assert [part.index for part in session.parts] == [0]
    sessions.cache.end(session)
    assert sessions.released == [("g", "m", [1])]
    owner.end()
    assert sessions.released == [("g", "m", [1])]


def test_a_connection_that_ends_ends_all_its_sessions_though_redis_is_away(sessions: Sessions) -> None:
    owner = Session("10.0.0.1:1")
    for member in ("m1", "m2"):
        sessions.acquire(sessions.cache.open(owner, "g", member, REFS), 0)
    sessions.fails = True
    owner.end()
    assert sessions.released == [("g", "m1", [0]), ("g", "m2", [0])]
    assert sessions.cache.resume("g", "m1", 1) is None


def test_a_member_that_has_come_over_another_connection_keeps_what_it_has(sessions: Sessions) -> None:
    before, after = Session("10.0.0.1:1"), Session("10.0.0.1:2")
    sessions.acquire(sessions.cache.open(before, "g", "m", REFS), 0)
    sessions.cache.open(after, "g", "m", REFS)
    before.end()
    assert sessions.released == []
    after.end()
    assert sessions.released == [("g", "m", [0])]


@pytest.mark.parametrize(
    ("ahead", "is_served"), [(0, True), (1, True), (5, True), (100_000, True), (100_001, False), (-1, False)]
)
def test_the_epoch_may_be_ahead_by_what_other_workers_have_served_and_the_last_request_has_any(
    sessions: Sessions, ahead: int, *, is_served: bool
) -> None:
    session = sessions.cache.open(Session("10.0.0.1:1"), "g", "m", REFS)
    session.epoch = INT32_MAX - 5
    epoch = INT32_MAX - 5 + ahead if ahead < 6 else ahead - 5
    if is_served:
        assert sessions.cache.resume("g", "m", epoch) is session
        assert sessions.cache.resume("g", "m", FINAL_EPOCH) is session
        assert session.epoch == epoch % INT32_MAX + 1
    else:
        refused = refusal(sessions.cache.resume, "g", "m", epoch)
        assert refused is ErrorCode.INVALID_SHARE_SESSION_EPOCH


def test_a_session_has_no_more_than_so_and_so_many_partitions(sessions: Sessions) -> None:
    owner = Session("10.0.0.1:1")
    refs = [(TopicRef("orders"), index) for index in range(10_001)]
    sessions.acquire(sessions.cache.open(owner, "g", "m", REFS), 1)
    assert refusal(sessions.cache.open, owner, "g", "m", refs) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert sessions.released == [("g", "m", [1])], "of the session before"
    session = sessions.cache.open(owner, "g", "m", refs[:10_000])
    sessions.acquire(session, 0)
    refused = refusal(sessions.cache.change, session, refs[10_000:], [])
    assert refused is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    owner.end()
    assert sessions.released == [("g", "m", [1]), ("g", "m", [0])]


def test_only_what_was_acquired_by_the_session_is_released(sessions: Sessions) -> None:
    owner = Session("10.0.0.1:1")
    session = sessions.cache.open(owner, "g", "m", REFS)
    for first, last in ((10, 12), (13, 15), (2, 3), (11, 11), (15, 20)):
        sessions.acquire(session, 0, first, last)
    sessions.cache.end(session)
    assert sessions.ranges == [[(2, 3), (10, 15), (16, 20)]]
    session = sessions.cache.open(owner, "g", "m", REFS)
    for offset in range(0, 4 * HELD_RANGES_MAX, 2):
        sessions.acquire(session, 0, offset, offset)
    sessions.cache.end(session)
    assert sessions.ranges[0][0] == (2 * HELD_RANGES_MAX, 2 * HELD_RANGES_MAX)
    assert len(sessions.ranges[0]) == HELD_RANGES_MAX
