"""Reading several partitions within one budget of bytes: how much to ask of each, and what goes into an answer.

Knows KIP-74's limits, Kafka's bounds checks and both storage formats; nothing of messages or of waiting. Reads of all
partitions travel together. How many entries to ask for follows from what the partition's entries weighed so far. What
comes next is read ahead, within a fetch and behind it. Where Redis does not hold an offset any more, the lake is asked.

One partition's part of a fetch, put together from what was read of it: batches, of either storage format.

Knows how much fits and what the reader may be sent; nothing of Redis, or of how much is to be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from korvet.cluster.brokers import LEADER_EPOCH
from korvet.errors import ErrorCode, KafkaError
from korvet.log.readahead import ReadAhead
from korvet.log.remote.client import RemoteResponse
from korvet.log.remote.tier import RemoteReadRequest, RemoteTier
from korvet.log.store import LogStore
from korvet.log.types import Bounds, Fetched, Read, RemoteRange
from korvet.protocol.records.builder import BatchesBuilder
from korvet.protocol.records.compression import Codec
from korvet.telemetry.request_timer import ENCODE, NO_TIMER, REDIS, WAIT, RequestTimer
from korvet.topics.registry import Topic
from korvet.topics.types import Partition

Buffer = bytes | bytearray | memoryview
_ZSTD = int(Codec.zstd)


class FetchPartitionSpec(msgspec.Struct, frozen=True):
    """One partition of a fetch: where to read from, in offsets, and its limit in bytes.

    `zstd_known` says that the reader's version may be sent zstd (KIP-110).
    """

    topic: Topic
    partition: Partition
    offset: int
    bytes_max: int
    zstd_known: bool = True


class RecordCollector:
    """Builds batches of the records of format `record`."""

    def __init__(self, wanted: FetchPartitionSpec, bytes_max: int, *, at_least_one: bool) -> None:
        """Raise KafkaError UNSUPPORTED_COMPRESSION_TYPE where the topic's codec is one the reader does not know."""
        codec = wanted.topic.config.codec
        if codec is Codec.zstd and not wanted.zstd_known:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 10 of Fetch")
        self._builder = BatchesBuilder(
            codec=codec,
            leader_epoch=LEADER_EPOCH,
            bytes_max=bytes_max,
            at_least_one=at_least_one,
            log_append_time=wanted.topic.config.log_append_time,
        )
        self.next_offset = wanted.offset

    @property
    def full(self) -> bool:
        """Whether something did not fit any more."""
        return self._builder.full

    @property
    def record_count(self) -> int:
        """How many records were taken."""
        return self._builder.record_count

    def limit(self, bytes_left: int) -> None:
        """Take no more than `bytes_left` from here on."""
        self._builder.limit(bytes_left)

    def add(self, fetched: Fetched) -> tuple[int, int]:
        """Take what fits; returns the bytes and the entries taken."""
        builder = self._builder
        left, count = builder.plain_bytes_left, builder.record_count
        builder.add(fetched.records)
        taken = builder.record_count - count
        if taken:
            self.next_offset = builder.next_offset
        return left - builder.plain_bytes_left, taken

    def finish(self) -> list[Buffer]:
        """Return the batches."""
        return self._builder.finish()


class BatchCollector:
    """Passes on the batches of format `batch` as they are: no record is looked at, nothing is copied."""

    def __init__(self, wanted: FetchPartitionSpec, bytes_max: int, *, at_least_one: bool) -> None:
        self._bytes_left = bytes_max
        self._take_next = at_least_one
        self._zstd_known = wanted.zstd_known
        self._chunks: list[Buffer] = []
        self.next_offset = wanted.offset
        self.full = False
        self.record_count = 0

    def limit(self, bytes_left: int) -> None:
        """Take no more than `bytes_left` from here on."""
        self._bytes_left = min(self._bytes_left, bytes_left)

    def add(self, fetched: Fetched) -> tuple[int, int]:
        """Take what fits; returns the bytes and the entries taken.

        Raises KafkaError UNSUPPORTED_COMPRESSION_TYPE for a zstd batch that the reader does not know.
        """
        left, taken = self._bytes_left, 0
        for batch in fetched.batches:
            if batch.size_bytes > left and not self._take_next:
                self.full = True
                break
            if batch.codec == _ZSTD and not self._zstd_known:
                raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 10 of Fetch")
            self._take_next = False
            self._chunks += batch.chunks(LEADER_EPOCH)
            left -= batch.size_bytes
            taken += 1
            self.record_count += batch.record_count
        size_bytes, self._bytes_left = self._bytes_left - left, left
        if taken:
            self.next_offset = fetched.batches[taken - 1].next_offset
        return size_bytes, taken

    def finish(self) -> list[Buffer]:
        """Return the batches, in pieces."""
        return self._chunks


