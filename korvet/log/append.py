"""Appending for producers: from the batch a producer sent to the log, all partitions of a request in one round trip.

A batch takes four steps. It is checked: its header and codec, and what the topic asks of its records. It is prepared:
decoded to records for format `record`; for format `batch` kept as it came, unless the topic names another codec or the
broker's time. It is sent, with the others of its request as far as memory allows. And it gets a result: an offset, or
a KafkaError. Offsets, idempotence and whether the topic still has that id are decided by the append script (KIP-98,
KIP-360). Times are milliseconds since the epoch. A batch that opens a transaction is verified in between
(verification.py).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from korvet.cluster.backpressure import BackpressureState
from korvet.config.definition import INT64_MAX
from korvet.config.settings import Settings
from korvet.errors import (
    AppendUnknownError,
    ErrorCode,
    KafkaError,
    RecordsRefusedError,
    StorageUnavailableError,
    TransactionUnverifiedError,
)
from korvet.log.store import LogStore
from korvet.log.types import (
    NO_TRANSACTION,
    RECORDS,
    AppendBatch,
    Appended,
    AppendRecords,
    Fetched,
    Read,
)
from korvet.log.verification import Unverified, Verifications, Verify
from korvet.logs import Log
from korvet.pending import Done, Pending
from korvet.protocol.records.batch import (
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    ProducedBatch,
    Walk,
    each_record,
    produced_batch,
)
from korvet.protocol.records.compression import Codec
from korvet.protocol.records.record import NO_TIMESTAMP, StoredRecord
from korvet.telemetry.topic_counters import TopicCounters
from korvet.topics.config import TopicConfig
from korvet.topics.registry import Topic, TopicRegistry
from korvet.topics.types import Partition, PartitionRef
from korvet.turns import CALLS_PER_LOOK, give_turn, in_turns

_log = Log(__name__)

AppendResult: TypeAlias = Appended | KafkaError
SentBatch: TypeAlias = PartitionRef[bytes | bytearray | memoryview | None]
"""What a producer sent for one partition."""


WRONG_RECORDS_MAX = 1000
"""Wrong records that an answer names at most: a batch may hold millions of them."""

RECORD_BYTES = 500
"""What a decoded record takes beside its bytes: its objects, and its arguments for Redis (measured)."""

COPIES = 3
"""How often the bytes of decoded records are held: in the records, packed for Redis, and joined to be sent."""

UNRESERVED_BYTES = 128 * 1024
"""Up to this size what is decoded takes nothing of the budget, as small requests do not."""

RECOVERY_SECONDS = 5.0
"""How long after an outage a gap in the sequences is not taken for the producer's fault."""

UNKNOWN_TIME = -1
"""The time of a batch sent twice that the log does not hold any more; producers then take it for their own."""


def may_be_wrong(walk: Walk, config: TopicConfig, now_ms: int) -> bool:
    """Return whether `check_records` may refuse a batch: by what the walk saw, which clears nearly all of them."""
    if config.compact and walk.null_keys:
        return True
    if config.log_append_time:
        return False
    earliest, latest = _range(config, now_ms)
    # A record without a time (-1) looks too old.
    is_bounded = config.timestamp_before_max_ms < INT64_MAX
    return walk.max_timestamp > latest or (is_bounded and walk.min_timestamp < earliest)


def check_records(records: Iterable[StoredRecord], config: TopicConfig, now_ms: int) -> None:
    """Check the records of a batch as Kafka's LogValidator does: one wrong record refuses the whole batch.

    Raises RecordsRefusedError, which names those that are wrong (KIP-467): INVALID_RECORD for one without a key on a
    compacted topic, INVALID_TIMESTAMP for one whose time is out of range; if both occur, INVALID_TIMESTAMP.
    """
    earliest, latest = _range(config, now_ms)
    code, count, index = ErrorCode.INVALID_RECORD, 0, -1
    named: list[tuple[int, str]] = []
    for index, (_, at, key, _, _) in enumerate(records):
        if config.compact and key is None:
            message = "a record of a compacted topic needs a key"
        elif config.log_append_time or at == NO_TIMESTAMP or earliest <= at <= latest:
            continue
        else:
            code, message = ErrorCode.INVALID_TIMESTAMP, f"the timestamp {at} is not in {earliest}..{latest}"
        count += 1
        if len(named) < WRONG_RECORDS_MAX:
            named.append((index, message))
    if named:
        first, message = named[0]
        summary = f"{count} of {index + 1} records are wrong; the first of them, at {first}: {message}"
        raise RecordsRefusedError(code, summary, named)


