"""The keeper's task that forgets idempotent producers that were silent for too long."""

from __future__ import annotations

from korvet import logs
from korvet.errors import KafkaError
from korvet.server import metrics
from korvet.server.keeper_tasks.context import CheckLease, Context

_log = logs.Log(__name__)


def expire_producers(context: Context, check_lease: CheckLease) -> None:
    """Forget producers that were silent for producer.id.expiration.ms (Kafka's broker setting)."""
    silence_ms = context.settings.producer_id_expiration_ms
    forgotten = 0
    for some in context.partitions():
        unfinished = [(partition, "0") for partition in some]
        while unfinished:
            check_lease()
            steps = context.keeper_store.expire_producers(unfinished, silence_ms)
            following = []
            for (partition, _), step in zip(unfinished, steps, strict=True):
                if isinstance(step, KafkaError):
                    _log.warning("producers not expired", key=partition.producers, reason=step)
                    continue
                cursor, removed = step
                forgotten += removed
                if cursor != "0":
                    following.append((partition, cursor))
            unfinished = following
    if forgotten:
        metrics.PRODUCERS_EXPIRED.inc(forgotten)
        _log.info("forgot silent producers", count=forgotten)
