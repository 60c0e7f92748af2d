"""Ids for idempotent producers, handed out in blocks so that most requests cost Redis nothing.

Knows that an id must never be given twice; the rules for epochs and sequences are the append script's (KIP-98).
"""

from __future__ import annotations

from gevent.lock import RLock

from korvet.storage.producer_store import ProducerStore

BLOCK_SIZE = 1000
"""Ids per block, as Kafka's brokers take them; those of a worker that dies are lost, of 2^63."""


class ProducerIds:
    """The ids of one worker."""

    def __init__(self, store: ProducerStore) -> None:
        self._store = store
        self._next = 0
        self._end = 0
        self._taking = RLock()

    def take(self) -> int:
        """Return an id that nobody else has; raises StorageUnavailableError where a block is needed and Redis away."""
        with self._taking:
            if self._next == self._end:
                self._next = self._store.next_block(BLOCK_SIZE)
                self._end = self._next + BLOCK_SIZE
            self._next += 1
            return self._next - 1