def check_time_type(header: BatchHeader, config: TopicConfig) -> None:
    """Check that a producer's batch has no timestamp type LogAppendTime, which only a broker may set.

    As in Kafka it is ignored in a batch with a largest timestamp, if the broker's time does not replace those of the
    records. Raises KafkaError INVALID_TIMESTAMP.
    """
    is_set = header.attributes & LOG_APPEND_TIME_BIT
    if is_set and (config.log_append_time or header.max_timestamp == NO_TIMESTAMP):
        message = "Producer should not set timestamp type to LogAppendTime."
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, message)


def _range(config: TopicConfig, now_ms: int) -> tuple[int, int]:
    return now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Appender:
    """Appends for the producers of one worker."""

    def __init__(
        self,
        log: LogStore,
        settings: Settings,
        topics: TopicRegistry,
        clock: Callable[[], int] = _now_ms,
        on_index_row: Callable[[Partition], None] = lambda _partition: None,
        traffic: TopicCounters | None = None,
    ) -> None:
        """`clock` gives the time: the one that records get, and that theirs are compared with.

        `on_index_row` is called for each partition whose index got a row, and must not wait. `traffic` counts what is
        appended.
        """
        self.log = log
        self.topics = topics
        self.decompressed_bytes_max = settings.record_decompressed_max_bytes
        self._clock = clock
        self._away_at = -math.inf
        self._on_index_row = on_index_row
        self._traffic = traffic or TopicCounters()
        self.verifications = Verifications()

    def append(self, batches: Sequence[SentBatch], *, zstd_known: bool) -> list[AppendResult]:
        """Append each batch; returns what became of each, in order. See `begin`."""
        return self.begin(batches, zstd_known=zstd_known).result()

    def begin(
        self,
        batches: Sequence[SentBatch],
        *,
        zstd_known: bool,
        reserve_memory: Callable[[int], None] = lambda _size: None,
        check_acks: Callable[[Partition], None] | None = None,
        pressure: Callable[[str], BackpressureState] | None = None,
        version: int | None = None,
        verify: Verify | None = None,
    ) -> PendingAppends:
        """Check, prepare and send; what is returned waits for the results, and must be finished.

        Appends that are begun one after the other are written in that order; take their results in the same
        order (Pending.in_order). `zstd_known`: the producer's version may send zstd (KIP-110). `reserve_memory` is
        called with the bytes that are decoded, and, negative, with those that make room for others; the last are held
        until the request is answered. `check_acks` raises KafkaError for a partition that cannot give the acks asked
        for: too few servers of Redis are in sync.
        `pressure` gives what the server that has a stream puts on producers, if the request as a whole is not judged.
        `version` is that of SendOrder when those appends began whose results are not taken yet, None without any.
        `verify` is asked for batches that open a transaction; None: none may be of one.
        """
        return PendingAppends(
            self,
            batches,
            reserve_memory,
            check_acks,
            pressure,
            verify,
            zstd_known=zstd_known,
            version=version,
        )

    def prepare(
        self,
        sent: SentBatch,
        *,
        zstd_known: bool,
        check: Callable[[Partition], None] | None,
        number: int | None = None,
    ) -> tuple[AppendRecords | AppendBatch, int]:
        """Check a batch and make it what the log takes; returns also what that takes of memory, in bytes.

        `number` is that of its transaction, if it is of one: 0 if it is not verified, None: it may not be of one.
        Raises KafkaError with what is wrong, or what `check` raises for the partition.
        """
        topic, partition = self.topics.partition(sent.topic, sent.partition)
        if check is not None:
            check(partition)
        batch = produced_batch(sent.asked, topic.config.max_message_bytes)
        check_time_type(batch.header, topic.config)
        if not zstd_known and batch.header.codec == Codec.zstd:
            message = "zstd needs version 7 of Produce"
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
        now_ms = self._clock()
        transaction = _transaction_of(batch.header, number)
        if partition.format == "batch":
            return self._prepare_batch(topic, partition, batch, now_ms, transaction)
        header, config = batch.header, topic.config
        if header.record_count > config.max_message_records:
            # By the header, before anything is decompressed. Not split: consumers would see a part of the batch.
            most = config.max_message_records
            message = f"a batch of {header.record_count} records exceeds max.message.records = {most}"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)
        records, walk = batch.decode(self.decompressed_bytes_max)
        if may_be_wrong(walk, config, now_ms):
            check_records(records, config, now_ms)
        append = AppendRecords(
            partition=partition,
            records=records,
            timestamp=now_ms if config.log_append_time else None,
            at_rest=config.at_rest,
            max_timestamp=walk.max_timestamp,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transaction=transaction,
        )
        return append, COPIES * walk.plain_bytes + RECORD_BYTES * len(records)

    def _prepare_batch(
        self, topic: Topic, partition: Partition, batch: ProducedBatch, now_ms: int, transaction: str
    ) -> tuple[AppendBatch, int]:
        """Keep a batch as it came, unless the topic names another codec, or the broker's time for all its records."""
        config, limit = topic.config, self.decompressed_bytes_max
        append_timestamp = now_ms if config.log_append_time else None
        stored, walk = batch.as_stored(
            limit, codec=config.codec if config.recompress else None, append_timestamp=append_timestamp
        )
        if may_be_wrong(walk, config, now_ms):
            # One by one: there may be millions, and 300 bytes of objects for each.
            check_records(each_record(stored.view, 0, limit), config, now_ms)
        header = stored.header
        if header.size_bytes > config.max_message_bytes:
            most = config.max_message_bytes
            message = f"a batch of {header.size_bytes} bytes in the topic's codec exceeds max.message.bytes = {most}"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)
        append = AppendBatch(
            partition=partition,
            batch=stored.view,
            codec=header.codec,
            record_count=header.record_count,
            max_timestamp=header.max_timestamp,
            timestamp=append_timestamp,
            at_rest=config.at_rest,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transaction=transaction,
        )
        return append, header.size_bytes if stored is not batch else 0

    def note_refusal(self, error: KafkaError) -> None:
        """Note why a batch was refused: if Redis was away or too full for it, its producer sends it again.

        Not for what is wrong with one log: that says nothing of others.
        """
        away = isinstance(error, StorageUnavailableError | AppendUnknownError)
        if away or error.code is ErrorCode.NOT_ENOUGH_REPLICAS:
            self._away_at = time.monotonic()

    def is_recovering(self, results: Iterable[AppendResult]) -> bool:
        """Return whether Redis was away a moment ago: then a batch out of sequence is no fault of its producer.

        The one before it was refused, and will be sent again. OUT_OF_ORDER_SEQUENCE_NUMBER for those that were on their
        way would make librdkafka take a new epoch, and write again what other partitions have already.
        """
        for each in in_turns(results):
            if isinstance(each, KafkaError):
                self.note_refusal(each)
        now = time.monotonic()
        return now - max(self._away_at, self.log.reconnected_at) < RECOVERY_SECONDS

    def appended(self, append: AppendRecords | AppendBatch, result: Appended, sent_bytes: int) -> None:
        """Count what was appended, unless it was there already, and report a new row of the index."""
        partition = append.partition
        if not result.duplicate:
            self._traffic.received(partition.topic, partition.topic_id, append.record_count, sent_bytes)
        if result.row_bytes:
            self._on_index_row(partition)


