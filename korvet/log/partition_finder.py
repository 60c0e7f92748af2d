"""The topics and partitions that the core asks for, of which it knows no others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from korvet.errors import ErrorCode, KafkaError
from korvet.log.appends import Appends
from korvet.topics.registry import Topic, TopicRegistry
from korvet.topics.types import Partition, TopicRef
from korvet.turns import in_turns


class PartitionFinder:
    """Looks for topics and partitions in one worker, and in Redis once for all that one request asks for."""

    def __init__(self, topics: TopicRegistry, appends: Appends) -> None:
        self._topics, self._appends = topics, appends

    def find(self, asked: Sequence[tuple[str, bytes | None, int, bool]]) -> list[KafkaError | None]:
        """Put partitions for the core, by the name or id of the topic; returns for each why there is none.

        The last of each is whether its log has another topic id than the one that was put.
        """
        refs = [(TopicRef(name, topic_id), index) for name, topic_id, index, _ in in_turns(asked)]
        stale = {
            place: known
            for place, (ref, (*_, is_stale)) in enumerate(in_turns(zip(refs, asked, strict=True)))
            if is_stale and (known := self._known(*ref)) is not None
        }
        gone = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        lost = stale.keys() - self._topics.refresh_stale(dict.fromkeys(stale, gone), stale)
        outage = self.refresh_for(refs)
        errors: list[KafkaError | None] = []
        # A change of a topic makes the core forget its partitions: they are put when all is read.
        for place, (ref, index) in enumerate(in_turns(refs)):
            try:
                if place in lost:
                    raise gone
                topic = self.topic(ref, outage)
                if outage is not None and self._known(ref, index) is None:
                    raise outage
                self._appends.put(topic.partition(index), topic)
                errors.append(None)
            except KafkaError as error:
                errors.append(error.without_frames())
        return errors

    def topic(self, ref: TopicRef, outage: KafkaError | None) -> Topic:
        """Return a topic as of the last refresh, which may have failed; raises KafkaError."""
        if outage is not None and self._topics.cached(ref) is None:
            raise outage
        return self._topics.known(ref)

    def refresh_for(self, refs: Iterable[tuple[TopicRef, int]]) -> KafkaError | None:
        """Look for changes if any partition is not known; returns why that failed."""
        if any(self._known(*ref) is None for ref in in_turns(refs)):
            try:
                self._topics.refresh()
            except KafkaError as error:
                return error.without_frames()
        return None

    def _known(self, ref: TopicRef, index: int) -> Partition | None:
        topic = self._topics.cached(ref)
        return topic.partitions[index] if topic is not None and 0 <= index < len(topic.partitions) else None
