"""Members that wait: what wakes them, and the end of their worker; test_lost_events.py has lost announcements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from korvet.errors import ErrorCode
from korvet.groups.types import Joined
from tests.groups.support import refused, sync_request
from tests.groups.worker import SECONDS_MAX, Worker
from tests.support.domain import domain
from tests.support.refusals import refusal
from tests.support.virtual_clock import VirtualClock


@pytest.fixture
def worker(redis_url: str, raw_redis: Any, clock: VirtualClock) -> Iterator[Worker]:
    with domain(redis_url) as made:
        yield Worker(made, raw_redis, clock)


@pytest.fixture
def other(redis_url: str, raw_redis: Any, clock: VirtualClock) -> Iterator[Worker]:
    with domain(redis_url) as made:
        yield Worker(made, raw_redis, clock)


def outcome(greenlet: gevent.Greenlet[..., Joined]) -> Joined:
    return greenlet.get(timeout=SECONDS_MAX)


def test_a_member_that_waits_is_woken_by_what_another_worker_does(worker: Worker, other: Worker) -> None:
    other.group.stable("a")
    waiting = worker.joining()
    assert not waiting.dead
    assert other.group.joined("a").generation == 2
    assert outcome(waiting).generation == 2


def test_a_member_that_waits_finds_within_seconds_that_another_is_gone(
    worker: Worker, other: Worker, clock: VirtualClock
) -> None:
    other.group.stable("a")
    waiting = worker.joining()
    other.group.time_is_up_for("a")
    clock.advance(2)
    assert outcome(waiting).generation == 2
    assert other.group.ids() == {outcome(waiting).member_id}


def test_a_worker_that_drains_sends_its_members_elsewhere_and_they_stay_members(
    worker: Worker, other: Worker
) -> None:
    other.group.stable("a")
    member = "b"
    refused("MEMBER_ID_REQUIRED", lambda: other.group.ask(new=member, require_known_member_id=True))
    waiting = worker.joining(member)
    worker.classic.drain()
    assert refusal(outcome, waiting) is ErrorCode.NOT_COORDINATOR
    assert other.group.summary() == ("PreparingRebalance", 1, {"a", member})
    again = other.joining(member)
    assert other.group.joined("a").generation == 2
    assert (outcome(again).generation, outcome(again).member_id) == (2, member)
    # Nor does it park any that come now, of whichever kind.
    refused("NOT_COORDINATOR", lambda: worker.classic.sync(sync_request("billing", member, 2, {})))
    assert other.group.part("a", 2, a=b"1", **{member: b"2"}) == b"1"
    assert other.group.part(member, 2) == b"2"


def test_a_member_that_does_not_know_its_id_is_none_once_its_worker_drains(
    worker: Worker, other: Worker
) -> None:
    other.group.stable("a")
    new, static = worker.joining(), worker.joining(instance="one")
    worker.classic.drain()
    assert refusal(outcome, new) == refusal(outcome, static) == ErrorCode.NOT_COORDINATOR
    # Who has an instance id is found by that.
    assert [member.instance for member in other.group.described().members if member.member_id != "a"] == [
        "one"
    ]


def test_a_member_that_does_not_know_its_id_waits_no_longer_than_it_is_listened_to(
    worker: Worker, other: Worker, clock: VirtualClock
) -> None:
    other.group.stable("a")
    waiting = worker.joining()
    clock.advance(299)
    assert not waiting.dead
    clock.advance(2)
    assert refusal(outcome, waiting) == ErrorCode.UNKNOWN_MEMBER_ID
    assert other.group.ids() == {"a"}
    assert other.group.joined("a").generation == 2


def test_a_member_that_stops_waiting_stops_listening(worker: Worker, other: Worker) -> None:
    other.group.stable("a")
    waiting = worker.joining()
    assert worker.domain.subscriptions.listeners == 1
    other.group.joined("a")
    outcome(waiting)
    assert worker.domain.subscriptions.listeners == 0
