"""What the keeper has to look at, as a list says when (groups/schedule.py): groups, or transactional ids.

There is one list, and each node of a cluster has a run of its own. Each run takes names of any node off the list, and
looks at those of its own node: so one that is away or hangs holds up only its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

import gevent

from korvet import logs
from korvet.clock import CLOCK, Clock
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.groups.schedule import NOT_THERE, Schedule
from korvet.redis.keys import Keys, decode_group_id
from korvet.server.keeper.context import CheckLease, Context

_log = logs.Log(__name__)

_AT_ONCE = 100

UNLIST_AFTER_MS = 60_000
"""How long a name without a group stays listed: who listed it may not create the group any more (lua/shared/listed)."""

OUTAGE_MS = 5000
"""This long without a turn is an outage: turns are a second apart, and no session is shorter than a few of them."""

Look: TypeAlias = Callable[[Sequence[str], AbstractSet[str]], Mapping[str, int | KafkaError]]
"""Does what is due; returns for each name when (ms) something is due again, NOTHING_DUE, NOT_THERE or its error.

The second argument is which of the names were due while their node was away, or hung.
"""


Kind = Literal["group", "transactional id"]
"""What is listed, as log lines call it."""


class _Taken(NamedTuple):
    """A name taken off the list: its entry in `DueGroups`, and when, by the keeper's clock."""

    time_ms: float
    now_ms: int
    again_ms: int
    at: float


class TakenNames:
    """Names that the run of any node has taken off the list, until that of their own node has looked at them.

    `losses` counts how often what was taken may not have arrived: those names have no deadline in the list. `now_ms` is
    when names were taken last, by Redis' clock.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.losses = self.now_ms = 0
        self._at: dict[str, dict[bytes, _Taken]] = {}

    def has(self, context: Context, name: str) -> bool:
        return context.has(self._key(context.keys, name))

    def _key(self, keys: Keys, name: str) -> str:
        """Return a key of a name, whose node it is for."""
        return keys.group_state(name) if self.kind == "group" else keys.transaction(name)

    def take(self, context: Context, schedule: Schedule, now: float) -> bool:
        """Take the most urgent names; returns whether there were any. Raises StorageUnavailableError."""
        nodes = context.nodes()
        try:
            due = schedule.take_due(_AT_ONCE)
        except (StorageUnavailableError, gevent.GreenletExit):
            self.losses += 1
            raise
        self.now_ms = due.now_ms
        for name, time_ms in due.times_ms.items():
            self._put(context, name, _Taken(time_ms, due.now_ms, due.again_ms, now))
        for node in self._at.keys() - nodes:  # it is no master any more, or none had the slot
            for name, taken in self._at.pop(node).items():
                self._put(context, name, taken)
        return bool(due.times_ms)

    def next(self, context: Context) -> dict[bytes, _Taken]:
        """Give up to a step's names of the run's node, for the caller to look at or `put_back`."""
        there = self._at.get(context.node, {})
        return {name: there.pop(name) for name in list(islice(there, _AT_ONCE))}

    def put_back(self, context: Context, names: Mapping[bytes, _Taken]) -> None:
        """Take names back that could not be looked at, as if they had waited for long."""
        for name, taken in names.items():
            self._put(context, name, taken._replace(at=-math.inf))

    def _put(self, context: Context, name: bytes, taken: _Taken) -> None:
        node = context.node and context.node_of_key(self._key(context.keys, _decoded(name)))
        there = self._at.setdefault(node, {})
        known = there.get(name, taken)  # it was due again meanwhile
        latest = max(known, taken, key=lambda statistic: statistic.again_ms)
        there[name] = latest._replace(at=min(known.at, taken.at))


class DueNames:
    """The names of one run whose time has come, turn by turn."""

    def __init__(self, taken: TakenNames, *, clock: Clock = CLOCK) -> None:
        """Share `taken` with runs of other nodes."""
        self.taken = taken
        self._clock = clock
        # Names whose errors were logged.
        self._logged: set[str] = set()

    def look(self, context: Context, schedule: Schedule, look: Look, check_lease: CheckLease) -> None:
        """Look at all that is due; raises KafkaError, StorageUnavailableError."""
        logged: set[str] = set()
        next_turn: dict[bytes, float] = {}
        left: dict[bytes, _Taken] = {}
        more = True
        try:
            while True:
                check_lease()
                more = more and self.taken.take(context, schedule, self._clock.monotonic())
                chunk = self.taken.next(context)
                if not chunk and not more:
                    break
                left |= chunk
                looked_at = self._step(schedule, look, chunk, next_turn, logged)
                for name in looked_at - next_turn.keys():
                    del left[name]
                if chunk and not looked_at:
                    break  # the node is away
            schedule.lower(next_turn)
            for name in next_turn:
                del left[name]
        finally:
            self.taken.put_back(context, left)
        self._logged = logged

    def _step(
        self,
        schedule: Schedule,
        look: Look,
        chunk: Mapping[bytes, _Taken],
        next_turn: dict[bytes, float],
        logged: set[str],
    ) -> set[bytes]:
        """Look at names; returns those whose node was not away."""
        later: dict[bytes, float] = {}
        away: set[bytes] = set()
        names = {_decoded(name): name for name in chunk}
        outage_from = self._clock.monotonic() - OUTAGE_MS / 1000
        back = {decoded for decoded, name in names.items() if chunk[name].at < outage_from}
        for decoded, outcome in look(list(names), back).items() if names else ():
            name, taken = names[decoded], chunk[names[decoded]]
            if isinstance(outcome, StorageUnavailableError):
                away.add(name)
            elif isinstance(outcome, KafkaError):
                if decoded not in self._logged and decoded not in logged:
                    kind = self.taken.kind
                    named = {kind.replace(" ", "_"): decoded}
                    _log.warning(f"{kind} not advanced", **named, reason=outcome)
                logged.add(decoded)
                next_turn[name] = taken.time_ms
            elif outcome > taken.now_ms:
                later[name] = outcome
            elif outcome >= 0 or (outcome == NOT_THERE and taken.now_ms - taken.time_ms < UNLIST_AFTER_MS):
                next_turn[name] = taken.time_ms
            elif outcome == NOT_THERE:
                schedule.unlist(name, taken.again_ms)
        schedule.lower(later)
        return chunk.keys() - away


def _decoded(name: bytes) -> str:
    return decode_group_id(name.decode(errors="replace"))
