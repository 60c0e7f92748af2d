"""The keeper's task that forgets committed offsets that are kept no longer (offsets.retention.minutes)."""

from __future__ import annotations

from korvet import logs
from korvet.domain.groups.expiry import OffsetExpiry
from korvet.server import metrics
from korvet.server.keeper_tasks.context import CheckLease, Context
from korvet.storage.group_list import GroupList
from korvet.storage.group_removal import GroupRemoval
from korvet.storage.group_store import GroupStore

_log = logs.Log(__name__)

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
