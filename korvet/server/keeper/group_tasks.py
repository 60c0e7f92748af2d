"""The keeper's tasks for groups: sessions and phases whose time is over, and committed offsets past their retention."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from korvet import logs
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.groups.expiry import OffsetExpiry
from korvet.groups.listing import GroupList
from korvet.groups.offsets import OffsetStore
from korvet.groups.store import NO_GROUP, GroupStore
from korvet.redis.client import Redis
from korvet.redis.keys import decode_group_id
from korvet.redis.node import RedisNode
from korvet.server.keeper.context import CheckLease, Context
from korvet.telemetry import metrics
from korvet.turns import in_parts

_log = logs.Log(__name__)

EXPIRE_GROUPS_MS = 1000
"""How much later than its session timeout a member may be removed; one command on one key a second."""

_GROUPS_PER_STEP = 100
_EXPIRY_GROUPS_PER_STEP = 20

UNLIST_AFTER_MS = 60_000
"""How long a name without a group stays listed: who listed it may not create the group any more (lua/shared/listed)."""

OUTAGE_MS = 5000
"""This long without a turn is an outage: turns are a second apart, and no session is shorter than a few of them."""

_MS_PER_MINUTE = 60_000


class ExpireGroups:
    """Advances every group with a deadline that is over: a worker with a request of the group may have done it already.

    After an outage all sessions begin again, as in Kafka when another broker takes over a group: members could not
    renew them, and the end of an outage costs no rebalance. So they do over a new connection to Redis: it may lead to
    another server, by whose clock all of them are over. In a cluster those of that node's groups do; if it has the
    list, which may have lost deadlines, all others are looked at. After a turn that failed in its middle all sessions
    begin again: the groups that it took have no deadline in the list.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        # Groups whose errors were logged.
        self._logged: set[str] = set()
        self._clock = clock
        self._last_turn: float | None = None
        # How many connections to each node there had been at the last turn.
        self._connections: dict[RedisNode, int] = {}
        self._unfinished = False
        # Groups, as the list names them, whose node of a cluster was away.
        self._away: set[bytes] = set()

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Advance every group that is due; raises StorageUnavailableError."""
        store = _group_store(context)
        last = self._last_turn
        listing = context.redis.node_of(context.keys.groups)
        connections = _connect(context.redis)
        renewed = {node for node, count in connections.items() if self._connections.get(node) != count}
        if self._unfinished or last is None or self._clock() - last > OUTAGE_MS / 1000:
            renewed = set(connections)
        if renewed:
            _resume_all(context, store, check_lease, renewed, looks_at_all=listing in renewed)
        self._unfinished = False
        self._connections = connections
        try:
            self._advance_due(store, check_lease)
        except StorageUnavailableError:
            self._unfinished = True  # what Redis has given may not have arrived
            raise
        self._last_turn = self._clock()

    def _advance_due(self, store: GroupStore, check_lease: CheckLease) -> None:
        logged: set[str] = set()
        next_turn: dict[bytes, float] = {}
        while True:
            check_lease()
            due = store.schedule.take_due(_GROUPS_PER_STEP)
            if not due.times_ms:
                break
            self._unfinished = True
            later: dict[bytes, float] = {}
            for name, outcome in self._look(store, list(due.times_ms)):
                time_ms = due.times_ms[name]
                if isinstance(outcome, StorageUnavailableError):
                    self._away.add(name)
                    later[name] = due.now_ms + OUTAGE_MS
                elif isinstance(outcome, KafkaError):
                    group = _group(name)
                    if group not in self._logged and group not in logged:
                        _log.warning("group not advanced", group=group, reason=outcome)
                    logged.add(group)
                    next_turn[name] = time_ms
                elif outcome > due.now_ms:
                    later[name] = outcome
                elif outcome >= 0 or (outcome == NO_GROUP and due.now_ms - time_ms < UNLIST_AFTER_MS):
                    next_turn[name] = time_ms
                elif outcome == NO_GROUP:
                    store.schedule.unlist(name, due.again_ms)
            store.schedule.lower(later)
        store.schedule.lower(next_turn)
        self._unfinished = False
        self._logged = logged

    def _look(self, store: GroupStore, names: list[bytes]) -> list[tuple[bytes, int | KafkaError]]:
        """Advance groups, or resume those whose node was away when something was due in them."""
        back = [name for name in names if name in self._away]
        self._away.difference_update(back)
        present = [name for name in names if name not in back]
        outcomes = [*store.resume_all([*map(_group, back)]), *store.advance_all([*map(_group, present)])]
        return list(zip([*back, *present], outcomes, strict=True))


def _group(name: bytes) -> str:
    return decode_group_id(name.decode(errors="replace"))


def _connect(redis: Redis) -> dict[RedisNode, int]:
    """Connect to the nodes that are not away; returns how many connections to each there have been."""
    nodes = redis.nodes()
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
    """Begin the sessions of the groups of some nodes again; advance the others if all are to be looked at."""

    def is_there(group: str) -> bool:
        with contextlib.suppress(StorageUnavailableError):
            return context.redis.node_of(context.keys.group_state(group)) in nodes
        return False  # no node has its slot

    for names in GroupList(context.redis, context.keys).names():
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


def expire_offsets(context: Context, check_lease: CheckLease) -> None:
    """Delete expired offsets of every group (offsets.retention.minutes), and groups with nothing left."""
    settings = context.settings
    store = OffsetStore(context.redis, context.keys, mirror=settings.group_mirror)
    expiry = OffsetExpiry(store, _group_store(context), settings.offsets_retention_minutes * _MS_PER_MINUTE)
    offsets = groups = 0
    away: StorageUnavailableError | None = None
    for names in GroupList(context.redis, context.keys).names():
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
        raise away  # a node of a cluster: the groups of others were looked at


def _group_store(context: Context) -> GroupStore:
    return GroupStore(
        context.redis,
        context.keys,
        size_max=context.settings.group_max_size,
        initial_delay_ms=context.settings.group_initial_rebalance_delay_ms,
    )
