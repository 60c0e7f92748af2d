"""What several handlers need: deadlines, the error codes of groups, and authorized operations."""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.protocol.types import UNKNOWN_OPERATIONS


def work_until(timeout_ms: int, now: float) -> float:
    """Return when to stop working at a request with that timeout; it began at `now` (monotonic seconds).

    A client counts the same time from when it sends, and gives up exactly then: half of it is for the way.
    """
    return now + timeout_ms / 1000 / 2


def group_error_code(error: KafkaError) -> ErrorCode:
    """Return the code that a request about a group is answered with.

    Consumers take KAFKA_STORAGE_ERROR for the end of their group. COORDINATOR_NOT_AVAILABLE is what Kafka answers if a
    group's state cannot be reached: every client finds the coordinator again, and retries.
    """
    unavailable = isinstance(error, StorageUnavailableError)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if unavailable else error.code


_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = range(3, 10)
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(10, 13)


def _bits(*operations: int) -> int:
    """Return a set of operations (the numbers of Kafka's AclOperation) as an int32 with a bit for each (KIP-430)."""
    return sum(1 << each for each in operations)


# There are no ACLs: every client may do all that Kafka knows for the kind of resource.
TOPIC_OPERATIONS = _bits(
    _READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS
)
GROUP_OPERATIONS = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
CLUSTER_OPERATIONS = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)


def authorized(operations: int, *, requested: bool) -> int:
    """Return the operations if the request asks for them."""
    return operations if requested else UNKNOWN_OPERATIONS
