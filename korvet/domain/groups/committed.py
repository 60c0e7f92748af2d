"""Offsets that groups have committed: how they are committed and asked for.

Knows which topics they may be of and what limits they have; nothing of messages. A topic may have been made anew since
this worker last looked: a commit that the partition's log does not know looks again, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from korvet.config import Settings
from korvet.domain.topic_names import check_name
from korvet.domain.topics import Topic, Topics
from korvet.errors import ErrorCode, KafkaError
from korvet.storage.log_types import Partition
from korvet.storage.offset_store import Commit, Committed, Committer, OffsetStore, Place


class Wish(msgspec.Struct, frozen=True):
    """An offset to be committed for the partition `index` of the topic that `find` finds.

    `epoch` is the leader epoch of the last record read, -1: unknown; `metadata` the client's own note; `retention_ms`
    for how long the client wants it kept, None: as the broker does.
    """

    find: Callable[[], Topic]
    index: int
    offset: int
    epoch: int
    metadata: str
    retention_ms: int | None = None


class CommittedOffsets:
    """Every method raises StorageUnavailableError where Redis is away."""

    def __init__(self, store: OffsetStore, topics: Topics, settings: Settings) -> None:
        self._store = store
        self._topics = topics
        self._metadata_max = settings.offset_metadata_max_bytes

    def commit(self, by: Committer, wishes: Sequence[Wish]) -> list[KafkaError | None]:
        """Commit all that can be, at once; returns for each what kept it from being committed.

        These are UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE, and what `find` raises. Raises KafkaError for
        all of them as OffsetStore.commit does. Where no partition is known, nobody asks about the group.
        """
        outcomes, fenced = self._try(by, wishes)
        if fenced:
            self._topics.look_again(fenced)
            outcomes, _ = self._try(by, wishes)
        return outcomes

    def fetch(self, group: str, places: Sequence[Place]) -> list[Committed | None]:
        """Return what the group has committed for each; None: nothing, be it that there is no such topic or group.

        Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        named = [place for place in places if _may_be(place)]
        found = dict(zip(named, self._store.fetch(group, named), strict=True))
        return [found.get(place) for place in places]

    def fetch_all(self, group: str) -> dict[Place, Committed]:
        """Return all that the group has committed. Raises KafkaError KAFKA_STORAGE_ERROR."""
        return self._store.fetch_all(group)

    def exists(self, group: str) -> bool:
        """Tell whether there is such a group."""
        return self._store.group_exists(group)

    def _try(self, by: Committer, wishes: Sequence[Wish]) -> tuple[list[KafkaError | None], list[Partition]]:
        """Return what kept each from being committed, and the partitions that the log does not know."""
        outcomes: list[KafkaError | None] = [None] * len(wishes)
        commits: dict[int, Commit] = {}
        known = False
        for place, wish in enumerate(wishes):
            try:
                _, found = self._topics.partition(wish.find, wish.index)
                known = True
                self._check(wish.metadata)
            except KafkaError as error:
                outcomes[place] = error
            else:
                commits[place] = Commit(found, wish.offset, wish.epoch, wish.metadata, wish.retention_ms)
        if not known and wishes:
            return outcomes, []
        fenced = []
        done = self._store.commit(by, list(commits.values()))
        for (place, commit), committed in zip(commits.items(), done, strict=True):
            if not committed:
                message = f"{commit.partition.stream} is of another topic by now"
                outcomes[place] = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
                fenced.append(commit.partition)
        return outcomes, fenced

    def _check(self, metadata: str) -> None:
        size = len(metadata.encode())
        if size > self._metadata_max:
            message = f"metadata of {size} bytes is more than offset.metadata.max.bytes allows"
            raise KafkaError(ErrorCode.OFFSET_METADATA_TOO_LARGE, message)


def _may_be(place: Place) -> bool:
    """Tell whether a topic can have that name: no other names a key of a log."""
    try:
        check_name(place.topic, "")
    except KafkaError:
        return False
    return place.partition >= 0
