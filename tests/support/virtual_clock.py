"""A clock whose time is virtual: it moves when a test moves it, or when the test itself waits.

Only greenlets that the clock has spawned count. Each is running, waits for Redis or a socket, or waits for this clock;
the clock is idle when all that are left wait for it. After `run_until_idle` only time, a message of pub/sub
or the test itself can change anything.

If the test's own greenlet waits for the clock, time moves on from one deadline to the next until it is woken.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import gevent
from gevent.event import Event

from korvet.clock import Clock

P = ParamSpec("P")
R = TypeVar("R")

REAL_SECONDS_MAX = 60.0
"""How long Redis, or a greenlet that runs, may keep the clock from being idle."""


class _Wait:
    """A greenlet that waits for this clock, for an event too if it is given one."""

    def __init__(self, deadline: float, event: Event | None) -> None:
        self.deadline, self.event = deadline, event
        self.woken = Event()

    def is_over(self) -> bool:
        return self.woken.is_set() or (self.event is not None and self.event.is_set())


class VirtualClock(Clock):
    """Time begins at 1,000 monotonic seconds, and at the right wall time."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._wall = time.time() - self._now
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._greenlets: set[object] = set()
        self._waits: dict[object, _Wait] = {}

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return self._wall + self._now

    def boot_time(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._wait(None, seconds)

    def wait(self, event: Event, seconds: float | None = None) -> bool:
        if not event.is_set():
            self._wait(event, float("inf") if seconds is None else seconds)
        return bool(event.is_set())

    @contextmanager
    def timeout(self, seconds: float, error: Exception) -> Iterator[None]:
        """Raise `error` in the greenlet when virtual time is up, also while it waits for a socket."""
        greenlet = gevent.getcurrent()
        is_open = [True]

        def expire() -> None:
            if is_open:
                self._waits.pop(greenlet, None)
                gevent.get_hub().loop.run_callback(greenlet.throw, error)

        self._at(self._now + seconds, expire)
        try:
            yield
        finally:
            is_open.clear()

    def spawn(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> gevent.Greenlet[P, R]:
        greenlet = gevent.spawn(call, *args, **kwargs)
        self._greenlets.add(greenlet)
        greenlet.rawlink(self._greenlets.discard)
        return greenlet

    def spawn_later(
        self, seconds: float, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> gevent.Greenlet[P, R]:
        greenlet: gevent.Greenlet[P, R] = gevent.Greenlet(call, *args, **kwargs)

        def start() -> None:
            if not greenlet.dead:
                self._greenlets.add(greenlet)
                greenlet.rawlink(self._greenlets.discard)
                greenlet.start()

        self._at(self._now + seconds, start)
        return greenlet

    def run_until_idle(self) -> None:
        """Let all greenlets of this clock run until each waits for it; fails if one does not within a real minute."""
        until = time.monotonic() + REAL_SECONDS_MAX
        gevent.sleep(0)
        while running := [greenlet for greenlet in self._greenlets if not self._is_waiting(greenlet)]:
            assert time.monotonic() < until, f"these do not wait for the clock: {running}"
            gevent.sleep(0.0002)

    def run_until(self, condition: Callable[[], object]) -> None:
        """Let greenlets run, without moving time, until the condition holds: what a message of pub/sub is to bring."""
        until = time.monotonic() + REAL_SECONDS_MAX
        while not condition():
            assert time.monotonic() < until, "the condition does not come true"
            gevent.sleep(0.0002)

    def advance(self, seconds: float) -> None:
        """Move time on, from one deadline to the next; before and after each the clock is idle."""
        self.run_until_idle()
        self._advance_to(self._now + seconds, self.run_until_idle)

    def jump(self, seconds: float) -> None:
        """Move time on at once, while greenlets may wait for sockets."""
        self._advance_to(self._now + seconds, lambda: gevent.sleep(0))

    def _advance_to(self, until: float, settle: Callable[[], object]) -> None:
        while self._due and self._due[0][0] <= until:
            self._pass_to_next()
            settle()
        self._now = until

    def _pass_to_next(self) -> None:
        """Move to the next deadline, and wake all that have it."""
        self._now = max(self._now, self._due[0][0])
        while self._due and self._due[0][0] <= self._now:
            heapq.heappop(self._due)[2]()

    def _at(self, deadline: float, call: Callable[[], object]) -> None:
        if deadline != float("inf"):
            heapq.heappush(self._due, (deadline, next(self._order), call))

    def _is_waiting(self, greenlet: object) -> bool:
        wait = self._waits.get(greenlet)
        return wait is not None and not wait.is_over()

    def _wait(self, event: Event | None, seconds: float) -> None:
        greenlet = gevent.getcurrent()
        wait = _Wait(self._now + max(0.0, seconds), event)
        self._at(wait.deadline, wait.woken.set)
        wake = lambda _event: wait.woken.set()  # noqa: E731 - unlinked below
        if event is not None:
            event.rawlink(wake)
        self._waits[greenlet] = wait
        try:
            if greenlet in self._greenlets:
                wait.woken.wait()
            else:
                self._drive(wait)
        finally:
            self._waits.pop(greenlet, None)
            if event is not None:
                event.unlink(wake)

    def _drive(self, wait: _Wait) -> None:
        """Wait in a greenlet that the clock does not know, as the test's own: when all is idle, time goes on."""
        while not wait.is_over():
            self.run_until_idle()
            if not wait.is_over():
                assert self._due, "nothing will ever happen: all wait, and no deadline is left"
                self._pass_to_next()
