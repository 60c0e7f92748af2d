"""The keeper's tasks for groups: sessions and phases whose time is over, and committed offsets past their retention."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from korvet import logs
from korvet.clock import CLOCK, Clock
from korvet.cluster.brokers import BrokerStore
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.groups.expiry import OffsetExpiry
from korvet.groups.listing import GroupList
from korvet.groups.offsets import OffsetStore
from korvet.groups.store import GroupStore
from korvet.redis.client import RedisNode
from korvet.redis.replies import time_ms
from korvet.server.keeper.context import CheckLease, Context
from korvet.server.keeper.due import OUTAGE_MS, DueNames, TakenNames
from korvet.server.keeper.redis_clocks import RedisClocks
from korvet.telemetry import metrics
from korvet.turns import in_parts

_log = logs.Log(__name__)

EXPIRE_GROUPS_MS = 1000
"""How much later than its session timeout a member may be removed; each node has a command on one key a second."""

_GROUPS_PER_STEP = 100
_EXPIRY_GROUPS_PER_STEP = 20

_MS_PER_MINUTE = 60_000


class ExpireGroups:
    """Advances every group with a deadline that is over: a worker with a request of the group may have done it already.

    After an outage all sessions begin again, as in Kafka when another broker takes over a group: members could not
    renew them, and the end of an outage costs no rebalance. So they do over a new connection to Redis: it may lead to
    another server, by whose clock all of them are over. In a cluster those of that node's groups do; if it has the
    list, which may have lost deadlines, all others are looked at. Those of a group also do if it was due while its
    node was away, or hung. But not when this keeper takes over from one that ended: meanwhile brokers served members.
    And so they do where the clock of a Redis was set: no deadline there means what it did.
    """

    def __init__(self, taken: TakenNames | None = None, *, clock: Clock = CLOCK) -> None:
        """Share `taken` with the runs of other nodes of a cluster: each takes groups of any node off the one list."""
        self._due = DueNames(taken or TakenNames("group"), clock=clock)
        self._clock = clock
        self._last_turn: float | None = None
        # How many connections to each node there had been at the last turn.
        self._connections: dict[RedisNode, int] = {}
        self._losses = 0
        # Groups whose sessions could not begin again yet, for instance while their slot moves.
        self._unresumed: set[str] = set()
        self._clocks = RedisClocks(clock=clock)

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Advance every group that is due; raises StorageUnavailableError."""
        store = _group_store(context)
        last, losses = self._last_turn, self._due.taken.losses
        listing = context.redis.node_of(context.keys.groups)
        connections = connect(context, listing)
        renewed = {node for node, count in connections.items() if self._connections.get(node) != count}
        renewed |= self._clocks.set_since(connections)
        is_late = last is not None and self._clock.monotonic() - last > OUTAGE_MS / 1000
        if losses != self._losses or is_late:
            renewed = set(connections)
        if renewed and (last is not None or not _were_served(context, listing)):
            self._unresumed |= _resume_all(
                context, store, check_lease, renewed, looks_at_all=listing in renewed
            )
        self._connections, self._losses = connections, losses
        self._due.look(context, store.schedule, partial(self._look, store), check_lease)
        self._last_turn = self._clock.monotonic()
        self._clocks.keep()
        with contextlib.suppress(KafkaError):  # memory is full: the next keeper begins sessions again
            listing.call("HSET", context.keys.groups_looked_at, context.node, self._due.taken.now_ms)

    def _look(
        self, store: GroupStore, names: Sequence[str], back: AbstractSet[str]
    ) -> dict[str, int | KafkaError]:
        """Advance groups, or resume those that were not, or whose node was away when something was due in them."""
        away = [name for name in names if name in back or name in self._unresumed]
        present = [name for name in names if name not in away]
        resumed = dict(zip(away, store.resume_all(away), strict=True))
        self._unresumed -= {name for name, due in resumed.items() if not isinstance(due, KafkaError)}
        return resumed | dict(zip(present, store.advance_all(present), strict=True))


def connect(context: Context, listing: RedisNode) -> dict[RedisNode, int]:
    """Connect to the run's nodes and `listing`, unless away; returns how many connections to each there have been."""
    redis = context.redis
    nodes = [redis.node_named(context.node), listing] if context.node else redis.nodes()
    for node in nodes:
        with contextlib.suppress(StorageUnavailableError):
            node.connect()
    return {node: node.connections for node in nodes}


def _were_served(context: Context, listing: RedisNode) -> bool:
    """Return whether the run's groups were looked at just now, and a live broker was there already then.

    So it is when a keeper takes over, not after an outage of all brokers or of Redis.
    """
    asked = [("TIME",), ("HGET", context.keys.groups_looked_at, context.node)]
    time, looked_at = listing.pipeline(asked)
    if not isinstance(looked_at, bytes) or not looked_at.isdigit():
        return False
    age_ms = time_ms(time) - int(looked_at)
    if not 0 <= age_ms <= context.settings.keeper_lease_ms + 2 * OUTAGE_MS:
        return False
    store = BrokerStore(context.redis, context.keys)
    try:
        brokers = store.read(store.begin_read().result()).brokers
    except KafkaError:
        return False  # of those who could have served members nothing is known
    return any(broker.started_ms < int(looked_at) for broker in brokers)


def _resume_all(
    context: Context,
    store: GroupStore,
    check_lease: CheckLease,
    nodes: set[RedisNode],
    *,
    looks_at_all: bool,
) -> set[str]:
    """Begin the sessions of the groups of some nodes again; advance the run's others if all are to be looked at.

    Returns the groups of those nodes that it could not resume.
    """
    failed: set[str] = set()

    def is_there(group: str) -> bool:
        with contextlib.suppress(StorageUnavailableError):
            return context.redis.node_of(context.keys.group_state(group)) in nodes
        return False  # no node has its slot

    for names in _groups(context):
        for chunk in in_parts(names, _GROUPS_PER_STEP):
            check_lease()
            resumed = [group for group in chunk if is_there(group)]
            others = [group for group in chunk if looks_at_all and group not in resumed]
            outcomes = [*store.resume_all(resumed), *store.advance_all(others)]
            for group, due in zip([*resumed, *others], outcomes, strict=True):
                if isinstance(due, KafkaError):
                    # It is logged again when something is due in it.
                    _log.debug("sessions of a group not resumed", group=group, reason=due)
                    failed |= {group} & set(resumed)
                else:
                    store.schedule.lower_soon(group, due)
    store.schedule.flush()
    return failed


def _groups(context: Context) -> Iterator[list[str]]:
    """Yield the names of the groups that the run is for."""
    for names in GroupList(context.redis, context.keys).names():
        yield [name for name in names if context.has(context.keys.group_state(name))]


def expire_offsets(context: Context, check_lease: CheckLease) -> None:
    """Delete expired offsets of every group (offsets.retention.minutes), and groups with nothing left."""
    settings = context.settings
    store = OffsetStore(context.redis, context.keys, mirror=settings.group_mirror)
    expiry = OffsetExpiry(
        store,
        _group_store(context),
        settings.offsets_retention_minutes * _MS_PER_MINUTE,
        settings.producer_id_expiration_ms,
    )
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
        raise away  # a node of a cluster: the groups of others were looked at


def _group_store(context: Context) -> GroupStore:
    return GroupStore(
        context.redis,
        context.keys,
        size_max=context.settings.group_max_size,
        initial_delay_ms=context.settings.group_initial_rebalance_delay_ms,
    )
