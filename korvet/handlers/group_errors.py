"""Which code clients get where Redis is away while they ask for something of a group.

Consumers take KAFKA_STORAGE_ERROR for the end of their group. COORDINATOR_NOT_AVAILABLE says the same as Kafka does
where a group's state cannot be reached: all of them look for the coordinator again, and retry.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError


def code_of(error: KafkaError) -> ErrorCode:
    """Return the code to answer with."""
    unavailable = isinstance(error, StorageUnavailableError)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if unavailable else error.code
