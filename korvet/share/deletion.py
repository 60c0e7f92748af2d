"""The deletion of share groups: what one has of partitions goes before the group, so that none is left without."""

from __future__ import annotations

from korvet.errors import ErrorCode, KafkaError
from korvet.share.store import SharePartitions
from korvet.topics.registry import PARTITIONS_AT_ONCE, TopicRegistry
from korvet.turns import in_parts, in_turns

_GONE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
"""A topic that is deleted meanwhile takes its parts with it."""


class ShareDeletion:
    """Raises StorageUnavailableError if Redis is away."""

    def __init__(self, store: SharePartitions, topics: TopicRegistry) -> None:
        self._store = store
        self._topics = topics

    def delete_parts(self, group: str) -> None:
        """Delete all that a share group has of partitions; raises KafkaError if a part could not be deleted.

        Nothing lists them: every partition of every topic is asked.
        """
        self._topics.refresh()
        partitions = [each for topic in in_turns(self._topics.list_cached()) for each in topic.partitions]
        for some in in_parts(partitions, PARTITIONS_AT_ONCE) if partitions else ():
            for outcome in self._store.delete(group, some):
                if isinstance(outcome, KafkaError) and outcome.code is not _GONE:
                    raise outcome
