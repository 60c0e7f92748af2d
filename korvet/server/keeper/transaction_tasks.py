"""The keeper's task for transactions: to end those that producers have left, and to expire transactional ids."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from korvet.clock import CLOCK, Clock
from korvet.errors import KafkaError
from korvet.groups.offsets import CommittedOffsets, OffsetStore
from korvet.log.markers import MarkerWriter
from korvet.redis.client import RedisNode
from korvet.server.keeper.context import CheckLease, Context, in_steps
from korvet.server.keeper.due import DueNames, TakenNames
from korvet.server.keeper.group_tasks import connect
from korvet.server.keeper.redis_clocks import RedisClocks
from korvet.transactions.coordinator import TransactionCoordinator
from korvet.transactions.store import TransactionStore


class FinishTransactions:
    """Does what is due about transactional ids; workers do it for producers that are still there.

    It looks at all of them when it begins, after a turn of which something may be lost, where the clock of a Redis was
    set, and over a new connection to Redis, which may lead to a server that has lost deadlines.
    """

    def __init__(self, taken: TakenNames | None = None, *, clock: Clock = CLOCK) -> None:
        """Share `taken` with the runs of other nodes of a cluster: each takes ids of any node off the one list."""
        self._due = DueNames(taken or TakenNames("transactional id"), clock=clock)
        self._connections: dict[RedisNode, int] = {}
        self._losses = 0
        self._clocks = RedisClocks(clock=clock)

    def __call__(self, context: Context, check_lease: CheckLease) -> None:
        """Do all that is due; raises StorageUnavailableError, KafkaError if too few replicas have it."""
        store = TransactionStore(context.redis, context.keys)
        coordinator = _coordinator(context, store)
        losses = self._due.taken.losses
        connections = connect(context, context.redis.node_of(context.keys.transactions))
        were_set = self._clocks.set_since(connections)
        if losses != self._losses or connections != self._connections or were_set:
            self._look_at_all(context, store, coordinator, check_lease)
        self._connections, self._losses = connections, losses
        self._clocks.keep()

        def look(names: Sequence[str], _back: AbstractSet[str]) -> dict[str, int | KafkaError]:
            dues: dict[str, int | KafkaError] = {}
            for name in names:
                check_lease()  # each may wait for nodes that are away
                [dues[name]] = coordinator.expire([name])
            return dues

        self._due.look(context, store.schedule, look, check_lease)

    def _look_at_all(
        self,
        context: Context,
        store: TransactionStore,
        coordinator: TransactionCoordinator,
        check_lease: CheckLease,
    ) -> None:
        for page in store.names():
            for names in in_steps(name for name in page if self._due.taken.has(context, name)):
                check_lease()
                for name, due in zip(names, coordinator.expire(names), strict=True):
                    if not isinstance(due, KafkaError):  # it is found again when something is due
                        store.schedule.lower_soon(name, due)
        store.schedule.flush()


def _coordinator(context: Context, store: TransactionStore) -> TransactionCoordinator:
    settings = context.settings
    offsets = OffsetStore(context.redis, context.keys, mirror=settings.group_mirror)
    return TransactionCoordinator(
        store,
        context.topics,
        MarkerWriter(context.log_store, context.replicas),
        CommittedOffsets(offsets, context.topics, settings),
        context.replicas,
        settings,
    )
