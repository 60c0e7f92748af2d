"""The keeper's tasks for groups: sessions and phases whose time is over, and committed offsets past their retention."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import gevent

from korvet import logs
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.groups.expiry import OffsetExpiry
from korvet.groups.listing import GroupList
from korvet.groups.offsets import OffsetStore
from korvet.groups.schedule import GroupSchedule
from korvet.groups.store import NO_GROUP, GroupStore
from korvet.redis.keys import decode_group_id
from korvet.redis.node import RedisNode
from korvet.server.keeper.context import CheckLease, Context
from korvet.telemetry import metrics
from korvet.turns import in_parts

_log = logs.Log(__name__)

EXPIRE_GROUPS_MS = 1000
"""How much later than its session timeout a member may be removed; each node has a command on one key a second."""

_GROUPS_PER_STEP = 100
_EXPIRY_GROUPS_PER_STEP = 20

UNLIST_AFTER_MS = 60_000
"""How long a name without a group stays listed: who listed it may not create the group any more (lua/shared/listed)."""

OUTAGE_MS = 5000
"""This long without a turn is an outage: turns are a second apart, and no session is shorter than a few of them."""

_MS_PER_MINUTE = 60_000


class _Taken(NamedTuple):
    """A group that was taken off the list: what `DueGroups` has of it, and when that was, by the keeper's clock."""

    time_ms: float
    now_ms: int
    again_ms: int
    at: float


class TakenGroups:
    """Groups that the run of any node has taken off the list, until that of their own node has looked at them.

    `losses` counts how often what was taken may not have arrived: those groups have no deadline in the list.
    """

    def __init__(self) -> None:
        self.losses = 0
        self._at: dict[str, dict[bytes, _Taken]] = {}

    def take(self, context: Context, schedule: GroupSchedule, now: float) -> bool:
        """Take the most urgent groups; returns whether there were any. Raises StorageUnavailableError."""
        nodes = context.nodes()
        try:
            due = schedule.take_due(_GROUPS_PER_STEP)
        except (StorageUnavailableError, gevent.GreenletExit):
            self.losses += 1
            raise
        for name, time_ms in due.times_ms.items():
            self._put(context, name, _Taken(time_ms, due.now_ms, due.again_ms, now))
        for node in self._at.keys() - nodes:  # it is no master any more, or none had the slot
            for name, taken in self._at.pop(node).items():
                self._put(context, name, taken)
        return bool(due.times_ms)

    def next(self, context: Context) -> dict[bytes, _Taken]:
        """Give up to a step's groups of the run's node, for the caller to look at or `put_back`."""
        there = self._at.get(context.node, {})
        return {name: there.pop(name) for name in list(islice(there, _GROUPS_PER_STEP))}

    def put_back(self, context: Context, groups: Mapping[bytes, _Taken]) -> None:
        """Take groups back that could not be looked at, as if they had waited for long."""
        for name, taken in groups.items():
            self._put(context, name, taken._replace(at=-math.inf))

    def _put(self, context: Context, name: bytes, taken: _Taken) -> None:
        node = context.node and context.node_of_key(context.keys.group_state(_group(name)))
        there = self._at.setdefault(node, {})
        known = there.get(name, taken)  # it was due again meanwhile
        latest = max(known, taken, key=lambda each: each.again_ms)
        there[name] = latest._replace(at=min(known.at, taken.at))


