"""Producer ids, handed out to brokers in blocks by one counter in Redis.

Knows the counter; nothing of epochs or sequences, which live beside each partition's log.
"""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.storage.keys import Keys
from korvet.storage.replies import RespError
from korvet.storage.resp import Redis


class ProducerStore:
    """The counter of one namespace; ids begin with 0."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._key = keys.producer_ids

    def next_block(self, size: int) -> int:
        """Return the first of `size` ids that nobody else gets. A lost answer loses its block, no more.

        Raises KafkaError KAFKA_STORAGE_ERROR (the counter is no number, or used up); StorageUnavailableError.
        """
        try:
            reply = self._redis.call("INCRBY", self._key, size)
        except RespError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._key}: Redis answered {error}") from error
        if not isinstance(reply, int) or reply < size:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self._key}: {reply!r} is no count of producer ids"
            )
        return reply - size
