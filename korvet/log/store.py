"""The log of a partition in Redis: append, read and bounds.

One rule holds it together: only what lies below the state's `next` is the log, and `next` is the high watermark, unless
the topic wants replicas of Redis to have the records: then consumers see less (high_watermark.py). An append moves it.
What other Redis clients XADD lies past it until it was taken into the log (external_entries.py), which every read,
append or question for the bounds that meets such an entry causes. So an entry never changes its offset after it was
served, and nothing after an entry without an offset is served before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from korvet.errors import (
    ErrorCode,
    KafkaError,
    StorageUnavailableError,
)
from korvet.log.appends import Appends, BatchAppend, Marker
from korvet.log.batch_format import read_batches
from korvet.log.epochs import NO_EPOCH, Epochs, KnownEnds, LeaderEpochs
from korvet.log.external_entries import ROUNDS_MAX, ExternalEntries, outrun
from korvet.log.high_watermark import HighWatermarks
from korvet.log.record_format import (
    Entry,
    Owned,
    ProducerRun,
    producer_runs,
    read_columns,
    read_entries,
)
from korvet.log.replication import Replicas
from korvet.log.state import (
    AbortMarkers,
    CompactedSegments,
    LogState,
    aborted_command,
    entries,
    executed,
    range_end,
    range_start,
    read_aborted,
    read_batch_bounds,
    read_record_bounds,
    read_state,
    state_command,
)
from korvet.log.types import (
    Appended,
    Bounds,
    Fetched,
    LogPosition,
    Read,
    StoredBatch,
)
from korvet.pending import Pending
from korvet.protocol.records.record import StoredRecord
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.redis.replies import Arg, Reply, malformed
from korvet.topics.entry_ids import BATCH, end_of_id
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

_ABORTED_FACTOR = 8
"""How many times more rows of aborted transactions are read, if those that were read do not cover the first record."""

UNKNOWN_TIME = -1
"""The time of a batch sent twice that the log does not hold any more; producers then take it for their own."""

_DAMAGE_REMEMBERED_MAX = 10_000
"""Partitions remembered as warned about: bounds the memory, at the price of a second warning."""


class BegunReads(NamedTuple):
    """Reads that were sent, the streams in which they look, and the epochs of their nodes, as far as known then.

    `places` are those of their answers among the `replies`.
    """

    reads: Sequence[Read]
    streams: list[str]
    epochs: list[int]
    places: list[int]
    replies: Pending[list[Reply]]


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
        decompressed_bytes_max: int = 64 * 1024 * 1024,
        held_bytes_max: int = 64 * 1024 * 1024,
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
            decompressed_bytes_max=decompressed_bytes_max,
            held_bytes_max=held_bytes_max,
            replicas=0 if replicas is None else replicas.least,
        )
        self._ends = KnownEnds(self.appends.core, on_lost)
        self._reads = reads
        self._keys = keys
        self.decompressed_bytes_max = decompressed_bytes_max
        self._damaged: set[str] = set()
        self._segments = CompactedSegments()
        self._aborts = AbortMarkers()
        self.watermarks = HighWatermarks(reads, replicas)

    def history_of(self, stream: str) -> str:
        """Return the history that reads of a log are of (RedisNode.history), "" while its node is not known."""
        try:
            return self._reads.node_of(stream).history
        except StorageUnavailableError:
            return ""

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
        for batch in fetched.batches:
            if batch.base_offset <= offset < batch.next_offset:
                return batch.header.max_timestamp
        return next((record[1] for record in fetched.records if record[0] == offset), UNKNOWN_TIME)

    def begin_read(self, reads: Sequence[Read]) -> BegunReads | None:
        """Begin what `read` does if that is sent at once, for `finish_read`, which need not follow."""
        try:
            all_ready = all(self._reads.node_of(read.partition.stream).ready for read in reads)
            return self._send_reads(reads) if all_ready else None
        except StorageUnavailableError:
            return None

    def finish_read(self, begun: BegunReads) -> list[Fetched | KafkaError]:
        """Return what `read` does for reads that were begun; the logs must have the same histories still."""
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
                outcomes[position] = outcome._replace(more=True)
        return outcomes

    def read(self, reads: Sequence[Read]) -> list[Fetched | KafkaError]:
        """Read every partition, all in one round trip; answers stand in the same order.

        External entries that are not in the log yet cost two round trips more, and steps if they need new offsets. In
        the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE if the first batch is
        damaged: a read ends before one that is damaged. An offset outside of `log_start`..`high_watermark` is answered
        like any other: whether that is an error the caller decides. Raises StorageUnavailableError.
        """
        return self.finish_read(self._send_reads(reads)) if reads else []

    def have_grown(self, positions: Sequence[LogPosition]) -> list[bool]:
        """Return whether anything may have come into logs at an offset, which was their end, or past it.

        It costs a tenth of a read. What was appended and what other Redis clients have written is there; in doubt, as
        after an error, something is. Raises StorageUnavailableError.
        """
        grown: list[bool] = []
        for some in in_parts(positions, PARTITIONS_AT_ONCE):
            commands = [
                ("XRANGE", each.partition.stream, range_start(*each), "+", "COUNT", 1) for each in some
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
        streams = [self._segments.stream(read.partition, read.offset) for read in reads]
        commands: list[Sequence[Arg]] = []
        places: list[int] = []
        for (partition, offset, count, end, _, committed, rows), stream in zip(reads, streams, strict=True):
            first, last = range_start(partition, offset), range_end(partition, end)
            commands += (
                ("MULTI",),
                state_command(partition),
                ("XRANGE", stream, first, last, "COUNT", count),
            )
            if committed and self._aborts.known(partition, offset):
                # At once with the entries: trimming and compaction delete what is known of those that they delete.
                commands.append(aborted_command(partition, offset, rows))
            places.append(len(commands))
            commands.append(("EXEC",))
        expected = sum(read.bytes_expected for read in reads)
        # Those of now: what is found later would be taken for the end of the log in an epoch that begins meanwhile.
        epochs = [self._known_epoch(read.partition) for read in reads]
        replies = self._reads.begin_pipeline(commands, reply_bytes=expected)
        return BegunReads(reads, streams, epochs, places, replies)

    def _once_finished(self, begun: BegunReads) -> list[tuple[Fetched | KafkaError, bool]]:
        """Return outcomes, each with whether it is settled: if not, external entries may belong where nothing is."""
        found = self._found(begun)
        for _ in range(_SEGMENTS_MAX):
            misled = {position: read for position, read in enumerate(found) if isinstance(read, Read)}
            if not misled:
                break
            again = self._found(self._send_reads(list(misled.values())))
            for position, outcome in zip(misled, again, strict=True):
                found[position] = outcome
        return [(_moved(each.partition), True) if isinstance(each, Read) else each for each in found]

    def _found(self, begun: BegunReads) -> list[tuple[Fetched | KafkaError, bool] | Read]:
        """Return for each read what `_fetched` does."""
        replies = begun.replies.result()
        sent = zip(begun.reads, begun.streams, begun.epochs, begun.places, strict=True)
        return [self._fetched(read, stream, epoch, replies[place]) for read, stream, epoch, place in sent]

    def _fetched(
        self, read: Read, stream: str, epoch: int, reply: Reply
    ) -> tuple[Fetched | KafkaError, bool] | Read:
        """Return what was found in `stream`, and whether that is settled; or what to read instead."""
        partition, offset, count = read.partition, read.offset, read.entries_max
        try:
            state_reply, entries_reply, *aborted = executed(partition, reply, 2, 3)
            state = read_state(partition, state_reply)
            right = self._segments.learn(partition, offset, state)
            if stream != right:
                return read
            end, remote = state.next_offset, state.remote
            if epoch != NO_EPOCH:
                self._ends.note(partition, epoch, end, state.epochs)
            if remote is not None and offset < remote.end:
                return Fetched(
                    *(remote.start, remote.start, end, []),
                    more=False,
                    remote=remote,
                    epochs=state.epochs,
                    open_offset=state.open_offset,
                    aborted=[] if read.committed else None,
                ), True
            found = entries(partition, entries_reply)
            is_compacted = right != partition.stream
            # Nothing is left from here to the end of the compacted part: what comes next lies after it.
            passed = state.compacted_end if is_compacted and not found else None
            batches = self._batches(partition, found, end) if partition.format == "batch" else []
            if partition.format == "batch" and not batches and len(found) >= count:
                passed = end_of_id(found[-1][0], BATCH)  # all are entries of other clients, between batches
            if passed is not None and passed <= end:
                return read._replace(offset=passed)
            start = remote.start if remote else state.start
            first = end if state.first is None else min(max(state.start, state.first), end)
            first = remote.start if remote else first
            more = len(found) >= count or (is_compacted and state.compacted_end < end)
            if partition.format == "batch":
                # Past the end nothing is served. Before a damaged entry there are fewer batches than entries.
                more = more or len(batches) < len(found)
                more = bool(batches) and more and batches[-1].next_offset < end
                fetched = Fetched(
                    start, first, end, [], more, batches, remote, state.compacted_end, state.epochs
                )
                settled = True
            else:
                records, producers = self._records(partition, found, end)
                external = len(records) < len(found)
                more = external or more
                fetched = Fetched(start, first, end, records, more=more, remote=remote, epochs=state.epochs)
                fetched = fetched._replace(producers=producers) if producers else fetched
                settled = bool(records) or not (external or state.moving or offset > end)
            if state.open_offset is not None:
                fetched = fetched._replace(open_offset=state.open_offset)
            if read.committed:
                outcome = self._committed(read, state, fetched, aborted)
                return outcome if isinstance(outcome, Read) else (outcome, settled)
        except KafkaError as error:
            return error.without_frames(), True
        return fetched, settled

    def _committed(
        self, read: Read, state: LogState, fetched: Fetched, aborted: list[Reply]
    ) -> Fetched | Read:
        """Return what a committed read has found; or what to read instead, to know more of what was aborted."""
        self._aborts.learn(read.partition, state)
        fetched = fetched._replace(aborted=[])
        if state.open_offset is not None:
            fetched = fetched.until(fetched.stable_offset)
        if not fetched.holds_any or state.last_aborted < read.offset:
            return fetched
        if not aborted:
            return read
        rows = read_aborted(read.partition, aborted[0])
        if len(rows) >= read.aborted_max and rows[-1].stable < fetched.next_offset:
            fetched = fetched.until(rows[-1].stable)
            if not fetched.holds_any:
                return read._replace(aborted_max=read.aborted_max * _ABORTED_FACTOR)
            fetched = fetched._replace(more=True)
        end = fetched.next_offset
        found = [each.transaction for each in rows if each.transaction.first_offset < end]
        return fetched._replace(aborted=found)

    def _known_epoch(self, partition: Partition) -> int:
        try:
            return self.epochs.known(self._reads.node_of(partition.stream))
        except StorageUnavailableError:
            return NO_EPOCH

    def _batches(self, partition: Partition, found: Sequence[Entry], end: int) -> list[StoredBatch]:
        try:
            batches, external = read_batches(found, end)
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            # As Kafka answers: a consumer reports the offset, and does not retry as after a storage error.
            message = f"{partition.stream}: an entry ({error}) is malformed"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, message) from error
        if external:
            some = "1 entry is no batch" if external == 1 else f"{external} entries are no batches"
            _LOG.warning("%s: %s: not served", partition.stream, some)
        return batches

    def _records(
        self, partition: Partition, found: Sequence[Entry], end: int
    ) -> tuple[Sequence[StoredRecord], Sequence[ProducerRun]]:
        def damaged(offset: int, encoding: str) -> None:
            if partition.stream in self._damaged:
                return
            if len(self._damaged) >= _DAMAGE_REMEMBERED_MAX:
                self._damaged.clear()
            self._damaged.add(partition.stream)
            message = (
                "%s offset %d: not a %s frame within record.decompressed.max.bytes: values served as stored"
            )
            _LOG.warning(message, partition.stream, offset, encoding)

        bits, bytes_max = partition.bits, self.decompressed_bytes_max
        owned: list[Owned] = []
        try:
            records: Sequence[StoredRecord] | None = read_columns(found, bits, end, bytes_max, owned)
            if records is None:
                records = read_entries(found, bits, end, bytes_max, damaged, owned)
            return records, producer_runs(owned) if owned else ()
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise malformed(partition.stream, "an entry") from error

    def bounds(self, partitions: Sequence[Partition]) -> list[Bounds | KafkaError]:
        """Return the ends of every log, all in one round trip if nobody else wrote to the streams.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises StorageUnavailableError.
        """
        found = self._bounds_once(partitions)
        return [self._settled(*pair) for pair in zip(partitions, found, strict=True)]

    def visible_bounds(self, partitions: Sequence[Partition]) -> list[Bounds | KafkaError]:
        """Return the bounds as consumers see them: the high watermark is what replicas have, -1 if that is unknown.

        Errors as those of `bounds`.
        """
        return self.watermarks.bounds(partitions, lambda: self.bounds(partitions))

    def _settled(self, partition: Partition, found: Bounds | KafkaError | None) -> Bounds | KafkaError:
        for _ in range(ROUNDS_MAX):
            if found is not None:
                return found
            refusal = self.external.settle(partition)
            if refusal is not None:
                return refusal
            [found] = self._bounds_once([partition])
        return found or outrun(partition)

    def _bounds_once(self, partitions: Sequence[Partition]) -> list[Bounds | KafkaError | None]:
        commands: list[Sequence[Arg]] = []
        places: list[int] = []
        for partition in partitions:
            if partition.format == "batch":
                commands.append(state_command(partition))
            else:
                commands += (
                    ("MULTI",),
                    state_command(partition),
                    ("XRANGE", partition.stream, "-", "+", "COUNT", 1),
                    ("XREVRANGE", partition.stream, "+", "-", "COUNT", 1),
                    ("EXEC",),
                )
            places.append(len(commands) - 1)
        replies = self._reads.pipeline(commands)
        found: list[Bounds | KafkaError | None] = []
        for partition, place in zip(partitions, places, strict=True):
            read = read_batch_bounds if partition.format == "batch" else read_record_bounds
            bounds = read(partition, replies[place])
            if isinstance(bounds, Bounds) and (current := self._known_epoch(partition)) != NO_EPOCH:
                self._ends.note(partition, current, bounds.high_watermark, bounds.epochs)
            found.append(bounds)
        return found


def _moved(partition: Partition) -> KafkaError:
    message = f"{partition.stream}: passes of compaction end faster than the log can be read"
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
