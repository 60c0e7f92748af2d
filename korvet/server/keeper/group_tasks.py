"""The keeper's tasks for groups: sessions and phases whose time is over, and committed offsets past their retention."""

from __future__ import annotations

import time
from collections.abc import Callable

from korvet import logs
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.groups.expiry import OffsetExpiry
from korvet.groups.listing import GroupList
from korvet.groups.offsets import OffsetStore
from korvet.groups.store import GroupStore
from korvet.server.keeper.context import CheckLease, Context
from korvet.telemetry import metrics

_log = logs.Log(__name__)

EXPIRE_GROUPS_MS = 1000
"""How much later than its session timeout a member may be removed; one command on one key a second."""

_DUE_GROUPS_PER_STEP = 100
_EXPIRY_GROUPS_PER_STEP = 20

OUTAGE_MS = 5000
"""This long without a turn is an outage: turns are a second apart, and no session is shorter than a few of them."""

_MS_PER_MINUTE = 60_000


class ExpireGroups:
    """Advances every group with a deadline that is over: a worker with a request of the group may have done it already.

    After an outage all sessions begin again, as in Kafka when another broker takes over a group: members could not
    renew them, and the end of an outage costs no rebalance. So they do over a new connection to Redis: it may lead to
    another server, by whose clock all of them are over.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        # Groups whose errors were logged.
        self._logged: set[str] = set()
        self._clock = clock
        self._last_turn: float | None = None
        self._connection = 0

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Advance every group that is due; raises StorageUnavailableError."""
        store = _group_store(context)
        last = self._last_turn
        context.redis.call("PING")  # over the connection that the rest of the turn goes over
        connection = context.redis.connections
        is_same = connection == self._connection
        if last is None or not is_same or self._clock() - last > OUTAGE_MS / 1000:
            _resume_all(store, GroupList(context.redis, context.keys), check_lease)
        self._connection = connection
        self._advance_due(store, check_lease)
        self._last_turn = self._clock()

    def _advance_due(self, store: GroupStore, check_lease: CheckLease) -> None:
        logged: set[str] = set()
        seen: set[str] = set()
        skipped = 0
        check_lease()
        # A group that cannot be advanced, or a name that is not Korvet's, stays at the head of the list.
        while due := store.due_groups(_DUE_GROUPS_PER_STEP, skip=skipped):
            for group in due:
                check_lease()
                if group in seen:
                    skipped += 1
                    continue
                try:
                    store.advance(group)
                except StorageUnavailableError:
                    raise
                except KafkaError as error:
                    if group not in self._logged:
                        _log.warning("group not advanced", group=group, reason=error)
                    logged.add(group)
                    skipped += 1
                seen.add(group)
        self._logged = logged


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
                # It is logged again when something is due in it.
                _log.debug("sessions of a group not resumed", group=group, reason=error)


def expire_offsets(context: Context, check_lease: CheckLease) -> None:
    """Delete expired offsets of every group (offsets.retention.minutes), and groups with nothing left."""
    settings = context.settings
    store = OffsetStore(context.redis, context.keys, mirror=settings.group_mirror)
    expiry = OffsetExpiry(store, _group_store(context), settings.offsets_retention_minutes * _MS_PER_MINUTE)
    offsets = groups = 0
    for names in GroupList(context.redis, context.keys).names():
        for at in range(0, len(names), _EXPIRY_GROUPS_PER_STEP):
            check_lease()
            expired, errors = expiry.expire(names[at : at + _EXPIRY_GROUPS_PER_STEP])
            offsets += expired.offsets
            groups += expired.groups
            for error in errors:
                _log.warning("offsets of a group not expired", reason=error)
    if offsets or groups:
        metrics.OFFSETS_EXPIRED.inc(offsets)
        _log.info("expired committed offsets", offsets=offsets, groups=groups)


def _group_store(context: Context) -> GroupStore:
    return GroupStore(
        context.redis,
        context.keys,
        size_max=context.settings.group_max_size,
        initial_delay_ms=context.settings.group_initial_rebalance_delay_ms,
    )
