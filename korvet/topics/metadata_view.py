"""What Metadata describes, brokers and topics: read again for all who ask at a time, and kept as bytes of answers.

A topic's bytes follow from its id, its assignment, the brokers, the epochs of its leaders, the listener, and the
version of the API. All of them are compared before the bytes are used again, so a change needs no notice.
"""

from __future__ import annotations

from gevent.lock import BoundedSemaphore

from korvet.cluster.brokers import ClusterView, LiveBrokers
from korvet.errors import StorageUnavailableError
from korvet.topics.registry import Assignment, Topic, TopicRegistry

KEPT_BYTES_MAX = 32 * 1024 * 1024
"""Bytes that kept topics take in a worker; more, and all are described again."""

_KEPT_BYTES, _NUMBER_BYTES = 250, 8
"""What one takes besides its content, and what each of its epochs takes, or its place among all topics."""

Epochs = tuple[int | None, ...]
"""The epoch of each partition's leader, None if the node of Redis that has the partition is away."""

_Kept = tuple[Assignment, Epochs, bytes | None]
"""A topic's assignment and epochs, and its bytes."""

_NOTHING: _Kept = None, (), None


class KeptTopics:
    """Topics as the bytes of an API's responses, in one version, to the clients of one listener.

    With the epochs the number of partitions is compared too. A deleted topic's bytes stay until all are dropped: when
    brokers come or go, or at KEPT_BYTES_MAX.
    """

    def __init__(self, view: MetadataView) -> None:
        self._view = view
        self._by_id: dict[bytes, _Kept] = {}
        self._all_of: tuple[int, int] | None = None
        self._all: list[bytes] = []

    def get(self, topic: Topic, epochs: Epochs) -> bytes | None:
        """Return the bytes of a topic if they are there and would be the same now."""
        assignment, kept_epochs, content = self._by_id.get(topic.id, _NOTHING)
        return content if kept_epochs == epochs and assignment == topic.assignment else None

    def keep(self, topic: Topic, epochs: Epochs, content: bytes) -> None:
        self._by_id[topic.id] = topic.assignment, epochs, content
        self._view.count(len(content) + len(epochs) * _NUMBER_BYTES + _KEPT_BYTES)

    def get_all(self, version: int, epoch: int | None) -> list[bytes] | None:
        """Return the bytes of all topics, if kept for this version of the registry and this leader epoch.

        In a cluster, where there is no such epoch (None), each topic is to be asked for.
        """
        return self._all if self._all_of == (version, epoch) else None

    def keep_all(self, version: int, epoch: int | None, contents: list[bytes]) -> None:
        """Keep the bytes of all topics, as `get_all` returns them."""
        if epoch is not None:
            self._all_of, self._all = (version, epoch), contents
            self._view.count(len(contents) * _NUMBER_BYTES)


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
        self._kept: dict[tuple[int, str], KeptTopics] = {}
        self._kept_with: LiveBrokers | None = None
        self._kept_bytes = 0

    def refresh(self) -> StorageUnavailableError | None:
        """Read both again, and return why the topics could not be read."""
        wanted = self._begun + 1
        with self._turn:
            if self._done < wanted:
                self._begun += 1
                self._outage = self._read()
                self._done = self._begun
            return self._outage

    def kept(self, brokers: LiveBrokers, version: int, listener: str) -> KeptTopics:
        """Return what is kept for responses of a version to clients of a listener while these are the brokers."""
        if brokers is not self._kept_with:
            self._drop()
            self._kept_with = brokers
        topics = self._kept.get((version, listener))
        if topics is None:
            topics = self._kept[version, listener] = KeptTopics(self)
        return topics

    def count(self, size: int) -> None:
        """Count bytes that are kept from now on, and drop all if they are too many."""
        self._kept_bytes += size
        if self._kept_bytes > KEPT_BYTES_MAX:
            self._drop()

    def _drop(self) -> None:
        # Replaced and not emptied: a request under way may still keep what it has described with the former brokers.
        self._kept = {}
        self._kept_bytes = 0

    def _read(self) -> StorageUnavailableError | None:
        try:
            with self._cluster.refreshing():
                self._topics.refresh()
        except StorageUnavailableError as error:
            return error
        return None
