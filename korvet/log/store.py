"""The log of a partition in Redis: append, read and bounds.

One rule holds it together: only what lies below the state's `next` is the log, and `next` is the high watermark, unless
the topic wants replicas of Redis to have the records: then consumers see less (high_watermark.py). An append moves it.
What other Redis clients XADD lies past it until it was taken into the log (external_entries.py), which every read,
append or question for the bounds that meets such an entry causes. So an entry never changes its offset after it was
served, and nothing after an entry without an offset is served before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from korvet_core import Fetched, LogRead, LogReader, RawReply

from korvet.errors import (
    ErrorCode,
    KafkaError,
    StorageUnavailableError,
)
from korvet.log.appends import Appends, BatchAppend, Marker
from korvet.log.epochs import NO_EPOCH, Epochs, KnownEnds, LeaderEpochs, epochs_of
from korvet.log.external_entries import ROUNDS_MAX, ExternalEntries, outrun
from korvet.log.high_watermark import BOUNDS_TRIES, HighWatermarks
from korvet.log.replication import Replicas
from korvet.log.state import range_start
from korvet.log.types import Appended, Bounds, LogLimits, LogPosition, Read, RemoteRange
from korvet.pending import Pending
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics.entry_ids import BATCH
from korvet.topics.registry import PARTITIONS_AT_ONCE
from korvet.topics.types import Partition
from korvet.turns import in_parts

_LOG = logging.getLogger(__name__)

_READ_STEPS_MAX = 50
"""Steps against external entries that one read makes before it answers with what there is; the next read goes on."""

_SEGMENTS_MAX = 10
"""Tries of a read to find where the records from its offset on are.

