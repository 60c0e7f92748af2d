"""Retention by size where a log grows faster than the keeper looks: by the worker that appends, beside its requests.

Knows which topics are limited in size; the limit itself is retention's. A producer at full speed writes more between
two looks of the keeper than retention.bytes allows, and Redis holds it in memory.
"""

from __future__ import annotations

from functools import partial

from korvet.domain.retention import Kept, Policy, Retention, policy_of
from korvet.domain.topics import Topics
from korvet.domain.trimming import BackgroundTrims
from korvet.errors import KafkaError
from korvet.storage.log_types import Partition


class Growth:
    """Watches the appends of one worker."""

    def __init__(self, topics: Topics, retention: Retention, background: BackgroundTrims) -> None:
        self._topics = topics
        self._retention = retention
        self._background = background

    def crossed(self, grown: Partition) -> None:
        """Let go in the background what is too much, after an append that wrote a row of the index; never waits."""
        topic = self._topics.known(grown.topic)
        if topic is None:
            return
        policy = policy_of(topic.config)
        if policy.retention_bytes >= 0:
            # Only by size: what is too old is so for as long as the keeper takes to look.
            by_size = Policy(retention_bytes=policy.retention_bytes, archived_only=policy.archived_only)
            self._background.begin(grown, partial(self._enforce, Kept(grown, by_size)))

    def _enforce(self, kept: Kept) -> None:
        for _, error in self._retention.enforce([kept]):
            raise KafkaError(error.code, error.message)
