"""Appending for producers: from the batch a producer sent to the log, all partitions of a request in one round trip.

Knows the checks a batch must pass and what a stale topic means; nothing of messages. Offsets, idempotence and the
fence are decided by the append script (KIP-98, KIP-360).

What a topic asks of the records themselves: a key where it is compacted, and a time near the broker's.

Knows Kafka's rules for both, which refuse the whole batch for one wrong record and name those that are (KIP-467);
nothing of how a batch is decoded or written. Times are milliseconds since the epoch.

The times that the broker put on records instead of their producers' (LogAppendTime), as the producers are told them.

Knows that a batch sent twice keeps the time of its first coming, which is read from the log; nothing of how records
get a time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from korvet.config.definition import INT64_MAX
from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError, RecordsRefusedError
from korvet.log.append_store import Appending
from korvet.log.store import LogStore
from korvet.log.types import Append, AppendBatch, Appended, Fetched, Read
from korvet.protocol.records.batch import RECORD_BYTES_MIN, ProducedBatch, produced_batch
from korvet.protocol.records.compression import Codec
from korvet.protocol.records.record import Record
from korvet.telemetry.topic_counters import TopicCounters
from korvet.topics.config import TopicConfig
from korvet.topics.registry import Topic, Topics
from korvet.topics.types import Partition

NO_TIMESTAMP = -1
"""What a record carries whose producer gave it no time; it is never out of range."""

NAMED_MAX = 1000
"""Records that an answer names at the most: a batch may hold millions of them."""


def needed(base_timestamp: int, max_timestamp: int, config: TopicConfig, now_ms: int) -> bool:
    """Return whether a batch that is kept as it came must be decoded for `check`.

    The timestamps are what the batch's header says, which is enough to see that nothing lies too far in the future.
    One whose largest is below its first does not tell its largest, as Sarama's did not until 2025 (IBM/sarama 3108).
    """
    if config.compact:
        return True
    if config.log_append_time:
        return False
    if max_timestamp < base_timestamp:
        return True
    return (
        config.timestamp_before_max_ms < INT64_MAX or max_timestamp > now_ms + config.timestamp_after_max_ms
    )


def check(records: Sequence[Record], config: TopicConfig, now_ms: int) -> int:
    """Check the records of a batch, and return the largest of their times.

    Raises RecordsRefusedError: INVALID_RECORD for one without a key on a compacted topic, INVALID_TIMESTAMP for one out
    of range; where both occur, INVALID_TIMESTAMP (Kafka's LogValidator).
    """
    timestamps = [record.timestamp for record in records]
    largest = max(timestamps)
    # The batch as a whole first, which does for nearly all of them and costs next to nothing for each record.
    suspicious = config.compact and None in [record.key for record in records]
    if not config.log_append_time:
        earliest, latest = _range(config, now_ms)
        suspicious = suspicious or largest > latest
        if config.timestamp_before_max_ms < INT64_MAX:
            suspicious = suspicious or min(timestamps) < earliest
    if suspicious:
        _refuse(records, config, now_ms)
    return largest


def _refuse(records: Sequence[Record], config: TopicConfig, now_ms: int) -> None:
    """Raise the error that names the wrong records, where there are any: records without a time only look like it."""
    code, count = ErrorCode.INVALID_RECORD, 0
    named: list[tuple[int, str]] = []
    for index, wrong, message in _wrong(records, config, now_ms):
        if wrong is ErrorCode.INVALID_TIMESTAMP:
            code = wrong
        count += 1
        if len(named) < NAMED_MAX:
            named.append((index, message))
    if named:
        index, message = named[0]
        summary = f"{count} of {len(records)} records are wrong; the first of them, at {index}: {message}"
        raise RecordsRefusedError(code, summary, named)


def _range(config: TopicConfig, now_ms: int) -> tuple[int, int]:
    return now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms


def _wrong(
    records: Sequence[Record], config: TopicConfig, now_ms: int
) -> Iterator[tuple[int, ErrorCode, str]]:
    earliest, latest = _range(config, now_ms)
    for index, record in enumerate(records):
        if config.compact and record.key is None:
            yield index, ErrorCode.INVALID_RECORD, "a record of a compacted topic needs a key"
        elif config.log_append_time or record.timestamp == NO_TIMESTAMP:
            continue
        elif not earliest <= record.timestamp <= latest:
            message = f"the timestamp {record.timestamp} is not in {earliest}..{latest}"
            yield index, ErrorCode.INVALID_TIMESTAMP, message


UNKNOWN = -1
"""The answer where the log does not hold the batch any more; producers then take it for their own time."""


def stamped(
    log: LogStore, appends: Sequence[Append | AppendBatch], outcomes: Sequence[Appended | KafkaError]
) -> list[Appended | KafkaError]:
    """Return the outcomes of the appends with the times that their records have in the log."""
    told = list(outcomes)
    duplicates: list[tuple[int, Appended, Read]] = []
    for at, (append, outcome) in enumerate(zip(appends, outcomes, strict=True)):
        if append.timestamp is None or isinstance(outcome, KafkaError):
            continue
        told[at] = outcome._replace(timestamp=append.timestamp)
        if outcome.duplicate:
            duplicates.append((at, outcome, Read(append.partition, outcome.base_offset, 1)))
    if duplicates:
        times = _stored(log, [read for _, _, read in duplicates])
        for (at, outcome, _), timestamp in zip(duplicates, times, strict=True):
            told[at] = outcome._replace(timestamp=timestamp)
    return told


def _stored(log: LogStore, reads: Sequence[Read]) -> list[int]:
    """Return the time of the record at each read's offset, as far as it is known."""
    try:
        answers = log.read(reads)
    except KafkaError:
        return [UNKNOWN] * len(reads)
    return [
        UNKNOWN if isinstance(answer, KafkaError) else _time_at(answer, read.offset)
        for answer, read in zip(answers, reads, strict=True)
    ]


def _time_at(fetched: Fetched, offset: int) -> int:
    for batch in fetched.batches:
        if batch.base_offset <= offset < batch.next_offset:
            return batch.header.max_timestamp
    for at, timestamp, *_ in fetched.records:
        if at == offset:
            return timestamp
    return UNKNOWN


Result = Appended | KafkaError


RECORD_BYTES = 250
"""What a decoded record takes beside its bytes: its objects, and its arguments for Redis (measured)."""


SMALL_BYTES = 64 * 1024
"""Up to so much is decoded without a word, as small requests are taken in."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Memory(NamedTuple):
    """Who is told of the bytes that are decoded, and after how many the first of them are to be sent."""

    hold: Callable[[int], None]
    bytes_max: int


class Delivery(msgspec.Struct, frozen=True):
    """What a producer sent for one partition; `find` finds its topic, again after that turned out to be stale."""

    find: Callable[[], Topic]
    partition: int
    records: bytes | bytearray | memoryview | None


class _Sending(NamedTuple):
    """What is on its way: places among the deliveries, and who knows the answers."""

    places: list[int]
    appends: list[Append | AppendBatch]
    appending: Appending


class Delivering:
    """Deliveries on their way to the log, from their sending to what became of each.

    `in_order` says whether appends that begin from now on are written behind these. They are not where some are still
    to be sent, or had to be sent again; the latter may come to what was begun after these too, so nothing else is to
    begin then before all that has begun is finished.
    """

    __slots__ = (
        "_deliveries",
        "_early",
        "_fenced",
        "_grown",
        "_held",
        "_left",
        "_log",
        "_memory",
        "_prepare",
        "_results",
        "_sending",
        "_topics",
        "_traffic",
        "in_order",
    )

    def __init__(
        self,
        deliveries: Sequence[Delivery],
        log: LogStore,
        topics: Topics,
        prepare: Callable[[Delivery], tuple[Append | AppendBatch, int]],
        memory: Memory,
        *,
        grown: Callable[[Partition], None],
        traffic: TopicCounters,
    ) -> None:
        """Send what may be sent at once: what is decoded of a request at a time is bounded by `memory`.

        `grown` is told of partitions whose index got a row; `traffic` counts what is appended.
        """
        self._grown = grown
        self._traffic = traffic
        self._deliveries = deliveries
        self._log, self._topics, self._prepare, self._memory = log, topics, prepare, memory
        self._results: list[Result | None] = [None] * len(deliveries)
        self._left = deque(range(len(deliveries)))
        self._fenced: dict[int, Partition] = {}
        self._early: list[int] = []
        self._held = 0
        self._sending: _Sending | None = None
        self.in_order = True
        self._send()

    @property
    def ready(self) -> bool:
        """Whether the answers to what was sent are here."""
        return self._sending is None or self._sending.appending.ready

    def result(self) -> list[Result]:
        """Wait for the answers, and return what became of each delivery, in order; to be called once.

        A topic that was deleted and made anew since this worker last looked is fenced by its id; it is looked up once
        more and the append repeated, which is safe since the fence wrote nothing. So is an append that came too early:
        what it was to follow had to be sent again meanwhile (KIP-98 lets nothing pass out of order).
        """
        self._receive_all()
        if (self._fenced or self._early) and self._found_again():
            self.in_order = False
            self._left.extend(sorted([*self._fenced, *self._early]))
            self._send()
            self._receive_all()
        return [result for result in self._results if result is not None]

    def _found_again(self) -> bool:
        try:
            if self._fenced:
                self._topics.look_again(self._fenced.values())
        except KafkaError:
            return False  # others were written: the answers that there are must do
        return True

    def _receive_all(self) -> None:
        self._receive()
        while self._left:
            self._send()
            self._receive()

    def _send(self) -> None:
        places: list[int] = []
        appends: list[Append | AppendBatch] = []
        taken = 0
        while self._left and taken < self._memory.bytes_max:
            place = self._left.popleft()
            try:
                append, size_bytes = self._prepare(self._deliveries[place])
            except KafkaError as error:
                # Anew, without the frames it came through: they hold the request and all that was decompressed of
                # it, and with the results in them a circle, which only the garbage collector would open.
                self._results[place] = error.anew()
                continue
            places.append(place)
            appends.append(append)
            taken += size_bytes
        self._hold(taken)
        appending = self._log.begin_append(appends)
        self.in_order = self.in_order and appending.in_order and not self._left
        self._sending = _Sending(places, appends, appending)

    def _hold(self, size_bytes: int) -> None:
        """Tell what is held now, instead of what was before, unless both are next to nothing."""
        held = size_bytes if size_bytes > SMALL_BYTES else 0
        if held != self._held:
            self._memory.hold(held - self._held)
            self._held = held

    def _receive(self) -> None:
        sending, self._sending = self._sending, None
        if sending is None:
            return
        outcomes = stamped(self._log, sending.appends, sending.appending.result())
        for place, append, result in zip(sending.places, sending.appends, outcomes, strict=True):
            self._results[place] = result
            if isinstance(result, KafkaError):
                if result.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    self._fenced[place] = append.partition
                elif result.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    self._early.append(place)
                continue
            if not result.duplicate:
                records = self._deliveries[place].records or b""
                self._traffic.received(
                    append.partition.topic, append.partition.topic_id, append.record_count, len(records)
                )
            if result.row_bytes:
                self._grown(append.partition)
        self.in_order = self.in_order and sending.appending.in_order


class Appender:
    """Appends for the producers of one worker."""

    def __init__(
        self,
        log: LogStore,
        settings: Settings,
        topics: Topics,
        clock: Callable[[], int] = _now_ms,
        grown: Callable[[Partition], None] = lambda _partition: None,
        traffic: TopicCounters | None = None,
    ) -> None:
        """`clock` gives the time in ms since the epoch: the one that records get, and that theirs are compared with.

        `grown` is told of each partition whose index got a row, and must not wait. `traffic` counts what is appended.
        """
        self._grown = grown
        self._traffic = traffic or TopicCounters()
        self._log = log
        self._settings = settings
        self._topics = topics
        self._clock = clock

    def append(self, deliveries: Sequence[Delivery], *, zstd_known: bool) -> list[Result]:
        """Append each delivery; returns what became of each, in order. See `begin`."""
        return self.begin(deliveries, zstd_known=zstd_known).result()

    def begin(
        self,
        deliveries: Sequence[Delivery],
        *,
        zstd_known: bool,
        hold: Callable[[int], None] = lambda _size: None,
    ) -> Delivering:
        """Check, decode and send; what is returned waits for the answers, and must be finished.

        Appends that are begun one after the other are written in that order; their answers are to be waited for in
        the same order (see Delivering.in_order). `zstd_known` says that the producer's version may send zstd
        (KIP-110). `hold` is told of the bytes that are decoded, and, negative, of those that make room for
        others; the last are held until the request is answered.
        """
        memory = Memory(hold, self._settings.record_decompressed_max_bytes)
        prepare = partial(self._prepare, zstd_known)
        return Delivering(
            deliveries,
            self._log,
            self._topics,
            prepare,
            memory,
            grown=self._grown,
            traffic=self._traffic,
        )

    def _prepare(self, zstd_known: bool, delivery: Delivery) -> tuple[Append | AppendBatch, int]:  # noqa: FBT001
        """Check a delivery and make it what the log takes; returns also what that takes of memory, in bytes.

        Raises KafkaError with what is wrong.
        """
        topic, partition = self._topics.partition(delivery.find, delivery.partition)
        batch = produced_batch(delivery.records, topic.config.max_message_bytes)
        if batch.header.codec == Codec.zstd and not zstd_known:
            message = "zstd needs version 7 of Produce"
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
        now_ms = self._clock()
        if partition.format == "batch":
            return self._whole(topic, partition, batch, now_ms)
        header = batch.header
        records, plain_bytes = batch.decode(self._settings.record_decompressed_max_bytes)
        max_timestamp = check(records, topic.config, now_ms)
        append = Append(
            partition=partition,
            records=records,
            timestamp=now_ms if topic.config.log_append_time else None,
            at_rest=topic.config.at_rest,
            max_timestamp=max_timestamp,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
        return append, plain_bytes + RECORD_BYTES * len(records)

    def _whole(
        self, topic: Topic, partition: Partition, batch: ProducedBatch, now_ms: int
    ) -> tuple[AppendBatch, int]:
        """Keep a batch as it came, unless the topic names another codec, or the broker's time for all its records."""
        config = topic.config
        claimed, limit = batch.header.record_count, self._settings.record_decompressed_max_bytes
        if claimed * RECORD_BYTES_MIN > limit:
            # Nobody decompresses a batch that is kept as it came, and each record it claims uses up an offset.
            message = f"{claimed} records cannot lie in record.decompressed.max.bytes = {limit}"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)
        sent, batch = batch, self._checked(batch, config, now_ms)
        if config.recompress and batch.header.codec != config.codec:
            batch = batch.recompressed(config.codec, limit)
        if config.log_append_time:
            batch = batch.timed(now_ms, log_append_time=True)
        header = batch.header
        if header.size_bytes > config.max_message_bytes:
            message = (
                f"the batch has {header.size_bytes} bytes in the topic's codec, more than max.message.bytes"
            )
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)
        append = AppendBatch(
            partition=partition,
            batch=batch.view,
            codec=header.codec,
            record_count=header.record_count,
            max_timestamp=header.max_timestamp,
            timestamp=now_ms if config.log_append_time else None,
            at_rest=config.at_rest,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
        return append, header.size_bytes if batch is not sent else 0

    def _checked(self, batch: ProducedBatch, config: TopicConfig, now_ms: int) -> ProducedBatch:
        """Check the records of a batch that is kept as it came, where its header does not say enough.

        Raises KafkaError as `record_checks.check` and `ProducedBatch.decode` do. What was decoded is right in the
        header too then: a largest timestamp that no record has would mislead those who look for it.
        """
        header = batch.header
        if not needed(header.base_timestamp, header.max_timestamp, config, now_ms):
            return batch
        records = batch.records(self._settings.record_decompressed_max_bytes)
        largest = check(records, config, now_ms)
        return batch if largest == header.max_timestamp else batch.timed(largest)