FIRST_COUNT = 8
"""Entries asked of a partition of which this worker has seen none yet: each may be as large as the topic allows, and a
first fetch may ask of hundreds of partitions. The next round knows what they weigh."""

END_COUNT = 32
"""Entries asked at the end of a log, where most likely nothing is, and else what came in since the last fetch."""

COUNT_MAX = 1000
"""Entries asked of a partition at once: larger replies cost Python more for each record, not less."""

REPLY_BYTES_MAX = 1024 * 1024 * 1024
"""What one partition's reply may weigh at the very worst, if every entry were of the largest size allowed."""

WEIGHTS_MAX = 50_000
"""Partitions whose weight is remembered; all are forgotten beyond it, and learned again within a fetch."""

AHEAD_BYTES_MAX = 2 * 1024 * 1024
"""What is read ahead of a partition at once."""

ROUNDS_MAX = 256
"""Round trips one read may take before it answers with what it has."""


class FetchResult(msgspec.Struct):
    """The answer for one partition: an error, or record batches, in pieces, and bounds (-1 where not known).

    `size_bytes` are as the limits count them, without compression on the way; `record_count` are the batches' records.
    `asked_lake`: they are from the lake, or were waited for in vain, and whoever asked is to come again.
    """

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    log_start: int = -1
    chunks: list[Buffer] = []
    size_bytes: int = 0
    record_count: int = 0
    asked_lake: bool = False


