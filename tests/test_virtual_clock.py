"""The virtual clock itself: when it is idle, in which order it wakes, and what ends a wait."""

from __future__ import annotations

import gevent
import pytest
from gevent.event import Event

from tests.support.virtual_clock import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def test_a_sleep_ends_when_its_time_has_come_and_not_before(clock: VirtualClock) -> None:
    sleeper = clock.spawn(clock.sleep, 30)
    clock.advance(29.9)
    assert not sleeper.dead
    clock.advance(0.1)
    assert sleeper.dead


def test_greenlets_wake_in_the_order_of_their_deadlines(clock: VirtualClock) -> None:
    woken: list[tuple[int, float]] = []

    def rest(seconds: int) -> None:
        clock.sleep(seconds)
        woken.append((seconds, clock.monotonic() - 1000))

    for seconds in (3, 1, 2):
        clock.spawn(rest, seconds)
    clock.advance(10)
    assert woken == [(1, 1), (2, 2), (3, 3)]


def test_an_event_ends_a_wait_without_time_passing(clock: VirtualClock) -> None:
    event = Event()
    waiter = clock.spawn(clock.wait, event, 30)
    clock.run_until_idle()
    assert not waiter.dead
    event.set()
    clock.run_until_idle()
    assert waiter.value is True
    assert clock.monotonic() == 1000


def test_the_clock_is_not_idle_while_a_greenlet_waits_for_something_else(clock: VirtualClock) -> None:
    other = Event()
    greenlet = clock.spawn(other.wait)
    gevent.spawn_later(0.01, other.set)
    clock.run_until_idle()
    assert greenlet.dead


def test_time_passes_by_itself_while_the_test_waits(clock: VirtualClock) -> None:
    event = Event()
    clock.spawn_later(5, event.set)
    assert clock.wait(event, 30)
    assert clock.monotonic() == 1005
    assert not clock.wait(Event(), 2)
    assert clock.monotonic() == 1007


def test_a_timeout_is_raised_at_its_time_in_a_wait_for_anything(clock: VirtualClock) -> None:
    def wait() -> str:
        try:
            with clock.timeout(10, TimeoutError("late")):
                Event().wait()
        except TimeoutError as error:
            return str(error)
        return "in time"

    greenlet = clock.spawn(wait)
    gevent.idle()
    clock.jump(9)
    assert not greenlet.dead
    clock.jump(1)
    assert greenlet.get(timeout=10) == "late"


def test_a_timeout_that_was_left_is_not_raised(clock: VirtualClock) -> None:
    with clock.timeout(1, TimeoutError()):
        pass
    clock.sleep(2)


def test_a_greenlet_that_was_killed_before_its_time_does_not_run(clock: VirtualClock) -> None:
    ran: list[int] = []
    clock.spawn_later(1, ran.append, 1).kill()
    clock.advance(2)
    assert not ran
