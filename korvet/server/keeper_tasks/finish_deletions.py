"""The keeper's task that clears away what deleted topics have left: those too large to be deleted at once."""

from __future__ import annotations

from korvet import logs
from korvet.errors import KafkaError, StorageUnavailableError
from korvet.server.keeper_tasks.context import CheckLease, Context

_log = logs.Log(__name__)

INTERVAL_MS = 5000
"""How long what a deletion has left lies there, where who began it is gone; one small question to Redis."""


def finish_deletions(context: Context, check_lease: CheckLease) -> None:
    """Clear away what is left of every deleted topic, also where somebody else is at it; both do no harm."""
    check_lease()
    for deleted in context.topics.deleted():
        try:
            for _ in context.topics.clear_away(deleted):
                check_lease()
        except StorageUnavailableError:
            raise
        except KafkaError as error:
            _log.warning("deleted topic not cleared away", topic=deleted.name, reason=error)
        else:
            _log.info("cleared away a deleted topic", topic=deleted.name, id=deleted.id)
