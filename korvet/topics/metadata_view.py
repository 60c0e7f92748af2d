"""What Metadata describes, brokers and topics, read again for all who ask at a time."""

from __future__ import annotations

from gevent.lock import BoundedSemaphore

from korvet.cluster.brokers import ClusterView
from korvet.errors import StorageUnavailableError
from korvet.topics.registry import TopicRegistry


class MetadataView:
    """Reads brokers and topics again in one round trip, which those share who ask before it begins.

    Another worker may have changed either. So who asks gets what is read after that, and while one reading is under way
    all others wait for the next: a thousand clients that reconnect at a time cause two.
    """

    def __init__(self, cluster: ClusterView, topics: TopicRegistry) -> None:
        self._cluster = cluster
        self._topics = topics
        self._turn = BoundedSemaphore(1)
        self._begun = self._done = 0
        self._outage: StorageUnavailableError | None = None

    def refresh(self) -> StorageUnavailableError | None:
        """Read both again, and return why the topics could not be read."""
        wanted = self._begun + 1
        with self._turn:
            if self._done < wanted:
                self._begun += 1
                self._outage = self._read()
                self._done = self._begun
            return self._outage

    def _read(self) -> StorageUnavailableError | None:
        try:
            with self._cluster.refreshing():
                self._topics.refresh()
        except StorageUnavailableError as error:
            return error
        return None
