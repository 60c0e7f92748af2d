"""The lag of groups: records between the committed offset and the end of each log, and the age of the first of them.

Exact in both formats: in `batch` offsets count records; in `record` the index does, except for one interval, whose
entries are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.offset_reads import Committed
from korvet.groups.offsets import OffsetStore, known_id
from korvet.log.index import IndexStore, Lag
from korvet.log.types import LogPosition
from korvet.protocol.types import TopicPartition
from korvet.telemetry.stats import GroupLag
from korvet.topics.registry import TopicRegistry, id_text

_POSITIONS_PER_STEP = 10
"""Positions counted at once: in format `record` each may have Redis count some thousand entries."""


class LagReader:
    """Every method raises StorageUnavailableError if Redis is away."""

    def __init__(self, offsets: OffsetStore, index: IndexStore, topics: TopicRegistry) -> None:
        self._offsets = offsets
        self._index = index
        self._topics = topics

    def read(
        self, groups: Sequence[str], before_step: Callable[[], None]
    ) -> tuple[list[GroupLag], list[KafkaError]]:
        """Return the lag of each group in each partition with a committed offset, and the errors of others.

        `before_step` is called before each round trip. Topics are taken from the cache: refresh it before.
        """
        lags: list[GroupLag] = []
        errors: list[KafkaError] = []
        for group in groups:
            before_step()
            [found] = self._offsets.fetch_all([group], partial(known_id, self._topics))
            if isinstance(found, KafkaError):
                errors.append(found)
                continue
            for position, outcome in lags_in_steps(self._index, self._positions(found), before_step):
                if isinstance(outcome, Lag):
                    lags.append(_lag(group, position, outcome))
                else:
                    errors.append(outcome)
        return lags, errors

    def _positions(self, found: Mapping[TopicPartition, Committed]) -> list[LogPosition]:
        """Return the committed positions; those of a topic that was created or deleted just now are left out."""
        positions = []
        for at, row in sorted(found.items()):
            topic = self._topics.get_cached(at.topic)
            if topic is None or id_text(topic.id) != row.topic_id or at.partition >= len(topic.partitions):
                continue
            positions.append(LogPosition(topic.partition(at.partition), max(row.offset, 0)))
        return positions


def lags_in_steps(
    index: IndexStore, positions: Sequence[LogPosition], before_step: Callable[[], None]
) -> Iterator[tuple[LogPosition, Lag | KafkaError]]:
    """Yield the lag of each position, or an error, but for logs that were deleted meanwhile.

    `before_step` is called before each round trip.
    """
    for at in range(0, len(positions), _POSITIONS_PER_STEP):
        before_step()
        some = positions[at : at + _POSITIONS_PER_STEP]
        for position, outcome in zip(some, index.lags(some), strict=True):
            if isinstance(outcome, Lag) or outcome.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                yield position, outcome


def _lag(group: str, position: LogPosition, lag: Lag) -> GroupLag:
    return GroupLag(
        group=group,
        topic=position.partition.topic,
        partition=position.partition.index,
        offset=position.offset,
        records=lag.records,
        # A producer's clock may be ahead of Redis'.
        age_ms=max(lag.age_ms, 0),
    )
