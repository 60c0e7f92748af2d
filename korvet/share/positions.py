"""Where share groups are to be read next: what one worker remembers, and where a group begins in a partition.

Several members on one worker share a position: what one of them has acquired, the next does not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from korvet.clock import CLOCK, Clock
from korvet.cluster.group_configs import SharePolicy
from korvet.config.values import EARLIEST
from korvet.errors import ErrorCode, KafkaError
from korvet.log.offsets import OffsetLookup, OffsetQuery
from korvet.log.replication import Replicas
from korvet.protocol.types import SpecialTimestamp
from korvet.share.parts import ShareAsk, SharePart
from korvet.share.store import SharePartitions
from korvet.share.types import Begin
from korvet.topics.registry import Topic
from korvet.topics.types import Partition

POSITIONS_MAX = 50_000
"""Groups' parts of partitions that are remembered; beyond it all are forgotten, and asked for again."""

NOT_FOUND = -1

PartKey = tuple[str, str, int]
"""A group, the id of a topic, and the index of a partition."""


class Positions:
    """The positions of one worker's groups."""

    def __init__(
        self,
        store: SharePartitions,
        offsets: OffsetLookup,
        replicas: Replicas,
        reset: Callable[[str], str | int],
        *,
        clock: Clock = CLOCK,
    ) -> None:
        """`reset` returns where a share group begins (values.parse_share_reset); raises KafkaError if there is none."""
        self._store = store
        self._offsets = offsets
        self._replicas = replicas
        self._reset = reset
        self._clock = clock
        self._known: dict[PartKey, int] = {}

    def get(self, group: str, part: SharePart) -> int | None:
        """Return where to read next, None if it is not known."""
        return self._known.get(part_key(group, part))

    def set(self, group: str, part: SharePart, offset: int | None) -> None:
        """Note where to read next; None: it is to be asked for."""
        if offset is None:
            self._known.pop(part_key(group, part), None)
            return
        if len(self._known) >= POSITIONS_MAX:
            self._known.clear()
        self._known[part_key(group, part)] = offset

    def begin(self, ask: ShareAsk, parts: Sequence[SharePart]) -> dict[int, KafkaError]:
        """Find out where to read, and have the group begin where it has not; returns errors by place.

        Raises KafkaError if there is no such group, StorageUnavailableError.
        """
        errors: dict[int, KafkaError] = {}
        new = self._ask(ask, [(part, None) for part in parts], errors)
        if new:
            starts: list[tuple[SharePart, int | None]] = []
            for part, start in zip(new, self._starts(self._reset(ask.group), new), strict=True):
                if isinstance(start, KafkaError):
                    errors[part.place] = start
                else:
                    starts.append((part, start))
            # A group that began elsewhere after a failover could leave records out.
            self._replicas.confirm_call(lambda: self._ask(ask, starts, errors), ErrorCode.KAFKA_STORAGE_ERROR)
        return errors

    def _ask(
        self, ask: ShareAsk, begun: Sequence[tuple[SharePart, int | None]], errors: dict[int, KafkaError]
    ) -> list[SharePart]:
        """Note where to read; returns those of which the group has no part."""
        answers = self._store.begin(
            [begin_ask(*part.resolved(), ask.group, start, ask.policy) for part, start in begun]
        )
        new: list[SharePart] = []
        for (part, _), answer in zip(begun, answers, strict=True):
            if answer is None:
                new.append(part)
            elif isinstance(answer, KafkaError):
                errors[part.place] = answer
            else:
                part.blocked = answer.read_next is None
                self.set(ask.group, part, answer.read_next or 0)
        return new

    def _starts(self, reset: str | int, parts: Sequence[SharePart]) -> list[int | KafkaError]:
        if isinstance(reset, int):
            starts = self._find(parts, max(0, int(self._clock.time() * 1000) - reset))
            ends = self._find(parts, SpecialTimestamp.LATEST)
            # Nothing is as young: it begins with what comes.
            return [end if start == NOT_FOUND else start for start, end in zip(starts, ends, strict=True)]
        return self._find(parts, SpecialTimestamp.EARLIEST if reset == EARLIEST else SpecialTimestamp.LATEST)

    def _find(self, parts: Sequence[SharePart], timestamp: int) -> list[int | KafkaError]:
        queries = []
        for part in parts:
            topic, partition = part.resolved()
            queries.append(OffsetQuery(partition, timestamp, topic.config.remote_storage))
        return [item if isinstance(item, KafkaError) else item.offset for item in self._offsets.find(queries)]


def begin_ask(
    topic: Topic, partition: Partition, group: str, start: int | None, policy: SharePolicy
) -> Begin:
    """Return the question where a group is in a partition, to begin at a start if it is nowhere.

    It is to be a Redis group of the stream if every record stays there until it is deleted.
    """
    config = topic.config
    redis_group = partition.format == "record" and not (config.compact or config.remote_storage)
    return Begin(partition, group, start, redis_group, policy)


def part_key(group: str, part: SharePart) -> PartKey:
    _, partition = part.resolved()
    return group, partition.topic_id, partition.index
