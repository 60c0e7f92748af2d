"""The keeper's task that does in groups what time has brought, where no member waits whose worker would do it."""

from __future__ import annotations

from korvet import logs
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.server.keeper_tasks.context import CheckLease, Context
from korvet.storage.group_store import GroupStore

_log = logs.Log(__name__)

INTERVAL_MS = 1000
"""How much later than its session time-out a member may be found gone; one look at one key a second."""

GROUPS_PER_STEP = 100


class ExpireGroups:
    """The task; it remembers what it has complained about."""

    def __init__(self) -> None:
        self._complaints: set[str] = set()

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Advance every group in which something is due; raises StorageUnavailableError."""
        store = GroupStore(
            context.redis,
            context.keys,
            size_max=context.settings.group_max_size,
            initial_delay_ms=context.settings.group_initial_rebalance_delay_ms,
        )
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
