"""Fetching for share groups on a real Redis: locks that end, bounds, and what a fetch costs."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import gevent
import pytest

from korvet.cluster.group_configs import SharePolicy
from korvet.log.types import FetchLimits
from korvet.redis.pubsub import Watch
from korvet.share.acknowledge import Acknowledger
from korvet.share.fetch import SEARCH_SECONDS, ShareFetcher
from korvet.share.parts import ShareAsk, SharePart, ShareResult, ShareSet
from korvet.share.positions import Positions
from korvet.share.store import SharePartitions
from korvet.share.types import ACCEPT, RELEASE, AckRange
from korvet.topics.registry import TopicSpec
from korvet.topics.types import PartitionRef, TopicRef
from tests.support.batches import Record, read
from tests.support.domain import Domain
from tests.support.redis_requests import requests_of
from tests.support.virtual_clock import VirtualClock

LONG_MS = 30_000
SECONDS_MAX = 60.0
GROUP = "workers"
POLICY = SharePolicy(lock_ms=60_000, delivery_limit=5, in_flight_max=2_000)


class Worker:
    """The fetcher of a worker, with members of one group."""

    def __init__(self, view: Domain, clock: VirtualClock) -> None:
        self.view, self.clock = view, clock
        store = SharePartitions(view.redis)
        self.reset: str | int = "earliest"
        self.positions = Positions(store, view.offsets, view.replicas, lambda _: self.reset, clock=clock)
        self.fetcher = ShareFetcher(view.log, store, self.positions, view.remote, view.replicas, clock=clock)
        self.acknowledger = Acknowledger(store, view.topics, view.replicas)

    def append(self, count: int) -> None:
        """Append records with the values 0, 1, 2 ... one by one."""
        for number in range(count):
            self.view.append("orders", b"%d" % number)

    def member(self, *partitions: int, reset: str | int = "earliest", policy: SharePolicy = POLICY) -> Member:
        """Return a member of the group, which begins there."""
        self.reset = reset
        return Member(self, partitions or (0,), policy)


class Member:
    """A member whose session has partitions of topic `orders`."""

    names = itertools.count()

    def __init__(self, worker: Worker, partitions: tuple[int, ...], policy: SharePolicy) -> None:
        self.worker, self.policy = worker, policy
        self.ask = ShareAsk(
            group=GROUP,
            member=f"m{next(self.names)}",
            records_max=500,
            batch_size=500,
            exact=True,
            policy=policy,
            committed=False,
        )
        self.set = ShareSet(Watch(worker.view.subscriptions, clock=worker.clock))
        topic = worker.view.topics.get("orders")
        for place, index in enumerate(partitions):
            part = self.set.parts[place] = SharePart(TopicRef("orders"), index, place)
            self.set.use(part, topic, topic.partition(index))

    def fetch(
        self, wait_ms: int = 0, records: int = 500, *, bytes_min: int = 1, bytes_max: int = 1 << 20
    ) -> dict[int, ShareResult]:
        return self.worker.fetcher.fetch(
            self.set,
            set(self.set.parts),
            self.ask._replace(records_max=records),
            FetchLimits(wait_ms, bytes_min, bytes_max),
        )

    def poll(self, wait_ms: int = 0, records: int = 500, **limits: int) -> list[tuple[Record, int]]:
        """Return the records that one fetch acquires, each with how often it was delivered."""
        result = []
        for item in self.fetch(wait_ms, records, **limits).values():
            assert item.error is None
            held = {record.offset: record for record in read(b"".join(item.chunks))}
            for first, last, count in item.acquired:
                offsets = [offset for offset in held if first <= offset <= last]
                assert offsets
                result += [(held[offset], count) for offset in offsets]
        return result

    def values(self, wait_ms: int = 0, records: int = 500, **limits: int) -> list[bytes | None]:
        return [record.value for record, _ in self.poll(wait_ms, records, **limits)]

    def waiting(self, wait_ms: int = LONG_MS, **limits: int) -> gevent.Greenlet[..., list[bytes | None]]:
        """Fetch in a greenlet of its own, which waits for records when this returns."""
        fetching = self.worker.clock.spawn(self.values, wait_ms, **limits)
        self.worker.clock.run_until_idle()
        assert not fetching.dead
        return fetching

    def acknowledge(self, records: list[tuple[Record, int]], kind: int = ACCEPT) -> None:
        ranges = [AckRange(item.offset, item.offset, [kind]) for item, _ in records]
        ref = PartitionRef(TopicRef("orders"), 0, ranges)
        assert self.worker.acknowledger.acknowledge(GROUP, self.ask.member, self.policy, [ref]) == [None]


@pytest.fixture(params=["record", "batch"])
def worker(here: Domain, clock: VirtualClock, request: pytest.FixtureRequest) -> Worker:
    configs = {"storage.format": request.param}
    here.topics.create(TopicSpec(name="orders", partitions=3, configs=configs))
    return Worker(here, clock)


def test_a_lock_that_ends_wakes_who_waits(worker: Worker) -> None:
    worker.view.append("orders", b"1", b"2")
    policy = POLICY._replace(lock_ms=300)
    one, two = worker.member(policy=policy), worker.member(policy=policy)
    assert one.values() == [b"1", b"2"]
    counts: list[int] = []
    while len(counts) < 2:  # the locks of records that were acquired one after the other end so
        # Redis' clock decides: this one may come to the end of the wait before it.
        counts += [count for _, count in two.poll(LONG_MS)]
    assert counts == [2, 2]


def test_released_records_are_delivered_before_new_ones(worker: Worker) -> None:
    worker.append(4)
    one, two = worker.member(), worker.member()
    result = one.poll(records=2)
    assert two.values(records=1) == [b"2"]
    one.acknowledge(result, RELEASE)
    assert two.values() == [b"0", b"1", b"3"]


def test_a_fetch_is_two_round_trips(worker: Worker) -> None:
    one = worker.member()
    worker.append(20)
    assert one.values(records=1) == [b"0"]  # it learns what records weigh
    requests = requests_of(worker.view.redis)
    assert len(one.values(records=5)) == 5
    assert len(one.values(records=5)) == 5
    # Each reads once, in a transaction, and acquires once; no command is of a record.
    assert requests == 2 * [("commands", 4), ("share/acquire", 1)]


def test_a_wait_costs_nothing_while_nothing_comes(worker: Worker) -> None:
    one = worker.member(reset="latest")
    assert one.values() == []
    assert one.values(1) == []
    waiting = one.waiting()
    requests = requests_of(worker.view.redis)
    worker.clock.advance(SEARCH_SECONDS - 1)
    assert requests == []
    worker.view.append("orders", b"1")
    assert waiting.get(timeout=SECONDS_MAX) == [b"1"]


def test_members_of_a_worker_read_what_others_have_not_acquired(worker: Worker) -> None:
    members = [worker.member() for _ in range(4)]
    worker.append(41)
    members[0].values(records=1)
    for member in members:
        member.values(records=1)
    requests = requests_of(worker.view.redis)
    fetching = [worker.clock.spawn(member.values, LONG_MS, 9) for member in members]
    result = [item.get(timeout=SECONDS_MAX) for item in fetching]
    assert Counter(itertools.chain(*result)) == Counter(b"%d" % number for number in range(5, 41))
    # One after the other: none has read in vain.
    assert len(requests) == 2 * len(members)


def test_what_is_in_flight_is_bounded_and_an_acknowledgement_makes_room(worker: Worker) -> None:
    policy = POLICY._replace(in_flight_max=3)
    one, two = worker.member(policy=policy), worker.member(policy=policy)
    worker.append(5)
    assert two.values(records=1) == [b"0"]
    result = one.poll()
    assert [record.value for record, _ in result] == [b"1", b"2"]
    assert two.values() == []
    waiting = two.waiting()
    one.acknowledge(result)
    assert waiting.get(timeout=SECONDS_MAX) == [b"3", b"4"]


def test_records_near_their_last_delivery_come_in_ever_smaller_numbers(worker: Worker) -> None:
    worker.view.append("orders", *(b"%d" % number for number in range(8)))
    one = worker.member(policy=POLICY._replace(delivery_limit=6))
    one.ask = one.ask._replace(exact=False)
    polled = []
    for _ in range(6):
        polled.append(one.poll())
        one.acknowledge(polled[-1], RELEASE)
        worker.positions.set(
            GROUP, one.set.parts[0], None
        )  # the next one is the lowest, as for another worker
    counts = [Counter(count for _, count in result) for result in polled]
    assert counts == [{1: 8}, {2: 8}, {3: 8}, {4: 4}, {5: 2}, {6: 1}]


def test_records_that_have_left_the_log_are_passed_over(worker: Worker, raw_redis: Any) -> None:
    one = worker.member()
    worker.append(4)
    partition = worker.view.topics.get("orders").partition(0)
    ids = [entry_id for entry_id, _ in raw_redis.xrange(partition.stream)]
    raw_redis.xdel(partition.stream, *ids[1:3])
    result: list[bytes | None] = []
    while values := one.values():
        result += values
    assert result == [b"0", b"3"]


def test_what_other_clients_write_is_found_at_the_end_of_a_wait(
    here: Domain, clock: VirtualClock, raw_redis: Any
) -> None:
    here.topics.create(TopicSpec(name="orders", partitions=1))
    one = Worker(here, clock).member(reset="latest")
    assert one.values() == []
    waiting = one.waiting()
    raw_redis.xadd(here.topics.get("orders").partition(0).stream, {"value": "1"})
    clock.advance(LONG_MS / 1000)
    assert waiting.get(timeout=SECONDS_MAX) == [b"1"]


def test_a_group_whose_part_is_deleted_meanwhile_begins_again(worker: Worker) -> None:
    one = worker.member()
    worker.view.append("orders", b"1")
    assert one.values() == [b"1"]
    partition = worker.view.topics.get("orders").partition(0)
    assert SharePartitions(worker.view.redis).delete(GROUP, [partition]) == [True]
    assert one.values() == [b"1"]


def test_a_session_that_ends_ends_the_wait_and_acquires_nothing(worker: Worker) -> None:
    one = worker.member(reset="latest")
    assert one.values() == []
    waiting = one.waiting()
    one.set.close()
    assert waiting.get(timeout=SECONDS_MAX) == []


def test_a_worker_that_stops_acquires_nothing_more(worker: Worker) -> None:
    worker.view.append("orders", b"1")
    one = worker.member()
    waiting = one.waiting(bytes_min=1 << 20)
    worker.fetcher.drain()
    assert waiting.get(timeout=SECONDS_MAX) == []
    assert one.values() == []


def test_an_error_that_the_client_knows_of_does_not_end_the_wait(worker: Worker, raw_redis: Any) -> None:
    one = worker.member(0, 1)
    assert one.values() == []
    raw_redis.hset(worker.view.topics.get("orders").partition(1).share_groups, f"h:{GROUP}", "garbage")
    one.set.parts[1].due = True
    worker.positions.set(GROUP, one.set.parts[1], None)
    result = one.fetch(LONG_MS)
    assert [place for place, item in result.items() if item.error] == [1]
    one.set.parts[1].failed = True
    waiting = worker.clock.spawn(one.fetch, LONG_MS)
    worker.clock.run_until_idle()
    assert not waiting.dead
    worker.view.append("orders", b"1")
    result = waiting.get(timeout=SECONDS_MAX)
    assert {place: item.error is None for place, item in result.items()} == {0: True, 1: False}
    assert [place for place, item in one.fetch().items() if item.error] == [1]


def test_a_worker_that_stops_during_a_look_answers_too(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = worker.member(reset="latest")
    assert one.values(50) == []
    one.set.parts[0].due = True
    acquire = SharePartitions.acquire

    def drained(*args: Any) -> Any:
        worker.fetcher.drain()
        return acquire(*args)

    monkeypatch.setattr(SharePartitions, "acquire", drained)
    before = worker.clock.monotonic()
    assert one.values(LONG_MS) == []
    assert worker.clock.monotonic() == before
