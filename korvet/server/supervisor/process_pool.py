"""The seats of a broker and who fills them: a child that dies is replaced, ever more slowly where all die.

Knows seats, children and deadlines; not why one is to be replaced, nor in which order all of them end.

Notices workers whose event loop stands still: they keep the clients that they have, and are led new ones to.

Knows the beats that workers leave on the table, and time; what becomes of such a worker is the crew's affair.

A reload in progress: which workers are replaced, which one is next, and what to go back to when one fails.

Knows seats and children as names on a list; starts and ends nothing itself. A seat's successor is started first, and
only when it is ready does the one before it get its SIGTERM: at every moment as many workers accept as before.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable

from korvet import logs
from korvet.config.settings import Settings
from korvet.server.supervisor.children import Child, Children, Seat
from korvet.telemetry.process_table import WORKER_ROWS

LOOK_SECONDS = 10.0
"""How often the supervisor looks."""

LOOKS = 3
"""Looks in a row without a beat after which a worker stands still: no request keeps a loop for so long."""


class HangWatch:
    """Looks at the beats of rows, which `beats` returns; `clock` gives monotonic seconds."""

    def __init__(self, beats: Callable[[int], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._beats = beats
        self._clock = clock
        self._seen: dict[int, tuple[int, int]] = {}
        self.look_at = clock() + LOOK_SECONDS

    def hung(self, children: Iterable[Child]) -> list[Child]:
        """Return those that have stood still for long enough by now, each once; none before the next look is due."""
        now = self._clock()
        if now < self.look_at:
            return []
        # Where this process stood still too, as with a stopped terminal or machine, nobody had a chance to beat.
        late = now > self.look_at + LOOK_SECONDS
        self.look_at = now + LOOK_SECONDS
        former, self._seen = self._seen, {}
        found = []
        for child in children:
            beats = self._beats(child.index)
            before, looks = former.get(child.pid, (0, 0))
            # Without a single beat it is only starting, or of a version that had none.
            looks = looks + 1 if beats and beats == before and not late else 0
            self._seen[child.pid] = (beats, looks)
            if looks == LOOKS:
                found.append(child)
        return found


_log = logs.Log(__name__)

# A worker that uses all of its drain time still ends by itself.
DRAIN_GRACE_SECONDS = 1.0
_LOOP_FAILURES_MIN = 5
_LAST_WORDS_SECONDS = 1.0


class ProcessPool:
    """All seats; `settings` are what a child that is started from now on gets."""

    def __init__(self, seats: list[Seat], children: Children, settings: Settings) -> None:
        self.seats = seats
        self.children = children
        self.settings = settings
        self._hangs = HangWatch(children.table.beats)

    def fill_all(self) -> None:
        """Start a child for every seat without one."""
        for seat in self.seats:
            if seat.child is None:
                self._fill(seat)

    def start(self, seat: Seat) -> Child | None:
        """Fork a child; None when the system has no process or memory left for one."""
        try:
            child = self.children.fork(seat, self.settings)
        except OSError as error:
            _log.error("no process could be started", reason=error)
            return None
        _log.info("started", child=child.name, pid=child.pid)
        return child

    def retire(self, child: Child | None) -> None:
        """Let a child end in its own time, and not longer than its drain may take."""
        if child is None:
            return
        child.retiring = True
        child.kill_at = time.monotonic() + self.settings.drain_timeout_ms / 1000 + DRAIN_GRACE_SECONDS
        self.children.send(child, signal.SIGTERM)

    def close(self, index: int) -> None:
        """Let the child of the fixed row `index` end, and fill its seat no more."""
        for seat in [seat for seat in self.seats if seat.index == index]:
            self.seats.remove(seat)
            self.retire(seat.child)

    def ended(self, child: Child, how: str) -> None:
        """Make room for another in the place of a child that ended."""
        seat = next((seat for seat in self.seats if seat.child is child), None)
        if seat is None or child.retiring:
            _log.info("ended", child=child.name, pid=child.pid, how=how)
        if seat is None:
            return
        seat.child = None
        delay_s = 0.0 if child.retiring else seat.backoff.delay_s(child.worked_s())
        seat.respawn_at = time.monotonic() + delay_s
        if not child.retiring:
            self.children.mark_dead(seat, child)
            self.children.table.count_restart()
            failures = seat.backoff.failures
            write = _log.error if failures >= _LOOP_FAILURES_MIN else _log.warning
            write("died", child=child.name, pid=child.pid, how=how, in_a_row=failures, again_in_s=delay_s)

    def deadlines(self) -> list[float | None]:
        """Return when something is due here, in monotonic seconds."""
        moments = [self._hangs.look_at, *(seat.respawn_at for seat in self.seats)]
        return moments + [child.kill_at for child in self.children.living.values()]

    def act_on_deadlines(self) -> None:
        """Start and kill what is due."""
        now = time.monotonic()
        for seat in self.seats:
            if seat.respawn_at is not None and seat.respawn_at <= now:
                self._fill(seat)
        workers = [child for child in self.children.living.values() if child.index < WORKER_ROWS]
        for child in self._hangs.hung(workers):
            _log.error("stands still and is killed: its stack is on stderr", child=child.name, pid=child.pid)
            self.children.send(child, signal.SIGUSR1)
            child.kill_at = now + _LAST_WORDS_SECONDS
        for child in list(self.children.living.values()):
            if child.kill_at is not None and child.kill_at <= now:
                _log.warning("killed: it did not end in time", child=child.name, pid=child.pid)
                child.kill_at = None
                self.children.send(child, signal.SIGKILL)

    def _fill(self, seat: Seat) -> None:
        seat.child = self.start(seat)
        delay_s = None if seat.child else seat.backoff.delay_s(0.0)
        seat.respawn_at = None if delay_s is None else time.monotonic() + delay_s


# Imports and a connection to Redis take well under a second; beyond this the successor hangs.
_READY_SECONDS_MAX = 30.0


class Rollout:
    """One pass over the workers' seats; `previous` are the settings to go back to, None when this is going back."""

    def __init__(self, seats: Iterable[Seat], previous: Settings | None) -> None:
        self.previous = previous
        self.replaced: list[Seat] = []
        self.successor: Child | None = None
        self.deadline: float | None = None
        """When a successor that is not ready counts as failed, in monotonic seconds."""
        self._waiting = deque(seats)
        self._seat: Seat | None = None

    def next_seat(self) -> Seat | None:
        """Return the seat whose child is to be replaced now, None after the last."""
        return self._waiting.popleft() if self._waiting else None

    def begin(self, seat: Seat, successor: Child) -> None:
        """Note that `successor` was started for `seat`."""
        self._seat, self.successor = seat, successor
        self.deadline = time.monotonic() + _READY_SECONDS_MAX

    def succeed(self) -> Child | None:
        """Give the seat to its successor, which is ready; returns the child that is to end, if it still lives."""
        seat, successor = self._seat, self.successor
        if seat is None or successor is None:
            return None
        before = seat.child
        # A child that died meanwhile is replaced by this one: nobody else is to be started.
        seat.child, seat.respawn_at = successor, None
        self.replaced.append(seat)
        self._seat = self.successor = self.deadline = None
        return before
