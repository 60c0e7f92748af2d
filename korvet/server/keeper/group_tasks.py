"""The keeper's task that does in groups what time has brought, where no member waits whose worker would do it.

Where no keeper has looked for a while, brokers or Redis may have been away, and members could not renew their sessions.
These begin anew then, as in Kafka where another broker takes over a group: the end of an outage costs no rebalance.
So they do over a new connection to Redis: it may lead to another one, by whose clock all of them are over.

The keeper's task that forgets committed offsets that are kept no longer (offsets.retention.minutes).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from korvet import logs
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.groups.expiry import OffsetExpiry
from korvet.groups.listing import GroupRemoval
from korvet.groups.store import GroupList, GroupStore
from korvet.server.keeper.context import CheckLease, Context
from korvet.telemetry import metrics

_log = logs.Log(__name__)

INTERVAL_MS = 1000
"""How much later than its session time-out a member may be found gone; one look at one key a second."""

GROUPS_PER_STEP = 100

UNWATCHED_MS = 5000
"""So long without a turn is an outage: turns are a second apart, and no session is shorter than a few of them."""


class ExpireGroups:
    """The task; it remembers what it has complained about, and when it last had done all."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._complaints: set[str] = set()
        self._clock = clock
        self._watched_until: float | None = None
        self._connection = 0

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Advance every group in which something is due; raises StorageUnavailableError."""
        store = GroupStore(
            context.redis,
            context.keys,
            size_max=context.settings.group_max_size,
            initial_delay_ms=context.settings.group_initial_rebalance_delay_ms,
        )
        watched = self._watched_until
        context.redis.call("PING")  # over the connection that the rest of the turn goes over
        connection = context.redis.connections
        is_same = connection == self._connection
        if watched is None or not is_same or self._clock() - watched > UNWATCHED_MS / 1000:
            _resume_all(store, GroupList(context.redis, context.keys), check_lease)
        self._connection = connection
        self._advance_due(store, check_lease)
        self._watched_until = self._clock()

    def _advance_due(self, store: GroupStore, check_lease: CheckLease) -> None:
        complaints: set[str] = set()
        seen: set[str] = set()
        passed_over = 0
        check_lease()
        # One that cannot be advanced, or whose name nobody of Korvet gave it, stays at the head of the list.
        while some := store.due(GROUPS_PER_STEP, skip=passed_over):
            for group in some:
                check_lease()
                if group in seen:
                    passed_over += 1
                    continue
                try:
                    store.advance(group)
                except StorageUnavailableError:
                    raise
                except KafkaError as error:
                    if group not in self._complaints:
                        _log.warning("group not advanced", group=group, reason=error)
                    complaints.add(group)
                    passed_over += 1
                seen.add(group)
        self._complaints = complaints


def _resume_all(store: GroupStore, groups: GroupList, check_lease: CheckLease) -> None:
    check_lease()
    for names in groups.names():
        for group in names:
            check_lease()
            try:
                store.resume(group)
            except StorageUnavailableError:
                raise
            except KafkaError as error:
                # It is told of where something is due in it.
                _log.debug("sessions of a group not begun anew", group=group, reason=error)


_GROUPS_PER_STEP = 20
_MS_PER_MINUTE = 60_000


def expire_offsets(context: Context, check_lease: CheckLease) -> None:
    """Forget what is due of every group, and groups that have neither members nor offsets left."""
    settings = context.settings
    removal = GroupRemoval(context.redis, context.keys, mirror=settings.group_mirror)
    store = GroupStore(
        context.redis,
        context.keys,
        size_max=settings.group_max_size,
        initial_delay_ms=settings.group_initial_rebalance_delay_ms,
    )
    expiry = OffsetExpiry(removal, store, settings.offsets_retention_minutes * _MS_PER_MINUTE)
    offsets = groups = 0
    for names in GroupList(context.redis, context.keys).names():
        for at in range(0, len(names), _GROUPS_PER_STEP):
            check_lease()
            expired, errors = expiry.expire(names[at : at + _GROUPS_PER_STEP])
            offsets += expired.offsets
            groups += expired.groups
            for error in errors:
                _log.warning("offsets of a group not looked at", reason=error)
    if offsets or groups:
        metrics.OFFSETS_EXPIRED.inc(offsets)
        _log.info("forgot committed offsets", offsets=offsets, groups=groups)
