"""What a client may do with a resource, as describing APIs tell of it (KIP-430): everything, since there are no ACLs.

Knows the operations that Kafka has for each kind of resource, by the numbers of its AclOperation. A set of them is an
int32 with a bit for each number.
"""

from __future__ import annotations

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = range(3, 10)
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(10, 13)


def _bits(*operations: int) -> int:
    return sum(1 << each for each in operations)


NOT_TOLD = -(2**31)
"""Where a request does not ask."""

TOPIC = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
GROUP = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
CLUSTER = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)


def told(operations: int, *, asked: bool) -> int:
    """Return the operations where they are asked for."""
    return operations if asked else NOT_TOLD
