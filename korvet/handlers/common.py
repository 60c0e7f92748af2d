"""How long a request may be worked at whose sender says how long it waits.

Which code clients get where Redis is away while they ask for something of a group.

Consumers take KAFKA_STORAGE_ERROR for the end of their group. COORDINATOR_NOT_AVAILABLE says the same as Kafka does
where a group's state cannot be reached: all of them look for the coordinator again, and retry.

What a client may do with a resource, as describing APIs tell of it (KIP-430): everything, since there are no ACLs.

Knows the operations that Kafka has for each kind of resource, by the numbers of its AclOperation. A set of them is an
int32 with a bit for each number.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.protocol.types import UNKNOWN_OPERATIONS


def work_until(timeout_ms: int, now: float) -> float:
    """Return the moment when to stop, where `now` (monotonic seconds) is when a request with that timeout began.

    Clients count the same time from when they send, give up exactly then, and never hear of what was done: half of it
    is for the way.
    """
    return now + timeout_ms / 1000 / 2


def code_of(error: KafkaError) -> ErrorCode:
    """Return the code to answer with."""
    unavailable = isinstance(error, StorageUnavailableError)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if unavailable else error.code


_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = range(3, 10)
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(10, 13)


def _bits(*operations: int) -> int:
    return sum(1 << each for each in operations)


TOPIC = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
GROUP = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
CLUSTER = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)


def told(operations: int, *, asked: bool) -> int:
    """Return the operations where they are asked for."""
    return operations if asked else UNKNOWN_OPERATIONS
