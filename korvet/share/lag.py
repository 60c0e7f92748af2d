"""The lag of share groups, for /metrics: the records from the start on that a group is not done with, and their age.

Nothing lists the partitions of a group. Each partition has a list of its groups: one command reads it, however many
groups there are, and only the parts that exist are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from korvet.errors import ErrorCode, KafkaError
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
        self, groups: Collection[str], partitions: Sequence[Partition], before_step: Callable[[], None]
    ) -> tuple[list[GroupLag], list[KafkaError]]:
        """Return the lag of each of the groups in each of the partitions where it has begun, and the errors of others.

        `before_step` is called before each round trip.
        """
        lags: list[GroupLag] = []
        errors: list[KafkaError] = []
        for some in in_parts(partitions, PARTITIONS_AT_ONCE) if partitions else ():
            before_step()
            found: dict[str, list[Partition]] = {}
            for partition, names in zip(some, self._store.groups(some), strict=True):
                if isinstance(names, KafkaError):
                    errors.append(names)
                    continue
                for group in names.intersection(groups):
                    found.setdefault(group, []).append(partition)
            for group, begun in sorted(found.items()):
                before_step()
                offsets = zip(begun, self._store.offsets(group, begun), strict=True)
                for outcome in self._lags(group, offsets, before_step):
                    if isinstance(outcome, GroupLag):
                        lags.append(outcome)
                    else:
                        errors.append(outcome)
        return lags, [each for each in errors if each.code is not _GONE]

    def _lags(
        self,
        group: str,
        offsets: Iterable[tuple[Partition, ShareOffsets | KafkaError | None]],
        before_step: Callable[[], None],
    ) -> list[GroupLag | KafkaError]:
        outcomes: list[GroupLag | KafkaError] = []
        begun: list[tuple[Partition, ShareOffsets]] = []
        for partition, each in offsets:
            if isinstance(each, KafkaError):
                outcomes.append(each)
            elif each is not None:
                begun.append((partition, each))
        for some in in_parts(begun, LAGS_AT_ONCE // 2) if begun else ():
            before_step()
            # The first of the records is at the start, and from the next on all are among them.
            positions = [
                LogPosition(partition, at) for partition, each in some for at in (each.start, each.next)
            ]
            found = self._index.lags(positions)
            for (partition, each), first, rest in zip(some, found[::2], found[1::2], strict=True):
                if isinstance(first, Lag) and isinstance(rest, Lag):
                    start = LogPosition(partition, each.start)
                    outcomes.append(_lag(group, start, each.in_flight + rest.records, first))
                else:
                    outcomes += [error for error in (first, rest) if isinstance(error, KafkaError)][:1]
        return outcomes


def _lag(group: str, start: LogPosition, records: int, first: Lag) -> GroupLag:
    return GroupLag(
        group=group,
        topic=start.partition.topic,
        partition=start.partition.index,
        offset=start.offset,
        records=records,
        age_ms=max(first.age_ms, 0) if records else 0,  # a producer's clock may be ahead of Redis'
    )
