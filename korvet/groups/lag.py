"""The lag of groups: records between the committed offset and the end of each log, and the age of the first of them.

Exact in both formats: in `batch` offsets count records; in `record` the index does, except for one interval, whose
entries are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.offset_reads import Committed
from korvet.groups.offsets import OffsetStore
from korvet.log.index import IndexStore, Lag
from korvet.log.types import LogPosition
from korvet.protocol.types import TopicPartition
from korvet.telemetry.stats import GroupLag
from korvet.topics.registry import TopicRegistry
from korvet.turns import in_parts

_POSITIONS_PER_STEP = 10
"""Positions counted at once: in format `record` each may have Redis count some thousand entries."""


class LagReader:
    """Every method raises StorageUnavailableError if Redis is away."""

    def __init__(self, offsets: OffsetStore, index: IndexStore, topics: TopicRegistry) -> None:
        self._offsets = offsets
        self._index = index
        self._topics = topics

    def read(self, groups: Sequence[str]) -> Iterator[list[GroupLag | KafkaError]]:
        """Yield the lag of each group in each partition with a committed offset, and errors, after each round trip.

        Topics are taken from the cache: refresh it before.
        """
        for group in groups:
            [committed] = self._offsets.fetch_all([group], self._topics.ids)
            if isinstance(committed, KafkaError):
                yield [committed]
                continue
            yield []
            for outcomes in lags_in_steps(self._index, self._positions(committed)):
                yield [
                    group_lag(group, position, outcome) if isinstance(outcome, Lag) else outcome
                    for position, outcome in outcomes
                ]

    def _positions(self, result: Mapping[TopicPartition, Committed]) -> list[LogPosition]:
        """Return the committed positions; those of a topic that was created or deleted just now are left out."""
        positions = []
        for at, row in sorted(result.items()):
            topic = self._topics.get_cached(at.topic)
            if topic and self._topics.ids[at.topic] == row.topic_id and at.partition < len(topic.partitions):
                positions.append(LogPosition(topic.partition(at.partition), max(row.offset, 0)))
        return positions


def lags_in_steps(
    index: IndexStore, positions: Sequence[LogPosition]
) -> Iterator[list[tuple[LogPosition, Lag | KafkaError]]]:
    """Yield the lag of each position, or an error, after each round trip; logs deleted meanwhile are left out."""
    for chunk in in_parts(positions, _POSITIONS_PER_STEP) if positions else ():
        yield [
            (position, outcome)
            for position, outcome in zip(chunk, index.lags(chunk), strict=True)
            if isinstance(outcome, Lag) or outcome.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]


def group_lag(group: str, position: LogPosition, lag: Lag) -> GroupLag:
    return GroupLag(
        group=group,
        topic=position.partition.topic,
        partition=position.partition.index,
        offset=position.offset,
        records=lag.records,
        # A producer's clock may be ahead of Redis'.
        age_ms=max(lag.age_ms, 0),
    )
