"""Members that wait: what wakes them, what does when nothing is announced, and the end of their worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from korvet.domain.groups.membership import LOOK_MS
from korvet.errors import ErrorCode, KafkaError
from korvet.storage.group_types import Joined, Sync
from tests.domain.groups.worker import SECONDS_MAX, Worker


@pytest.fixture
def worker(redis_url: str, raw_redis: Any) -> Iterator[Worker]:
    made = Worker(redis_url, raw_redis)
    yield made
    made.close()


@pytest.fixture
def other(redis_url: str, raw_redis: Any) -> Iterator[Worker]:
    made = Worker(redis_url, raw_redis)
    yield made
    made.close()


def outcome(greenlet: gevent.Greenlet[..., Joined]) -> Joined:
    return greenlet.get(timeout=SECONDS_MAX)


def test_a_member_that_waits_is_woken_by_what_another_worker_does(worker: Worker, other: Worker) -> None:
    other.group.stable("a")
    waiting = worker.joining()
    assert not waiting.dead
    assert other.group.joined("a").generation == 2
    assert outcome(waiting).generation == 2


def test_what_is_not_announced_is_found_by_a_look(worker: Worker, other: Worker, monkeypatch: Any) -> None:
    other.group.stable("a")
    waiting = worker.joining()
    # Redis publishes, and nobody hears it: as where the subscription is cut at this moment.
    monkeypatch.setattr(worker.subscriptions, "_tell", lambda *_: None)
    other.group.joined("a")
    assert outcome(waiting).generation == 2
    assert LOOK_MS <= 1000


def test_a_subscription_that_is_cut_delays_nobody(worker: Worker, other: Worker) -> None:
    other.group.stable("a")
    waiting = worker.joining()
    other.group.raw.client_kill_filter(_type="pubsub")
    other.group.joined("a")
    assert outcome(waiting).generation == 2


def test_a_member_that_waits_finds_that_another_is_gone(worker: Worker, other: Worker) -> None:
    other.group.stable("a")
    waiting = worker.joining()
    other.group.time_is_up_for("a")
    assert outcome(waiting).generation == 2
    assert other.group.ids() == {outcome(waiting).member_id}


def test_a_worker_that_drains_sends_its_members_elsewhere_and_they_stay_members(
    worker: Worker, other: Worker
) -> None:
    other.group.stable("a")
    waiting = worker.joining()
    [member] = other.group.ids() - {"a"}
    worker.groups.drain()
    with pytest.raises(KafkaError) as refusal:
        outcome(waiting)
    assert refusal.value.code is ErrorCode.NOT_COORDINATOR
    assert other.group.summary() == ("PreparingRebalance", 1, {"a", member})
    again = other.joining(member)
    assert other.group.joined("a").generation == 2
    assert (outcome(again).generation, outcome(again).member_id) == (2, member)
    # Nor does it park any that come now, of whichever kind.
    with pytest.raises(KafkaError) as refusal:
        worker.groups.sync(
            Sync(
                group="billing",
                member_id=member,
                instance="",
                generation=2,
                protocol_type="",
                protocol="",
                assignments=(),
            )
        )
    assert refusal.value.code is ErrorCode.NOT_COORDINATOR
    assert other.group.part("a", 2, a=b"1", **{member: b"2"}) == b"1"
    assert other.group.part(member, 2) == b"2"


def test_whoever_waits_no_more_leaves_nobody_listening(worker: Worker, other: Worker) -> None:
    other.group.stable("a")
    waiting = worker.joining()
    assert worker.subscriptions._listeners == 1
    other.group.joined("a")
    outcome(waiting)
    assert worker.subscriptions._listeners == 0
