"""The sessions that a worker keeps: how many, whose, and which make room for others."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import gevent
import pytest

from korvet.config.definition import INT32_MAX
from korvet.errors import ErrorCode, KafkaError
from korvet.log import fetch_sessions
from korvet.log.collect import FetchPartitionSpec, FetchResult
from korvet.log.fetch_sessions import EVICTION_SECONDS, NO_SESSION, FetchSession, FetchSessions
from korvet.log.fetch_set import FetchSet
from korvet.log.types import FetchLimits
from korvet.redis.client import Redis
from korvet.redis.pubsub import Subscriptions
from korvet.security.session import Session
from korvet.telemetry import metrics
from korvet.topics.registry import NAME_LENGTH_MAX, Topic, TopicSpec
from korvet.topics.types import Partition, PartitionRef, TopicRef
from tests.support.domain import Domain
from tests.support.proxy import until
from tests.support.refusals import refusal

VERSION = 12
LONG_MS = 30_000
NUMBERS = count()


class Cache:
    """Sessions with three slots, and a clock."""

    def __init__(self, redis_url: str) -> None:
        self.now = 1000.0
        self.subscriptions = Subscriptions(
            Redis(redis_url, timeout_ms=5000, connect_timeout_ms=5000), linger_ms=100
        )
        self.sessions = FetchSessions(self.subscriptions, 3, lambda: self.now)
        self.owner = self.connection()

    def connection(self) -> Session:
        """Return another connection."""
        return Session(f"10.0.0.1:{next(NUMBERS)}")

    def create(self, size: int, owner: Session | None = None, refs: Sequence[Any] | None = None) -> int:
        """Ask for a session of `size` partitions."""
        refs = named(size) if refs is None else refs
        results = [FetchResult()] * len(refs)
        return self.sessions.create(owner or self.owner, VERSION, refs, results)

    def use(self, session_id: int, epoch: int = 1, owner: Session | None = None, **changes: Any) -> Any:
        """Continue a session."""
        given: Any = {"version": VERSION, "refs": (), "forgotten": ()} | changes
        return self.sessions.resume((session_id, epoch), owner or self.owner, **given)

    def lives(self, session_id: int) -> bool:
        """Return whether there is a session, without using it."""
        with pytest.raises(KafkaError) as caught:
            self.use(session_id, epoch=-7)
        return caught.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH


@pytest.fixture
def cache(redis_url: str) -> Iterator[Cache]:
    """Give an empty cache; at its end what was counted is what there was."""
    before = counted()
    made = Cache(redis_url)
    yield made
    made.owner.end()
    assert counted() == before
    made.subscriptions.close()


def named(size: int, topic: str = "orders", first: int = 0) -> list[PartitionRef[None]]:
    return [PartitionRef(TopicRef(topic), index, None) for index in range(first, first + size)]


def counted() -> list[float]:
    return [_value(each) for each in (metrics.FETCH_SESSIONS, metrics.FETCH_SESSION_PARTITIONS)]


def _value(metric: Any) -> float:
    value: float = metric._value.get()
    return value


def test_sessions_have_numbers_of_their_own_that_are_positive(cache: Cache) -> None:
    sessions = {cache.create(1) for _ in range(3)}
    assert len(sessions) == 3
    assert all(0 < each <= INT32_MAX for each in sessions)


def test_there_are_no_more_than_slots(cache: Cache) -> None:
    first = [cache.create(5) for _ in range(3)]
    assert cache.create(100) == NO_SESSION
    assert all(map(cache.lives, first))


def test_a_connection_that_opens_ever_new_ones_ends_its_own(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_sessions, "OF_CONNECTION_MAX", 2)
    first, second = cache.create(5), cache.create(5)
    cache.now += 1
    cache.use(first)
    third = cache.create(5)
    assert [cache.lives(first), cache.lives(third)] == [True, True]
    assert refusal(lambda: cache.use(second)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    other = cache.connection()
    assert cache.create(5, other) != NO_SESSION
    other.end()


def test_one_that_is_unused_for_long_makes_room_for_a_smaller_one(cache: Cache) -> None:
    first, second, third = (cache.create(5) for _ in range(3))
    cache.now += EVICTION_SECONDS
    cache.use(first)
    assert cache.create(1) == NO_SESSION
    cache.now += 1
    evicted = _value(metrics.FETCH_SESSION_EVICTIONS)
    assert cache.create(1) != NO_SESSION
    assert [cache.lives(each) for each in (first, second, third)] == [True, False, True]
    assert _value(metrics.FETCH_SESSION_EVICTIONS) == evicted + 1


def test_of_those_in_use_an_old_one_makes_room_for_a_larger_one(cache: Cache) -> None:
    large, small, middle = (cache.create(size) for size in (9, 3, 5))
    cache.now += EVICTION_SECONDS + 1
    for each in (large, small, middle):
        cache.use(each)
    assert cache.create(3) == NO_SESSION
    assert cache.create(4) != NO_SESSION
    assert [cache.lives(each) for each in (large, small, middle)] == [True, False, True]
    # The new one is young.
    assert cache.create(5) == NO_SESSION


def test_without_slots_there_are_no_sessions(cache: Cache) -> None:
    none = FetchSessions(cache.subscriptions, 0)
    assert none.create(cache.owner, VERSION, named(1), [FetchResult()]) == NO_SESSION


@pytest.mark.parametrize(
    "refs", [[], named(1, "x" * (NAME_LENGTH_MAX + 1)), named(fetch_sessions.SESSION_PARTITIONS_MAX + 1)]
)
def test_what_is_too_large_gets_no_session(cache: Cache, refs: list[Any]) -> None:
    assert cache.create(0, refs=refs) == NO_SESSION


def test_a_session_that_becomes_too_large_ends(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 20)
    changes = (
        named(11, first=5),
        named(1, "x" * (NAME_LENGTH_MAX + 1)),
        named(fetch_sessions.SESSION_PARTITIONS_MAX),
    )
    for refs in changes:
        other, session = cache.create(10), cache.create(5)
        assert refusal(partial(cache.use, session, refs=refs)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert [cache.lives(each) for each in (session, other)] == [False, True]
        cache.sessions.close(other, cache.owner)
    assert cache.create(10)
    assert cache.create(11) == NO_SESSION


def test_partitions_are_counted_as_they_come_and_go(cache: Cache) -> None:
    before = counted()[1]
    session = cache.create(5)
    assert len(cache.use(session, 1, refs=named(3, first=4))) == 7
    assert len(cache.use(session, 2, forgotten=[(TopicRef("orders"), [0, 0, 99]), (TopicRef("x"), [1])])) == 6
    assert counted()[1] - before == 6
    assert cache.use(session, 3, forgotten=[(TopicRef("orders"), range(9))]) is None
    assert counted()[1] == before


def test_epochs_begin_again_after_the_last_one(cache: Cache) -> None:
    session_id = cache.create(1)
    session: FetchSession[Any] = cache.use(session_id)
    session.epoch = INT32_MAX
    cache.use(session_id, INT32_MAX)
    assert session.epoch == 1
    assert cache.use(session_id, 1) is session


def test_a_session_that_ends_is_freed_at_once(cache: Cache) -> None:
    session_id = cache.create(5)
    over = weakref.ref(cache.use(session_id)._reads)
    gc.collect()
    gc.disable()
    try:
        cache.sessions.close(session_id, cache.owner)
        assert over() is None
    finally:
        gc.enable()


def test_another_connection_has_no_part_in_a_session_nor_in_its_end(cache: Cache) -> None:
    session, other = cache.create(1), cache.connection()
    theirs = cache.create(1, other)
    assert refusal(lambda: cache.use(session, owner=other)) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    cache.sessions.close(session, other)
    other.end()
    assert [cache.lives(each) for each in (session, theirs)] == [True, False]
    cache.use(session)


def test_a_fetch_that_is_under_way_in_a_session_that_ends_is_woken_still(
    cache: Cache, here: Domain, there: Domain
) -> None:
    here.topics.create(TopicSpec(name="orders", partitions=2))
    sessions = FetchSessions(here.subscriptions, 1, lambda: cache.now)
    refs = [PartitionRef(TopicRef("orders"), index, 0) for index in range(2)]
    session_id = sessions.create(cache.owner, VERSION, refs, [FetchResult()] * 2)
    session: FetchSession[int] | None = sessions.resume((session_id, 1), cache.owner, VERSION, (), ())
    assert session is not None

    def spec(offset: int, topic: Topic, partition: Partition) -> FetchPartitionSpec:
        return FetchPartitionSpec(topic, partition, offset, 1 << 20)

    def read(reads: FetchSet, due: Sequence[int] | None, waits: bool) -> dict[int, FetchResult]:  # noqa: FBT001 - ReadDue
        return here.fetcher.fetch_due(reads, due, FetchLimits(LONG_MS * waits, 1, 1 << 20))

    waiting = gevent.spawn(session.fetch, here.topics, lambda _topics: {}, spec, read, LONG_MS)
    until(lambda: here.parks)
    cache.now += EVICTION_SECONDS + 1
    other = cache.connection()
    assert sessions.create(other, VERSION, refs[:1], [FetchResult()]) != NO_SESSION
    refused = partial(sessions.resume, (session_id, 2), cache.owner, VERSION, (), ())
    assert refusal(refused) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert here.subscriptions.listeners == 2
    there.append("orders", b"v", partition=1)
    answered = waiting.get(timeout=60)
    assert {partition.index: result.record_count for partition, result in answered} == {0: 0, 1: 1}
    assert here.subscriptions.listeners == 0
    other.end()