def _transaction_of(header: BatchHeader, number: int | None) -> str:
    """Return AppendFields.transaction of a batch; see `Appender.prepare`."""
    if not header.attributes & TRANSACTIONAL_BIT:
        return NO_TRANSACTION
    if number is None:
        # As Kafka, which has nobody's right to write to a transactional id then.
        message = "a batch of a transaction came in a request without a transactional id"
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, message)
    return f"{RECORDS}{number}"


_NOTHING: Done[list[AppendResult]] = Done([])
_NO_RESULT: AppendResult = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "nothing has come of it yet")


class PendingAppends:
    """The batches of one request, from their sending to the result of each (Pending).

    `in_order` turns to false if some are still to be sent, or had to be sent again. The latter may come to what was
    begun after these too, so nothing else may begin then until all that has begun is finished.
    """

    def __init__(  # noqa: PLR0913 - what `Appender.begin` is given
        self,
        appender: Appender,
        batches: Sequence[SentBatch],
        reserve_memory: Callable[[int], None],
        check_acks: Callable[[Partition], None] | None,
        pressure: Callable[[str], BackpressureState] | None,
        verify: Verify | None,
        *,
        zstd_known: bool,
        version: int | None,
    ) -> None:
        """Send what may be sent at once: what is decoded of a request at a time is bounded."""
        self._appender, self._batches, self._zstd_known = appender, batches, zstd_known
        self._reserve_memory, self._check_acks = reserve_memory, check_acks
        self._pressure, self._verify = pressure, verify
        # The batches that open a transaction, and the numbers of those that were verified.
        self._unverified: dict[int, Unverified] = {}
        self._numbers: dict[int, int] = {}
        self._reserved = 0
        self._left = deque(range(len(batches)))
        self._partitions: dict[int, Partition] = {}
        self._results: list[AppendResult] = [_NO_RESULT] * len(batches)
        self._failed = False
        self.replicas = 0
        """The most that a batch wants to be held by (Partition.replicas)."""
        self.throttle_ms = 0
        """The longest throttle of a server that a batch is for."""
        self._in_order = True
        self._send(version)

    @property
    def in_order(self) -> bool:
        """Whether what begins from now on is written after these."""
        return self._in_order and self._pending.in_order

    @property
    def ready(self) -> bool:
        """Whether the answers are here: all was sent, and they are."""
        return self._pending.ready and not self._left

    def result(self) -> list[AppendResult]:
        """Wait for the answers, and return the result of each batch, in order; to be called once.

        Nothing was written of a batch whose topic turned out to be stale, so it is sent once more. So is one that came
        too early: what it was to follow had to be sent again meanwhile (KIP-98 lets nothing pass out of order).
        """
        self._finish()
        if self._failed:
            self._send_again(self._appender.topics.refresh_stale(self._results, self._partitions))
            self._send_again(place for place, result in enumerate(self._results) if _is_early(result))
            if self._appender.is_recovering(self._results):
                self._results = [_too_early() if _is_early(each) else each for each in self._results]
        for place, batch in self._unverified.items():
            self._appender.verifications.note(batch, self._results[place])
        return self._results

    def _finish(self) -> None:
        self._receive()
        while self._left:
            self._send()
            self._receive()
        if self._unverified and self._verify is not None:
            self._ask(self._verify)

    def _ask(self, verify: Verify) -> None:
        """Have those batches verified that are to be, and send them again."""
        asked = [place for place in self._unverified if _is_unverified(self._results[place])]
        answers = self._appender.verifications.ask(verify, [self._unverified[place] for place in asked])
        for place, answer in zip(asked, answers, strict=True):
            if isinstance(answer, KafkaError):
                self._results[place] = answer
            else:
                self._numbers[place] = answer
        self._send_again(place for place in asked if place in self._numbers)

    def _send_again(self, places: Iterable[int]) -> None:
        self._left.extend(sorted(places))
        if self._left:
            self._in_order = False
            self._send()
            self._finish()

    def _send(self, version: int | None = None) -> None:
        """Prepare and send the next batches, until what was decoded of them is as much as may be held at once.

        Before it is the request's turn to be answered `version` is that of SendOrder when those before it began: if it
        has changed nothing is sent, for what they sent may have been refused.
        """
        appender, taken = self._appender, 0
        unverified = None if self._verify is None else 0
        check = self._check_acks if self._pressure is None else self._check_node
        self._sent: dict[int, AppendRecords | AppendBatch] = {}
        while self._left and taken < appender.decompressed_bytes_max:
            place = self._left.popleft()
            try:
                append, size_bytes = appender.prepare(
                    self._batches[place],
                    zstd_known=self._zstd_known,
                    check=check,
                    # Once: if it must be sent again it may be to another incarnation of the topic.
                    number=self._numbers.pop(place, unverified),
                )
            except KafkaError as error:
                # Its frames hold the request and all that was decompressed of it, and with the results in them a
                # circle, which only the garbage collector would open.
                self._results[place] = error.without_frames()
                appender.note_refusal(error)
            else:
                self._sent[place] = append
                self._partitions[place] = append.partition
                self.replicas = max(self.replicas, append.partition.replicas)
                taken += size_bytes
                # At once, for others have their turn while this waits: here, or for the number of servers in sync.
                if taken > UNRESERVED_BYTES or self._reserved:
                    self._reserve(taken)
            if self._left:
                # After each, for one may take long to check, or to refuse.
                give_turn(CALLS_PER_LOOK)
        if version not in (None, appender.log.order.version):
            self._left.extendleft(reversed(self._sent))
            self._sent, taken = {}, 0
        if self._reserved:
            self._reserve(taken)
        self._pending: Pending[list[Appended | KafkaError]] = appender.log.begin_append(
            list(self._sent.values())
        )
        self._in_order = self._in_order and not self._left

    def _check_node(self, partition: Partition) -> None:
        """Check that the node which has a partition has room for more, and gives the acks asked for."""
        if self._pressure is not None:
            throttle_ms, refusal = self._pressure(partition.stream)
            self.throttle_ms = max(self.throttle_ms, throttle_ms)
            if refusal:
                raise StorageUnavailableError(refusal)
        if self._check_acks is not None:
            self._check_acks(partition)

    def _reserve(self, size_bytes: int) -> None:
        """Reserve what is held now instead of what was before, unless both are next to nothing."""
        reserved = size_bytes if size_bytes > UNRESERVED_BYTES else 0
        if reserved != self._reserved:
            self._reserve_memory(reserved - self._reserved)
            self._reserved = reserved

    def _receive(self) -> None:
        appender, sent = self._appender, self._sent
        appends = list(sent.values())
        results = with_append_times(appender.log, appends, self._pending.result())
        for (place, append), result in zip(sent.items(), results, strict=True):
            self._results[place] = result
            if isinstance(result, KafkaError):
                self._failed = True
                if _is_unverified(result):
                    self._unverified[place] = Unverified.of(append)
            else:
                appender.appended(append, result, len(self._batches[place].asked or b""))
        self._in_order = self._in_order and self._pending.in_order
        # Freed before the next are decoded.
        self._sent, self._pending = {}, _NOTHING


