"""How far a stream of the format `korvet` has read, as Spark's checkpoint keeps it, and which offsets it passed over.

    {"topics": {"orders": {"id": ID, "offsets": {"0": 50}}},
     "lost": {"orders": {"0": {"count": 40, "first": 10, "end": 50}}}}

A batch in which a partition's losses are counted reads nothing of that partition: so its begin and end say everything,
whenever Spark repeats it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import msgspec

from korvet.cluster.pipelines import LostOffsets, QueryPosition
from korvet.errors import LakeError
from korvet.lake.scan import LOSS_REMEDY, PartitionSnapshot, data_loss_error


class PartitionKey(NamedTuple):
    """A partition by its topic's name and its number."""

    topic: str
    number: int

    @classmethod
    def of(cls, log: PartitionSnapshot) -> PartitionKey:
        return cls(log.topic.name, log.partition.index)


Losses = Mapping[PartitionKey, LostOffsets]


class StreamPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The offset that follows in each partition, and the offsets that were passed over, by the names of topics."""

    topics: dict[str, QueryPosition]
    lost: dict[str, dict[int, LostOffsets]] = {}

    @classmethod
    def of(cls, checkpoint: Mapping[str, object], names: Sequence[str]) -> Self:
        """Return the position in a checkpoint of a stream over `names`; raises ValueError for one of another source."""
        given: object = checkpoint
        if "topic_id" in checkpoint and len(names) == 1:
            # As streams over one topic wrote it until 0.1.
            of_topic = {"id": checkpoint["topic_id"], "offsets": checkpoint.get("offsets")}
            given = {"topics": {names[0]: of_topic}}
        try:
            # Lax, for JSON's keys are text.
            return msgspec.convert(given, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"a checkpoint of another source: {checkpoint}") from error

    @classmethod
    def at(
        cls,
        logs: Iterable[PartitionSnapshot],
        offsets: Mapping[PartitionKey, int],
        lost: Losses | None = None,
    ) -> Self:
        """Return the position at these offsets of logs, the only ones whose losses count."""
        topics: dict[str, QueryPosition] = {}
        losses: dict[str, dict[int, LostOffsets]] = {}
        for log in logs:
            key = PartitionKey.of(log)
            topics.setdefault(key.topic, QueryPosition(log.topic.id, {})).offsets[key.number] = offsets[key]
            if lost is not None and key in lost:
                losses.setdefault(key.topic, {})[key.number] = lost[key]
        return cls(topics, losses)

    def offset(self, key: PartitionKey, otherwise: int) -> int:
        """Return the offset that follows in a partition, `otherwise` if the stream did not know it."""
        topic = self.topics.get(key.topic)
        return otherwise if topic is None else topic.offsets.get(key.number, otherwise)

    def lost_of(self, key: PartitionKey) -> LostOffsets | None:
        """Return what was passed over of a partition."""
        return self.lost.get(key.topic, {}).get(key.number)

    def losses(self) -> dict[PartitionKey, LostOffsets]:
        """Return what was passed over, by partition."""
        return {
            PartitionKey(topic, number): lost
            for topic, partitions in self.lost.items()
            for number, lost in partitions.items()
        }

    def checkpoint(self) -> dict[str, Any]:
        """Return the position for a checkpoint: the same position is the same text."""
        ordered = StreamPosition(
            {
                name: QueryPosition(topic.id, dict(sorted(topic.offsets.items())))
                for name, topic in sorted(self.topics.items())
            },
            {name: dict(sorted(partitions.items())) for name, partitions in sorted(self.lost.items())},
        )
        fields: dict[str, Any] = msgspec.to_builtins(ordered, str_keys=True)
        return fields


class DataLoss(NamedTuple):
    """Offsets from `first` to just before `end` that a stream was to read of a log, which does not hold them.

    An `end` below `first`: the log has lost its end, which was read. `recreated`: the topic is not the one of that name
    that was read, `known` is the id of that one.
    """

    log: PartitionSnapshot
    first: int
    end: int
    known: str

    @property
    def recreated(self) -> bool:
        """Whether the topic is another one than that which was read."""
        return self.known != self.log.topic.id

    def error(self) -> LakeError:
        """Return the error for a stream that is to fail."""
        key = PartitionKey.of(self.log)
        if not self.recreated:
            return data_loss_error(*key, self.log, self.first)
        return LakeError(
            f"{key.topic} was deleted and re-created (id {self.log.topic.id}, not {self.known}): what was unread of"
            f" the old one is lost, and {key.topic}-{key.number} now begins at offset {self.log.start} {LOSS_REMEDY}"
        )

    def counted(self, before: LostOffsets | None) -> LostOffsets:
        count = 0 if before is None else before.count
        return LostOffsets(count + max(self.end - self.first, 0), self.first, self.end)


def lost_before(began: StreamPosition, logs: Iterable[PartitionSnapshot]) -> dict[PartitionKey, DataLoss]:
    """Return what a stream that goes on from a position cannot read of these logs.

    What lies before the start of a partition that it did not know is no loss.
    """
    losses: dict[PartitionKey, DataLoss] = {}
    for log in logs:
        key = PartitionKey.of(log)
        topic = began.topics.get(key.topic)
        if topic is None:
            continue
        recreated = topic.id != log.topic.id
        first = topic.offsets.get(key.number, log.start)
        if recreated:
            # Offsets of the topic that was deleted mean nothing in the new one. Nobody knows the first one of a log
            # whose offsets are times.
            first = 0 if log.partition.is_dense else log.start
        end = min(max(first, log.start), log.end)
        if recreated or first != end:
            losses[key] = DataLoss(log, first, end, topic.id)
    return losses


def lost_within(
    began: StreamPosition, ended: StreamPosition, logs: Iterable[PartitionSnapshot]
) -> dict[PartitionKey, DataLoss]:
    """Return what has left these logs of a batch that was planned from `began` to `ended`."""
    losses: dict[PartitionKey, DataLoss] = {}
    for log in logs:
        key = PartitionKey.of(log)
        topic = began.topics.get(key.topic)
        if topic is None or counts_losses(began, ended, key):
            continue
        first, stop = began.offset(key, log.start), ended.offset(key, 0)
        if topic.id != log.topic.id:
            losses[key] = DataLoss(log, first, stop, topic.id)
        elif not log.start <= first <= log.end:
            losses[key] = DataLoss(log, first, min(max(log.start, first), stop), topic.id)
    return losses


def counts_losses(began: StreamPosition, ended: StreamPosition, key: PartitionKey) -> bool:
    """Return whether a batch counts losses of a partition, and so reads nothing of it."""
    before, after = (position.topics.get(key.topic) for position in (began, ended))
    if before is None or after is None:
        return False
    return before.id != after.id or began.lost_of(key) != ended.lost_of(key)