class ExpireGroups:
    """Advances every group with a deadline that is over: a worker with a request of the group may have done it already.

    After an outage all sessions begin again, as in Kafka when another broker takes over a group: members could not
    renew them, and the end of an outage costs no rebalance. So they do over a new connection to Redis: it may lead to
    another server, by whose clock all of them are over. In a cluster those of that node's groups do; if it has the
    list, which may have lost deadlines, all others are looked at. Those of a group also do if it was due while its
    node was away, or hung.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, taken: TakenGroups | None = None) -> None:
        """Share `taken` with the runs of other nodes of a cluster: each takes groups of any node off the one list."""
        # Groups whose errors were logged.
        self._logged: set[str] = set()
        self._clock = clock
        self._last_turn: float | None = None
        # How many connections to each node there had been at the last turn.
        self._connections: dict[RedisNode, int] = {}
        self._taken = taken or TakenGroups()
        self._losses = 0

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Advance every group that is due; raises StorageUnavailableError."""
        store = _group_store(context)
        last, losses = self._last_turn, self._taken.losses
        listing = context.redis.node_of(context.keys.groups)
        connections = _connect(context, listing)
        renewed = {node for node, count in connections.items() if self._connections.get(node) != count}
        if losses != self._losses or last is None or self._clock() - last > OUTAGE_MS / 1000:
            renewed = set(connections)
        if renewed:
            _resume_all(context, store, check_lease, renewed, looks_at_all=listing in renewed)
        self._connections, self._losses = connections, losses
        self._advance_due(context, store, check_lease)
        self._last_turn = self._clock()

    def _advance_due(self, context: Context, store: GroupStore, check_lease: CheckLease) -> None:
        logged: set[str] = set()
        next_turn: dict[bytes, float] = {}
        left: dict[bytes, _Taken] = {}
        more = True
        try:
            while True:
                check_lease()
                more = more and self._taken.take(context, store.schedule, self._clock())
                some = self._taken.next(context)
                if not some and not more:
                    break
                left |= some
                looked_at = self._step(store, some, next_turn, logged)
                for name in looked_at - next_turn.keys():
                    del left[name]
                if some and not looked_at:
                    break  # the node is away
            store.schedule.lower(next_turn)
            for name in next_turn:
                del left[name]
        finally:
            self._taken.put_back(context, left)
        self._logged = logged

    def _step(
        self,
        store: GroupStore,
        some: Mapping[bytes, _Taken],
        next_turn: dict[bytes, float],
        logged: set[str],
    ) -> set[bytes]:
        """Look at groups; returns those whose node was not away."""
        later: dict[bytes, float] = {}
        away: set[bytes] = set()
        for name, outcome in self._look(store, some):
            taken = some[name]
            if isinstance(outcome, StorageUnavailableError):
                away.add(name)
            elif isinstance(outcome, KafkaError):
                group = _group(name)
                if group not in self._logged and group not in logged:
                    _log.warning("group not advanced", group=group, reason=outcome)
                logged.add(group)
                next_turn[name] = taken.time_ms
            elif outcome > taken.now_ms:
                later[name] = outcome
            elif outcome >= 0 or (outcome == NO_GROUP and taken.now_ms - taken.time_ms < UNLIST_AFTER_MS):
                next_turn[name] = taken.time_ms
            elif outcome == NO_GROUP:
                store.schedule.unlist(name, taken.again_ms)
        store.schedule.lower(later)
        return some.keys() - away

    def _look(self, store: GroupStore, some: Mapping[bytes, _Taken]) -> list[tuple[bytes, int | KafkaError]]:
        """Advance groups, or resume those that were due long ago: members could not renew their sessions."""
        outage_from = self._clock() - OUTAGE_MS / 1000
        back = [name for name, taken in some.items() if taken.at < outage_from]
        present = [name for name in some if name not in back]
        outcomes = [*store.resume_all([*map(_group, back)]), *store.advance_all([*map(_group, present)])]
        return list(zip([*back, *present], outcomes, strict=True))


def _group(name: bytes) -> str:
    return decode_group_id(name.decode(errors="replace"))


def _connect(context: Context, listing: RedisNode) -> dict[RedisNode, int]:
    """Connect to the run's nodes and `listing`, unless away; returns how many connections to each there have been."""
    redis = context.redis
    nodes = [redis.node_named(context.node), listing] if context.node else redis.nodes()
    for node in nodes:
        with contextlib.suppress(StorageUnavailableError):
            node.connect()
    return {node: node.connections for node in nodes}


def _resume_all(
    context: Context,
    store: GroupStore,
    check_lease: CheckLease,
    nodes: set[RedisNode],
    *,
    looks_at_all: bool,
) -> None:
    """Begin the sessions of the groups of some nodes again; advance the run's others if all are to be looked at."""

    def is_there(group: str) -> bool:
        with contextlib.suppress(StorageUnavailableError):
            return context.redis.node_of(context.keys.group_state(group)) in nodes
        return False  # no node has its slot

    for names in _groups(context):
        for some in in_parts(names, _GROUPS_PER_STEP):
            check_lease()
            resumed = [group for group in some if is_there(group)]
            others = [group for group in some if looks_at_all and group not in resumed]
            outcomes = [*store.resume_all(resumed), *store.advance_all(others)]
            for group, due in zip([*resumed, *others], outcomes, strict=True):
                if isinstance(due, KafkaError):
                    # It is logged again when something is due in it.
                    _log.debug("sessions of a group not resumed", group=group, reason=due)
                else:
                    store.schedule.lower_soon(group, due)
    store.schedule.flush()


def _groups(context: Context) -> Iterator[list[str]]:
    """Yield the names of the groups that the run is for."""
    for names in GroupList(context.redis, context.keys).names():
        yield [name for name in names if context.has(context.keys.group_state(name))]


def expire_offsets(context: Context, check_lease: CheckLease) -> None:
    """Delete expired offsets of every group (offsets.retention.minutes), and groups with nothing left."""
    settings = context.settings
    store = OffsetStore(context.redis, context.keys, mirror=settings.group_mirror)
    expiry = OffsetExpiry(store, _group_store(context), settings.offsets_retention_minutes * _MS_PER_MINUTE)
    offsets = groups = 0
    away: StorageUnavailableError | None = None
    for names in _groups(context):
        for at in range(0, len(names), _EXPIRY_GROUPS_PER_STEP):
            check_lease()
            expired, errors = expiry.expire(names[at : at + _EXPIRY_GROUPS_PER_STEP])
            offsets += expired.offsets
            groups += expired.groups
            for error in errors:
                if isinstance(error, StorageUnavailableError):
                    away = error
                else:
                    _log.warning("offsets of a group not expired", reason=error)
    if offsets or groups:
        metrics.OFFSETS_EXPIRED.inc(offsets)
        _log.info("expired committed offsets", offsets=offsets, groups=groups)
    if away is not None:
        raise away  # its other groups were looked at


def _group_store(context: Context) -> GroupStore:
    return GroupStore(
        context.redis,
        context.keys,
        size_max=context.settings.group_max_size,
        initial_delay_ms=context.settings.group_initial_rebalance_delay_ms,
    )
