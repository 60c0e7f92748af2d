"""Reading for consumers: several partitions within one budget of bytes, waiting until there is enough.

Knows KIP-74's limits, Kafka's bounds checks and when a fetch may wait; nothing of messages. Reads of all partitions
of a request travel together. How many entries to ask for follows from what the partition's records weighed so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from korvet.domain.cluster import LEADER_EPOCH
from korvet.domain.topics import Topic
from korvet.domain.waiting import Watch
from korvet.errors import ErrorCode, KafkaError
from korvet.protocol.records.builder import BatchesBuilder
from korvet.storage.log_store import LogStore
from korvet.storage.log_types import Fetched, Partition, Read
from korvet.storage.subscriptions import Subscriptions

FIRST_COUNT = 32
"""Entries asked of a partition whose records this worker has not seen yet."""

REPLY_BYTES_MAX = 512 * 1024 * 1024
"""What one partition's reply may weigh at the very worst, if every record were of the largest size allowed."""

WEIGHTS_MAX = 50_000
"""Partitions whose weight is remembered; all are forgotten beyond it, and learned again within a fetch."""

ROUNDS_MAX = 64
"""Round trips one read may take before it answers with what it has."""


class Wanted(msgspec.Struct, frozen=True):
    """One partition of a fetch: where to read from, in offsets, and its limit in bytes."""

    topic: Topic
    partition: Partition
    offset: int
    bytes_max: int
    leader_epoch: int = -1


class Limits(msgspec.Struct, frozen=True):
    """The limits of a whole fetch."""

    wait_ms_max: int
    bytes_min: int
    bytes_max: int


class Found(msgspec.Struct):
    """The answer for one partition: an error, or batches and bounds (-1 where not known)."""

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    log_start: int = -1
    batches: list[bytearray] = []
    size_bytes: int = 0


def check_leader_epoch(leader_epoch: int) -> None:
    """Check the leader epoch a client believes in; -1 is none (KIP-320).

    Raises KafkaError: FENCED_LEADER_EPOCH for an older one, UNKNOWN_LEADER_EPOCH for a newer one.
    """
    if leader_epoch in (-1, LEADER_EPOCH):
        return
    if leader_epoch < LEADER_EPOCH:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {leader_epoch} is over")
    raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {leader_epoch} has not begun")