def _is_unverified(result: AppendResult) -> bool:
    return isinstance(result, TransactionUnverifiedError)


def _too_early() -> KafkaError:
    return StorageUnavailableError("an earlier batch of this producer was not written while Redis was away")


def _is_early(result: AppendResult) -> bool:
    return isinstance(result, KafkaError) and result.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def with_append_times(
    log: LogStore, appends: Sequence[AppendRecords | AppendBatch], results: Sequence[AppendResult]
) -> list[AppendResult]:
    """Return the results with the times that the broker gave the records instead of their producers' (LogAppendTime).

    A batch sent twice keeps the time of its first arrival, which is read from the log.
    """
    timed = list(results)
    duplicates: dict[int, tuple[Appended, Read]] = {}
    for at, (append, result) in enumerate(zip(appends, results, strict=True)):
        if append.timestamp is None or isinstance(result, KafkaError):
            continue
        timed[at] = result._replace(timestamp=append.timestamp)
        if result.duplicate:
            duplicates[at] = result, Read(append.partition, result.base_offset, 1)
    if duplicates:
        try:
            answers = log.read([read for _, read in duplicates.values()])
        except KafkaError as error:
            answers = [error] * len(duplicates)
        for (at, (result, _)), answer in zip(duplicates.items(), answers, strict=True):
            timed[at] = result._replace(timestamp=_time_at(answer, result.base_offset))
    return timed


def _time_at(fetched: Fetched | KafkaError, offset: int) -> int:
    """Return the time of the record at an offset, as far as it is known."""
    if isinstance(fetched, KafkaError):
        return UNKNOWN_TIME
    for batch in fetched.batches:
        if batch.base_offset <= offset < batch.next_offset:
            return batch.header.max_timestamp
    return next((record[1] for record in fetched.records if record[0] == offset), UNKNOWN_TIME)
