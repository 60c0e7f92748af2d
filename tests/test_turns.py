"""Turns: a long loop lets other greenlets run."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent.socket import wait_write

from korvet import turns
from korvet.turns import CALLS_PER_LOOK, LongArray, in_parts, in_turns
from tests.support.virtual_clock import VirtualClock

ITEMS = range(10 * CALLS_PER_LOOK)


@pytest.fixture
def others() -> Iterator[Callable[[], int]]:
    """Run a greenlet that waits for a socket all the time; gives a function that returns how often it had its turn."""
    had = 0

    def run() -> None:
        nonlocal had
        while True:
            wait_write(here.fileno())
            had += 1

    here, there = socket.socketpair()
    with here, there:
        running = gevent.spawn(run)
        yield lambda: had
        running.kill()


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 3600.0)
    monkeypatch.setattr(turns._Turns, "given_at", math.inf)


@pytest.fixture
def every_look_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", -1.0)


def filled() -> LongArray[int]:
    array = LongArray[int]()
    for item in ITEMS:
        array.append(item)
    return array


@pytest.mark.usefixtures("every_look_is_late")
@pytest.mark.parametrize(
    "loop",
    [lambda: list(in_turns(ITEMS)), filled, lambda: [item for item in LongArray(ITEMS)]],  # noqa: C416 - it is how handlers iterate
)
def test_others_have_their_turn_in_a_long_loop(
    others: Callable[[], int], loop: Callable[[], list[int]]
) -> None:
    before = others()
    assert loop() == list(ITEMS)
    assert others() - before >= len(ITEMS) // CALLS_PER_LOOK - 2


@pytest.mark.usefixtures("no_time_passes")
def test_nobody_waits_for_a_loop_that_is_short(others: Callable[[], int]) -> None:
    assert list(in_turns(ITEMS)) == list(ITEMS)
    assert others() == 0


def test_parts_are_the_items_in_order_and_one_at_least() -> None:
    assert list(in_parts(range(5), 2)) == [range(2), range(2, 4), range(4, 5)]
    assert list(in_parts([], 2)) == [[]]


@pytest.mark.parametrize("now", [5.0, 5.003, 5.3, 5.9995])
@pytest.mark.parametrize("seconds", [1, 10 / 3, 5.0])
def test_a_pause_of_seconds_ends_with_a_whole_second(now: float, seconds: float) -> None:
    clock = VirtualClock()
    clock.advance(now)
    pause = clock.to_whole_second(seconds)
    assert clock.monotonic() + pause == round(clock.monotonic() + pause)
    assert abs(pause - seconds) <= 0.5


def test_a_short_pause_stays_as_it_is() -> None:
    assert VirtualClock().to_whole_second(0.1) == 0.1