class Fetcher:
    """Reads for the consumers of one worker."""

    def __init__(
        self, log: LogStore, subscriptions: Subscriptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._subscriptions = subscriptions
        self._clock = clock
        self._weights: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._parked: set[Watch] = set()
        self._draining = False

    def drain(self) -> None:
        """Answer every parked fetch now, with what there is, and park none from now on."""
        self._draining = True
        for watch in self._parked:
            watch.wake_all()

    def fetch(self, wanted: Sequence[Wanted], limits: Limits) -> list[Found]:
        """Read each of `wanted`, in order; waits up to the limit until `bytes_min` are there.

        An error of one partition stands in its answer and ends the waiting, as does a request without partitions.
        """
        deadline = self._clock() + limits.wait_ms_max / 1000
        found: list[Found] = [Found() for _ in wanted]
        with Watch(self._subscriptions, [each.partition.channel for each in wanted]) as watch:
            self._read(wanted, range(len(wanted)), found, limits.bytes_max)
            while not self._enough(found, limits) and self._clock() < deadline:
                if not watch.live:
                    watch.listen()
                    stale: Iterable[int] = range(len(wanted))
                else:
                    stale = self._park(watch, deadline) or range(len(wanted))
                self._read(wanted, stale, found, limits.bytes_max)
        return found

    def _enough(self, found: list[Found], limits: Limits) -> bool:
        if not found or self._draining or any(each.error for each in found):
            return True
        return sum(each.size_bytes for each in found) >= limits.bytes_min

    def _park(self, watch: Watch, deadline: float) -> set[int]:
        self._parked.add(watch)
        try:
            return watch.wait(max(0.0, deadline - self._clock()))
        finally:
            self._parked.discard(watch)

    def _read(
        self, wanted: Sequence[Wanted], places: Iterable[int], found: list[Found], bytes_max: int
    ) -> None:
        """Read the partitions at `places` anew into `found`; the others keep what they have, and count."""
        places = sorted(places)
        for place in places:
            found[place] = Found()
        left = bytes_max - sum(each.size_bytes for each in found)
        reading = [_Reading(place, wanted[place]) for place in places]
        for _ in range(ROUNDS_MAX):
            wave = self._plan(reading, left)
            if not wave:
                break
            results = self._log.read([Read(each.wanted.partition, each.offset, each.count) for each in wave])
            for each, result in zip(wave, results, strict=True):
                anything = any(other.size_bytes for other in found)
                left -= self._take(each, result, found[each.place], left, first=not anything)
        for each in reading:
            if each.builder is not None and not found[each.place].error:
                found[each.place].batches = each.builder.finish()

    def _plan(self, reading: list[_Reading], left: int) -> list[_Reading]:
        """Choose what to read next, and how much of each, so that the replies fit what is left of the budget."""
        wave = []
        planned = 0
        for each in reading:
            if each.done:
                continue
            stream = each.wanted.partition.stream
            room = max(0, min(each.room, left - planned))
            if planned and not room:
                # Nothing is left for it: one entry, for the bounds that its answer must carry.
                each.count = 1
            elif stream not in self._weights or each.offset >= self._ends.get(stream, 0):
                # Not seen before, or at the end, where most likely nothing is.
                each.count = FIRST_COUNT
                planned += 0 if stream in self._ends else room
            else:
                weight = self._weights[stream]
                each.count = min(room // weight + 1, each.count_max)
                planned += each.count * weight
            wave.append(each)
        return wave

    def _take(
        self, reading: _Reading, result: Fetched | KafkaError, found: Found, left: int, *, first: bool
    ) -> int:
        """Put what was read of one partition into its answer; returns the bytes it took from the budget."""
        if isinstance(result, KafkaError):
            found.error = result.code
            reading.done = True
            return 0
        wanted = reading.wanted
        found.high_watermark = result.high_watermark
        found.log_start = result.first_offset
        if not result.log_start <= wanted.offset <= result.high_watermark:
            found.error = ErrorCode.OFFSET_OUT_OF_RANGE
            reading.done = True
            return 0
        if reading.builder is None:
            reading.builder = BatchesBuilder(
                codec=wanted.topic.config.codec,
                leader_epoch=LEADER_EPOCH,
                bytes_max=min(wanted.bytes_max, left),
                at_least_one=first,
            )
        before = reading.builder.plain_bytes_left
        reading.builder.add(result.records)
        taken = before - reading.builder.plain_bytes_left
        reading.room -= taken
        found.size_bytes += taken
        if result.records:
            reading.offset = result.records[-1][0] + 1
        reading.done = not result.more or reading.builder.full or reading.room <= 0
        self._learn(
            wanted.partition.stream, result.high_watermark, found.size_bytes, reading.builder.record_count
        )
        return taken

    def _learn(self, stream: str, end: int, size_bytes: int, record_count: int) -> None:
        if len(self._weights) > WEIGHTS_MAX or len(self._ends) > WEIGHTS_MAX:
            self._weights.clear()
            self._ends.clear()
        self._ends[stream] = end
        if record_count:
            self._weights[stream] = max(1, size_bytes // record_count)


class _Reading(msgspec.Struct):
    """One partition of a read under way."""

    place: int
    wanted: Wanted
    offset: int = -1
    room: int = 0
    count: int = 0
    count_max: int = 0
    builder: BatchesBuilder | None = None
    done: bool = False

    def __post_init__(self) -> None:
        self.offset = self.wanted.offset
        self.room = self.wanted.bytes_max
        self.count_max = max(
            FIRST_COUNT, REPLY_BYTES_MAX // max(1, self.wanted.topic.config.max_message_bytes)
        )