class Reading(msgspec.Struct):
    """One partition of a read under way.

    `taking` says that what comes next goes into its answer, and is not only looked at for the bounds, which are known
    (`bounded`) once anything was read; `more` that there is something behind what was taken, `at_end` that
    the end of the log is not known to lie behind what is read: what was read ahead there would be too little. `cold`:
    the offset is in the lake only.
    """

    place: int
    wanted: FetchPartitionSpec
    offset: int = -1
    room: int = 0
    entries: int = 0
    entries_max: int = 0
    taking: bool = False
    bounded: bool = False
    more: bool = False
    at_end: bool = False
    collector: RecordCollector | BatchCollector | None = None
    cold: RemoteRange | None = None
    done: bool = False

    def __post_init__(self) -> None:
        wanted = self.wanted
        self.offset, self.room = wanted.offset, wanted.bytes_max
        worst = max(1, wanted.topic.config.max_message_bytes)
        self.entries_max = min(COUNT_MAX, max(END_COUNT, REPLY_BYTES_MAX // worst))


class Reader:
    """Reads partitions for one worker, and remembers what their entries weigh."""

    def __init__(self, log: LogStore, cold: RemoteTier) -> None:
        self._log = log
        self._cold = cold
        self._ahead = ReadAhead(log)
        self._weights: dict[str, int] = {}
        self._ends: dict[str, int] = {}

    def read(
        self,
        wanted: Sequence[FetchPartitionSpec],
        places: Iterable[int],
        found: list[FetchResult],
        bytes_max: int,
        timer: RequestTimer = NO_TIMER,
    ) -> None:
        """Read the partitions at `places` anew into `found`; the others keep what they have, and count.

        Raises StorageUnavailableError.
        """
        places = sorted(places)
        for place in places:
            found[place] = FetchResult()
        left = bytes_max - sum(each.size_bytes for each in found)
        anything = any(each.size_bytes for each in found)
        reading = [Reading(place, wanted[place]) for place in places]
        since = self._ahead.now()
        for _ in range(ROUNDS_MAX):
            wave = self._plan(reading, left, anything=anything)
            if not wave:
                # What is in the lake only may turn out to be a gap, behind which Redis goes on.
                left, gaps = self._read_cold(reading, found, left, timer, wait=not anything)
                if not gaps:
                    break
                anything = anything or any(each.size_bytes for each in found)
            timer.end_stage(ENCODE)
            looked = self._look(wave, since)
            timer.end_stage(REDIS)
            for each, result in looked:
                answer = found[each.place]
                try:
                    self._go_on(each, result, left)
                    left = self._take(each, result, answer, left, first=not anything)
                except KafkaError as error:
                    answer.error = error.code
                    each.done = True
                anything = anything or answer.size_bytes > 0
        for each in reading:
            if each.collector is not None and not found[each.place].error:
                if each.more and found[each.place].size_bytes:
                    self._read_ahead(each, each.collector.next_offset, each.wanted.bytes_max)
                found[each.place].record_count = each.collector.record_count
                found[each.place].chunks = each.collector.finish()

    def _read_cold(
        self, reading: list[Reading], found: list[FetchResult], left: int, timer: RequestTimer, *, wait: bool
    ) -> tuple[int, bool]:
        """Read what is in the lake only; returns what is left of the budget, and whether some of it was a gap."""
        cold: list[Reading] = []
        wishes: list[RemoteReadRequest] = []
        planned = 0
        for each in reading:
            room = min(each.room, left - planned)
            if each.cold is not None and (room > 0 or (wait and not wishes)):
                wishes.append(_cold_wish(each, each.cold, room, at_least_one=wait and not wishes))
                cold.append(each)
                planned += room
        gaps = False
        if not wishes:
            return left, gaps
        timer.end_stage(ENCODE)
        answers = self._cold.read(wishes, wait=wait)
        timer.end_stage(WAIT)
        for each, answer in zip(cold, answers, strict=True):
            part, each.cold = each.cold, None
            place = found[each.place]
            place.asked_lake = answer is None or (isinstance(answer, RemoteResponse) and answer.more)
            if isinstance(answer, KafkaError):
                place.error = answer.code
            elif answer is not None and answer.record_count:
                place.chunks, place.size_bytes = [answer.data], len(answer.data)
                place.record_count, place.asked_lake = answer.record_count, True
                left -= len(answer.data)
            elif answer is not None and part is not None and not answer.more:
                # Nothing more is in the lake: what comes next is where Redis begins, though the lake had been further
                # before its files expired. With more, the next record was too large for what is left, and is for
                # another fetch.
                each.offset, each.done, gaps = part.end, False, True
        return left, gaps

    def _go_on(self, reading: Reading, result: Fetched | KafkaError, left: int) -> None:
        """Read ahead for the next round, if there is sure to be one: on its way while this one is put together."""
        if isinstance(result, KafkaError) or not (reading.taking and result.more):
            return
        taken = self._weights.get(reading.wanted.partition.stream, 0) * reading.entries
        room = min(reading.room, left) - taken
        if room >= taken > 0 and result.holds_any:
            self._read_ahead(reading, result.next_offset, room)

    def _read_ahead(self, reading: Reading, offset: int, room: int) -> None:
        partition = reading.wanted.partition
        weight = self._weights.get(partition.stream)
        if weight and not reading.at_end:
            entries = max(1, min(room, AHEAD_BYTES_MAX) // weight + 1)
            entries = min(entries, reading.entries_max)
            self._ahead.begin(Read(partition, offset, entries), entries * weight)

    def _look(self, wave: list[Reading], since: float) -> list[tuple[Reading, Fetched | KafkaError]]:
        """Read a wave; of a log of batches for which nothing is left only the bounds, since a batch may be large."""
        bounded = [each for each in wave if not each.taking and each.wanted.partition.format == "batch"]
        read = [each for each in wave if each.taking or each.wanted.partition.format != "batch"]
        reads = [Read(each.wanted.partition, each.offset, each.entries) for each in read]
        results = self._ahead.read(reads, since)
        found = list(zip(read, results, strict=True))
        if bounded:
            ends = self._log.bounds([each.wanted.partition for each in bounded])
            found += [(each, _without_batches(each, end)) for each, end in zip(bounded, ends, strict=True)]
        return found

    def _plan(self, reading: list[Reading], left: int, *, anything: bool) -> list[Reading]:
        """Choose what to read next, and how much of each, so that the replies fit what is left of the budget.

        `anything` says that something was found already; until then the budget does not count (KIP-74).
        """
        wave = []
        planned = 0
        for each in reading:
            if each.done:
                continue
            stream = each.wanted.partition.stream
            room = max(0, min(each.room, left - planned))
            each.taking = room > 0 or not anything
            if not each.taking:
                # Nothing is left for it: one entry, for the bounds that its answer must carry.
                each.entries = 1
                if each.bounded:
                    continue
            elif each.offset >= self._ends.get(stream, each.offset + 1):
                weight = self._weights.get(stream)
                each.entries = min(room // weight + 1, END_COUNT) if weight else FIRST_COUNT
                each.at_end = True
            elif stream not in self._weights:
                each.entries = FIRST_COUNT
                each.at_end = False
                planned += room
                anything = True
            else:
                weight = self._weights[stream]
                each.entries = min(room // weight + 1, each.entries_max)
                each.at_end = False
                planned += each.entries * weight
                anything = True
            wave.append(each)
        return wave

    def _take(
        self, reading: Reading, result: Fetched | KafkaError, found: FetchResult, left: int, *, first: bool
    ) -> int:
        """Put what was read of one partition into its answer; returns what is left of the budget then."""
        if isinstance(result, KafkaError):
            raise result
        wanted = reading.wanted
        found.high_watermark = result.high_watermark
        found.log_start = result.first_offset
        reading.bounded = True
        if not result.log_start <= wanted.offset <= result.high_watermark:
            message = f"{wanted.offset} is not in {result.log_start}..{result.high_watermark}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        if result.remote is not None and reading.offset < result.remote.end and not result.holds_any:
            reading.cold, reading.done = result.remote if reading.taking else None, True
            return left
        if not reading.taking:
            reading.done = not (result.holds_any or result.more)
            self._learn(wanted.partition.stream, result.high_watermark, 0, 0)
            return left
        room = min(reading.room, left)
        if reading.collector is None:
            collector = BatchCollector if wanted.partition.format == "batch" else RecordCollector
            reading.collector = collector(wanted, room, at_least_one=first)
        else:
            # Others of the request may have used up what it could have had when it began.
            reading.collector.limit(room)
        taken, entries = reading.collector.add(result)
        reading.offset = reading.collector.next_offset
        # Where less is left than an entry weighs, another round trip would most likely bring nothing that fits.
        weight = taken // entries if entries else 0
        reading.more = result.more or reading.collector.full
        reading.done = not result.more or reading.collector.full or reading.room - taken <= weight
        # What did not fit into the rest of the request's budget ends it: the others give their bounds only.
        used_up = reading.collector.full and left <= reading.room
        reading.room -= taken
        found.size_bytes += taken
        self._learn(wanted.partition.stream, result.high_watermark, taken, entries)
        return 0 if used_up else left - taken

    def _learn(self, stream: str, end: int, size_bytes: int, entries: int) -> None:
        if len(self._weights) > WEIGHTS_MAX or len(self._ends) > WEIGHTS_MAX:
            self._weights.clear()
            self._ends.clear()
        self._ends[stream] = end
        if entries:
            self._weights[stream] = max(1, size_bytes // entries)


def _cold_wish(
    reading: Reading, cold: RemoteRange, bytes_max: int, *, at_least_one: bool
) -> RemoteReadRequest:
    codec, wanted = reading.wanted.topic.config.codec, reading.wanted
    if codec is Codec.zstd and not wanted.zstd_known:
        codec = Codec.none
    return RemoteReadRequest(wanted.partition, cold, reading.offset, max(bytes_max, 0), at_least_one, codec)


def _without_batches(reading: Reading, bounds: Bounds | KafkaError) -> Fetched | KafkaError:
    if isinstance(bounds, KafkaError):
        return bounds
    start, first, end = bounds.log_start, bounds.first_offset, bounds.high_watermark
    return Fetched(start, first, end, [], more=reading.offset < end, remote=bounds.remote)