Each but two has met the end of a pass of compaction, or as many entries of other clients as it may read.
"""

UNKNOWN_TIME = -1
"""The time of a batch sent twice that the log does not hold any more; producers then take it for their own."""

_DAMAGE_REMEMBERED_MAX = 10_000
"""Partitions remembered as warned about: bounds the memory, at the price of a second warning."""


class BegunReads(NamedTuple):
    """Reads that were sent, as the core has them, and the epochs of their nodes, as far as known then.

    `ends` are the places after their commands among the `replies`.
    """

    reads: Sequence[Read]
    sent: Sequence[LogRead]
    epochs: list[int]
    ends: list[int]
    replies: Pending[list[RawReply | KafkaError]]


class LogStore:
    """Appends over `redis` and reads over `reads`, so that a large answer delays no append.

    `external` takes in what other Redis clients have written.
    """

    def __init__(
        self,
        redis: Redis,
        reads: Redis,
        keys: Keys,
        *,
        limits: LogLimits = LogLimits(),  # noqa: B008 - it is frozen
        replicas: Replicas | None = None,
        on_lost: Callable[[], object] = lambda: None,
    ) -> None:
        """`replicas` are what the high watermarks of `visible_bounds` and of fetches wait for.

        `on_lost` is called for each log of which Redis has lost records that this worker knew of.
        """
        self.epochs = LeaderEpochs(redis, keys)
        self.external = ExternalEntries(redis, self.epochs)
        self.appends = Appends(
            redis,
            self.epochs,
            self.external,
            time_at=self._time_at,
            limits=limits,
            replicas=0 if replicas is None else replicas.least,
            reads=reads,
        )
        self.ends = KnownEnds(self.appends.core, on_lost)
        self._reads = reads
        self._keys = keys
        self._damaged: set[str] = set()
        self._core = LogReader(limits.decompressed_bytes_max)
        self.watermarks = HighWatermarks(reads, replicas)

    def check_epoch(self, partition: Partition, epoch: int, epochs: Epochs = ()) -> int:
        """Check the leader epoch that a client knows against that of the reads; see LeaderEpochs.check.

        `epochs` are those of the log, if they were read.
        """
        last = epochs[-1].epoch if epochs else NO_EPOCH
        return self.epochs.check(self._reads.node_of(partition.stream), epoch, last)

    def partition(  # noqa: PLR0917 - what a topic's row says of its partitions
        self,
        topic: str,
        index: int,
        topic_id: str,
        bits: int,
        storage_format: Literal["record", "batch"] = "record",
        replicas: int = 0,
        tag: str = "",
    ) -> Partition:
        """Return the partition with its names; `bits` as in topics/entry_ids.py, in format `batch` always BATCH."""
        keys, of = self._keys, (topic, index, tag)
        return Partition(
            topic=topic,
            index=index,
            topic_id=topic_id,
            bits=BATCH if storage_format == "batch" else bits,
            format=storage_format,
            stream=keys.stream(*of),
            state=keys.state(*of),
            index_key=keys.index(*of),
            moving=keys.moving(*of),
            compacted=(keys.clean(topic, index, 0, tag), keys.clean(topic, index, 1, tag)),
            open_transactions=keys.open_transactions(*of),
            aborted=keys.aborted(*of),
            share_groups=keys.share_groups(*of),
            channel=keys.append_channel(*of),
            replicas=replicas,
            tag=tag,
        )

    def append(self, batches: Sequence[BatchAppend | Marker]) -> list[Appended | KafkaError]:
        """Append every batch, each by one atomic script, all in one round trip; answers stand in the same order.

        In the answers KafkaError: what is wrong with a batch, as a producer is answered; UNKNOWN_TOPIC_OR_PARTITION
        (deleted, or another incarnation), INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, KAFKA_STORAGE_ERROR.
        StorageUnavailableError: nothing was written. AppendUnknownError: it may have been. The answers to others stay
        true.
        """
        return self.appends.append(batches)

    def _time_at(self, partition: Partition, offset: int) -> int:
        """Return the time of the record at an offset, UNKNOWN_TIME unless it is known."""
        [fetched] = self.read([Read(partition, offset, 1)])
        if isinstance(fetched, KafkaError):
            return UNKNOWN_TIME
        if fetched.first is None or fetched.first > offset:
            return UNKNOWN_TIME
        return fetched.ends()[0][1]

    def _finish_read(self, begun: BegunReads) -> list[Fetched | KafkaError]:
        outcomes: list[Fetched | KafkaError] = []
        unsettled: dict[int, Read] = {}
        for position, (outcome, settled) in enumerate(self._once_finished(begun)):
            outcomes.append(outcome)
            if not settled:
                unsettled[position] = begun.reads[position]
        for _ in range(_READ_STEPS_MAX):
            if not unsettled:
                break
            for position, outcome in self._read_on(unsettled).items():
                outcomes[position] = outcome
                del unsettled[position]
        for position in unsettled:
            outcome = outcomes[position]
            if isinstance(outcome, Fetched):
                outcomes[position] = outcome.to_go_on()
        return outcomes

    def read(self, reads: Sequence[Read]) -> list[Fetched | KafkaError]:
        """Read every partition, all in one round trip; answers stand in the same order.

        External entries that are not in the log yet cost two round trips more, and steps if they need new offsets. In
        the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE if the first batch is
        damaged: a read ends before one that is damaged. An offset outside of `log_start`..`high_watermark` is answered
        like any other: whether that is an error the caller decides. Raises StorageUnavailableError.
        """
        return self._finish_read(self._send_reads(reads)) if reads else []

    def have_grown(self, positions: Sequence[LogPosition]) -> list[bool]:
        """Return whether anything may have come into logs at an offset, which was their end, or past it.

        It costs a tenth of a read. What was appended and what other Redis clients have written is there; in doubt, as
        after an error, something is. Raises StorageUnavailableError.
        """
        grown: list[bool] = []
        for chunk in in_parts(positions, PARTITIONS_AT_ONCE):
            commands = [
                ("XRANGE", position.partition.stream, range_start(*position), "+", "COUNT", 1)
                for position in chunk
            ]
            grown += [reply != [] for reply in self._reads.pipeline(commands)]
        return grown

    def _read_on(self, unsettled: dict[int, Read]) -> dict[int, Fetched | KafkaError]:
        """Do one step for every log; return the outcomes of those that can be answered now."""
        outcomes: dict[int, Fetched | KafkaError] = {}
        ready: dict[int, Read] = {}
        steps = self.external.steps([read.partition for read in unsettled.values()])
        for (position, read), step in zip(unsettled.items(), steps, strict=True):
            if isinstance(step, KafkaError):
                outcomes[position] = step
            elif not step.more or step.high_watermark > read.offset:
                ready[position] = read
        if ready:
            # Entries that came since wait for the next read: below the high watermark all is as it will be.
            again = (outcome for outcome, _ in self._once_finished(self._send_reads(list(ready.values()))))
            outcomes |= zip(ready, again, strict=True)
        return outcomes

    def _send_reads(self, reads: Sequence[Read]) -> BegunReads:
        sent = [
            self._core.begin(partition, offset, count, end, committed, rows)
            for partition, offset, count, end, _, committed, rows in reads
        ]
        return self._send(reads, sent)

    def _send(self, reads: Sequence[Read], sent: Sequence[LogRead]) -> BegunReads:
        commands: list[bytes] = []
        ends: list[int] = []
        for read in sent:
            commands += read.commands
            ends.append(len(commands))
        expected = sum(read.bytes_expected for read in reads)
        # Read before the records: an epoch that begins meanwhile must not take this end of the log for its own.
        epochs = [self._known_epoch(read.partition) for read in reads]
        replies = self._reads.begin_raw(commands, reply_bytes=expected)
        return BegunReads(reads, sent, epochs, ends, replies)

    def _once_finished(self, begun: BegunReads) -> list[tuple[Fetched | KafkaError, bool]]:
        """Return outcomes, each with whether it is settled: if not, external entries may belong where nothing is."""
        outcomes = self._found(begun)
        for _ in range(_SEGMENTS_MAX):
            misled = {index: read for index, read in enumerate(outcomes) if isinstance(read, LogRead)}
            if not misled:
                break
            reads = [begun.reads[index] for index in misled]
            again = self._found(self._send(reads, list(misled.values())))
            for index, outcome in zip(misled, again, strict=True):
                outcomes[index] = outcome
        return [
            (_moved(read.partition), True) if isinstance(outcome, LogRead) else outcome
            for read, outcome in zip(begun.reads, outcomes, strict=True)
        ]

    def _found(self, begun: BegunReads) -> list[tuple[Fetched | KafkaError, bool] | LogRead]:
        """Return for each read the result and whether it is settled, or the read to do instead."""
        replies = _answers(begun.replies.result(), begun.ends)
        outcomes: list[tuple[Fetched | KafkaError, bool] | LogRead] = []
        for read, sent, epoch, reply in zip(begun.reads, begun.sent, begun.epochs, replies, strict=True):
            if isinstance(reply, KafkaError):
                outcomes.append((reply.without_frames(), True))
                continue
            outcome = self._core.outcome(sent, reply)
            if isinstance(outcome, LogRead):
                outcomes.append(outcome)
            elif len(outcome) == 3:  # noqa: PLR2004 - a refusal
                outcomes.append((_refused(*outcome), True))
            else:
                settled, fetched = outcome
                self._note(read.partition, epoch, fetched)
                outcomes.append((fetched, settled))
        return outcomes

    def _note(self, partition: Partition, epoch: int, fetched: Fetched) -> None:
        if epoch != NO_EPOCH:
            self.ends.note(partition, epoch, fetched.high_watermark, epochs_of(fetched.epochs))
        if fetched.foreign:
            entries_are = "entry is no batch" if fetched.foreign == 1 else "entries are no batches"
            _LOG.warning("%s: %d %s: not served", partition.stream, fetched.foreign, entries_are)
        if fetched.damaged is not None:
            self._note_damaged(partition, *fetched.damaged)

    def _note_damaged(self, partition: Partition, offset: int, encoding: str) -> None:
        if partition.stream in self._damaged:
            return
        if len(self._damaged) >= _DAMAGE_REMEMBERED_MAX:
            self._damaged.clear()
        self._damaged.add(partition.stream)
        message = "%s offset %d: not a %s frame within record.decompressed.max.bytes: values served as stored"
        _LOG.warning(message, partition.stream, offset, encoding)

    def _known_epoch(self, partition: Partition) -> int:
        try:
            return self.epochs.known(self._reads.node_of(partition.stream))
        except StorageUnavailableError:
            return NO_EPOCH

    def bounds(self, partitions: Sequence[Partition]) -> list[Bounds | KafkaError]:
        """Return the ends of every log, all in one round trip if nobody else wrote to the streams.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises StorageUnavailableError.
        """
        once = self._bounds_once(partitions)
        return [self._settled(*pair) for pair in zip(partitions, once, strict=True)]

    def visible_bounds(self, partitions: Sequence[Partition]) -> list[Bounds | KafkaError]:
        """Return the bounds as consumers see them: the high watermark is what replicas have, -1 if that is unknown.

        The answer is final, so facts about the master from before a failover are read again first.
        Errors as those of `bounds`.
        """
        visible: list[Bounds | KafkaError] = []
        for _ in range(BOUNDS_TRIES):
            histories = self.watermarks.begin(partitions)
            visible = self.watermarks.limit_bounds(histories, partitions, self.bounds(partitions))
            if self.watermarks.are_final(partitions, visible):
                break
        return visible

    def _settled(self, partition: Partition, bounds: Bounds | KafkaError | None) -> Bounds | KafkaError:
        for _ in range(ROUNDS_MAX):
            if bounds is not None:
                return bounds
            refusal = self.external.settle(partition)
            if refusal is not None:
                return refusal
            [bounds] = self._bounds_once([partition])
        return bounds or outrun(partition)

    def _bounds_once(self, partitions: Sequence[Partition]) -> list[Bounds | KafkaError | None]:
        if not partitions:
            return []
        commands: list[bytes] = []
        ends: list[int] = []
        for partition in partitions:
            commands += self._core.bounds_commands(partition)
            ends.append(len(commands))
        replies = _answers(self._reads.begin_raw(commands).result(), ends)
        all_bounds: list[Bounds | KafkaError | None] = []
        for partition, reply in zip(partitions, replies, strict=True):
            bounds = self._bounds_of(partition, reply)
            if isinstance(bounds, Bounds) and (current := self._known_epoch(partition)) != NO_EPOCH:
                self.ends.note(partition, current, bounds.high_watermark, bounds.epochs)
            all_bounds.append(bounds)
        return all_bounds

    def _bounds_of(self, partition: Partition, reply: RawReply | KafkaError) -> Bounds | KafkaError | None:
        """Return the bounds; None if what other clients wrote is not in the log yet."""
        if isinstance(reply, KafkaError):
            return reply.without_frames()
        answer = self._core.bounds(partition, reply)
        if answer is None:
            return None
        if len(answer) == 3:  # noqa: PLR2004 - a refusal
            return _refused(*answer)
        start, first, end, largest, archived, remote, compacted_end, starts, open_offset = answer
        epochs = epochs_of(starts)
        only_there = None if remote is None else RemoteRange(*remote, epochs)
        return Bounds(start, first, end, largest, archived, only_there, compacted_end, epochs, open_offset)


def _answers(
    replies: Sequence[RawReply | KafkaError], ends: Sequence[int]
) -> Iterator[RawReply | KafkaError]:
    """Yield the reply to the last command of each read; of a refused transaction the first refusal, which says why."""
    for begin, end in zip((0, *ends), ends, strict=False):
        # Before that to EXEC they are short: +OK, +QUEUED, or an error.
        refusals = (
            reply
            for reply in replies[begin : end - 1]
            if isinstance(reply, KafkaError) or bytes(reply).startswith(b"-")
        )
        yield next(refusals, replies[end - 1])


def _moved(partition: Partition) -> KafkaError:
    message = f"{partition.stream}: passes of compaction end faster than the log can be read"
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)


def _refused(code: int, message: str, is_unavailable: bool) -> KafkaError:  # noqa: FBT001 - as the core says it
    return StorageUnavailableError(message) if is_unavailable else KafkaError(ErrorCode(code), message)
