"""The lag of share groups, for /metrics: the records from the start on that a group is not done with, and their age.

Nothing lists the partitions of a group. Each partition has a list of its groups: one command reads it, however many
groups there are, and only the parts that exist are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from korvet.errors import ErrorCode, KafkaError
from korvet.groups.lag import group_lag
from korvet.log.index import IndexStore, Lag
from korvet.log.types import LogPosition
from korvet.share.offsets import LAGS_AT_ONCE
from korvet.share.store import SharePartitions
from korvet.share.types import ShareOffsets
from korvet.telemetry.stats import GroupLag
from korvet.topics.registry import PARTITIONS_AT_ONCE
from korvet.topics.types import Partition
from korvet.turns import in_parts

_GONE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
"""A topic that is deleted meanwhile has no lag."""


class ShareLagReader:
    """Raises StorageUnavailableError if Redis is away."""

    def __init__(self, store: SharePartitions, index: IndexStore) -> None:
        self._store = store
        self._index = index

    def read(
        self, groups: Collection[str], partitions: Sequence[Partition]
    ) -> Iterator[list[GroupLag | KafkaError]]:
        """Yield the lag of each of the groups in each of the partitions where it has begun, and errors.

        What a round trip has brought is yielded after it.
        """
        for chunk in in_parts(partitions, PARTITIONS_AT_ONCE) if partitions else ():
            begun: dict[str, list[Partition]] = {}
            errors: list[GroupLag | KafkaError] = []
            for partition, names in zip(chunk, self._store.groups(chunk), strict=True):
                if isinstance(names, KafkaError):
                    errors.append(names)
                    continue
                for group in names.intersection(groups):
                    begun.setdefault(group, []).append(partition)
            yield errors
            for group, of in sorted(begun.items()):
                for outcomes in self._lags(group, of):
                    yield [
                        outcome
                        for outcome in outcomes
                        if isinstance(outcome, GroupLag) or outcome.code is not _GONE
                    ]

    def _lags(self, group: str, partitions: Sequence[Partition]) -> Iterator[list[GroupLag | KafkaError]]:
        result = list(zip(partitions, self._store.offsets(group, partitions), strict=True))
        yield [offsets for _, offsets in result if isinstance(offsets, KafkaError)]
        begun = [(partition, offsets) for partition, offsets in result if isinstance(offsets, ShareOffsets)]
        for chunk in in_parts(begun, LAGS_AT_ONCE // 2) if begun else ():
            # The first of the records is at the start, and from the next on all are among them.
            positions = [
                LogPosition(partition, at) for partition, item in chunk for at in (item.start, item.next)
            ]
            lags = self._index.lags(positions)
            outcomes: list[GroupLag | KafkaError] = []
            for (partition, item), first, rest in zip(chunk, lags[::2], lags[1::2], strict=True):
                if isinstance(first, Lag) and isinstance(rest, Lag):
                    start = LogPosition(partition, item.start)
                    records = item.in_flight + rest.records
                    outcomes.append(group_lag(group, start, Lag(records, first.age_ms if records else 0)))
                else:
                    outcomes += [error for error in (first, rest) if isinstance(error, KafkaError)][:1]
            yield outcomes
