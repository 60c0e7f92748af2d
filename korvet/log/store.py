"""The log of a partition in Redis: append, read, bounds, and taking in what others have written to the stream.

Knows offsets as entry ids and the scripts under lua/log; nothing of the wire, of waiting, or of what a client may
ask. One rule holds it together: only what lies below the state's `next` is the log, and `next` is the high watermark.
An append moves it; entries that somebody else XADDed lie behind it until lua/log/renumber.lua has looked at them, which
every read, append or question for the bounds that meets them makes happen. So an entry never changes its offset
after it was served, and nothing behind an entry without an offset is served before it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from korvet.errors import KafkaError
from korvet.log import replies as log_replies
from korvet.log.append_store import ROUNDS_MAX, Appending, outrun, removal
from korvet.log.batch_format import StoredBatch, read_batches
from korvet.log.compaction_store import CompactedSegments
from korvet.log.record_format import Entry, read_columns, read_entries
from korvet.log.types import Append, AppendBatch, Appended, Bounds, Fetched, Read, Renumbered
from korvet.protocol.records.record import StoredRecord
from korvet.redis import scripts
from korvet.redis.client import Redis
from korvet.redis.connection import Arg
from korvet.redis.keys import Keys
from korvet.redis.replies import Reply, malformed
from korvet.redis.scripts import Script
from korvet.topics.types import Partition

_LOG = logging.getLogger(__name__)
_RENUMBER = scripts.get("log/renumber")
_EXPEL = scripts.get("log/expel")

_STEP_ENTRIES_MAX = 1000
"""What one step of lua/log/renumber.lua looks at or moves: some 5 ms in which Redis serves nobody else."""

_STEP_BYTES_MAX = 2 * 1024 * 1024
"""The same bound for entries that are large."""

_STEPS_MAX = 100_000
"""Steps until a log is said not to settle: 10^8 foreign entries, where a writer that outruns the steps is likelier."""

_READ_STEPS_MAX = 50
"""Steps that one read makes before it answers with what there is; the next read goes on."""

_PARTS_MAX = 10
"""Tries of a read to find the part of the log it is to ask: each but two has met the end of a pass of compaction."""

_DAMAGE_REMEMBERED_MAX = 10_000
"""Partitions remembered as warned about: bounds the memory, at the price of a second warning."""

_Call = tuple[Script, tuple[str, ...], list[Arg]]


class LogStore:
    """Appends over `redis` and reads over `reads`, so that a large answer does not delay the small ones."""

    def __init__(
        self,
        redis: Redis,
        reads: Redis,
        keys: Keys,
        *,
        decompressed_bytes_max: int = 64 * 1024 * 1024,
    ) -> None:
        self._redis = redis
        self._reads = reads
        self._keys = keys
        self._decompressed_bytes_max = decompressed_bytes_max
        self._damaged: set[str] = set()
        self._parts = CompactedSegments()

    def partition(
        self,
        topic: str,
        index: int,
        topic_id: str,
        bits: int,
        storage_format: Literal["record", "batch"] = "record",
    ) -> Partition:
        """Return the partition with its names; `bits` is the topic's offset.sequence.bits, 8 to 12."""
        keys = self._keys
        return Partition(
            topic=topic,
            index=index,
            topic_id=topic_id,
            bits=bits,
            format=storage_format,
            stream=keys.stream(topic, index),
            state=keys.state(topic, index),
            producers=keys.producers(topic, index),
            index_key=keys.index(topic, index),
            moving=keys.moving(topic, index),
            compacted=(keys.clean(topic, index, 0), keys.clean(topic, index, 1)),
            channel=keys.append_channel(topic, index),
        )

    def append(self, appends: Sequence[Append | AppendBatch]) -> list[Appended | KafkaError]:
        """Append every batch, each by one atomic script, all in one round trip; answers stand in the same order.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION (deleted, or another incarnation),
        INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER (so old that its offset is
        forgotten), INVALID_RECORD (too many headers), KAFKA_STORAGE_ERROR. StorageUnavailableError stands in the
        answers too: its batch may or may not have been written, and what others were answered stays true.
        """
        return self.begin_append(appends).result()

    def begin_append(self, appends: Sequence[Append | AppendBatch]) -> Appending:
        """Send the batches as `append` does; what is returned waits for the answers, and must be finished.

        Appends begun one after the other are written in that order. Where some have to be sent again (`in_order` tells)
        those begun after them may have to be too: each is when its answers are waited for, so these must be waited for
        in order, and nothing else begun before that.
        """
        return Appending(self._redis, appends, self._settle)

    def read(self, reads: Sequence[Read]) -> list[Fetched | KafkaError]:
        """Read every partition, all in one round trip; answers stand in the same order.

        Foreign entries that nobody has looked at yet cost two round trips more, and steps where they need new offsets.
        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. An offset outside of
        `log_start`..`high_watermark` is answered like any other: whether that is an error the caller decides. Raises
        StorageUnavailableError.
        """
        outcomes: list[Fetched | KafkaError] = []
        unsettled: dict[int, Read] = {}
        for position, (outcome, settled) in enumerate(self._read_once(reads)):
            outcomes.append(outcome)
            if not settled:
                unsettled[position] = reads[position]
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

    def _read_on(self, unsettled: dict[int, Read]) -> dict[int, Fetched | KafkaError]:
        """Do one step for every log; return the outcomes of those that can be answered now."""
        outcomes: dict[int, Fetched | KafkaError] = {}
        ready: dict[int, Read] = {}
        steps = self._renumber([read.partition for read in unsettled.values()])
        for (position, read), step in zip(unsettled.items(), steps, strict=True):
            if isinstance(step, KafkaError):
                outcomes[position] = step
            elif not step.more or step.high_watermark > read.offset:
                ready[position] = read
        if ready:
            # Entries that came since wait for the next read: below the high watermark all is as it will be.
            again = (outcome for outcome, _ in self._read_once(list(ready.values())))
            outcomes |= zip(ready, again, strict=True)
        return outcomes

    def _read_once(self, reads: Sequence[Read]) -> list[tuple[Fetched | KafkaError, bool]]:
        """Return outcomes, and whether they are settled; not so: foreign entries may belong where nothing is found."""
        found = self._look(reads)
        for _ in range(_PARTS_MAX):
            misled = {position: read for position, read in enumerate(found) if isinstance(read, Read)}
            if not misled:
                break
            for position, outcome in zip(misled, self._look(list(misled.values())), strict=True):
                found[position] = outcome
        return [(outrun(each.partition), True) if isinstance(each, Read) else each for each in found]

    def _look(self, reads: Sequence[Read]) -> list[tuple[Fetched | KafkaError, bool] | Read]:
        """Return for each read what `_fetched` does, all in one round trip."""
        streams = [self._parts.stream(read.partition, read.offset) for read in reads]
        commands: list[Sequence[Arg]] = []
        for (partition, offset, count, behind), stream in zip(reads, streams, strict=True):
            first, last = log_replies.range_start(partition, offset), log_replies.range_end(partition, behind)
            commands += (
                ("MULTI",),
                log_replies.state_command(partition),
                ("XRANGE", stream, first, last, "COUNT", count),
                ("EXEC",),
            )
        replies = self._reads.pipeline(commands)[3::4]
        return [self._fetched(*each) for each in zip(reads, streams, replies, strict=True)]

    def _fetched(self, read: Read, stream: str, reply: Reply) -> tuple[Fetched | KafkaError, bool] | Read:
        """Return what was found in `stream`, and whether that is settled; or what to read instead."""
        partition, offset, count, _ = read
        try:
            state_reply, entries_reply = log_replies.executed(partition, reply, 2)
            state = log_replies.read_state(partition, state_reply)
            right = self._parts.learn(partition, offset, state)
            if stream != right:
                return read
            end, remote = state.next_offset, state.remote
            if remote is not None and offset < remote.end:
                return Fetched(remote.start, remote.start, end, [], more=False, remote=remote), True
            entries = log_replies.entries(partition, entries_reply)
            is_clean = right != partition.stream
            if is_clean and not entries:
                # Nothing is left from here to the end of the compacted part: what comes next lies behind it.
                return read._replace(offset=state.clean_end)
            start = remote.start if remote else state.start
            first = end if state.first is None else min(max(state.start, state.first), end)
            first = remote.start if remote else first
            more = len(entries) >= count or (is_clean and state.clean_end < end)
            if partition.format == "batch":
                batches = self._batches(partition, entries, end)
                # Behind the end lies nothing that will be served, however much it is.
                more = bool(batches) and more and batches[-1].next_offset < end
                found = Fetched(start, first, end, [], more, batches, remote, state.clean_end)
                return found, True
            records = self._records(partition, entries, end)
        except KafkaError as error:
            return error, True
        foreign = len(records) < len(entries)
        fetched = Fetched(start, first, end, records, more=foreign or more, remote=remote)
        return fetched, bool(records) or not (foreign or state.moving or offset > end)

    def _batches(self, partition: Partition, entries: list[Entry], end: int) -> list[StoredBatch]:
        try:
            batches, foreign = read_batches(entries, end)
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise malformed(partition.stream, f"an entry ({error})") from error
        if foreign:
            some = "1 entry is no batch" if foreign == 1 else f"{foreign} entries are no batches"
            _LOG.warning("%s: %s: not served", partition.stream, some)
        return batches

    def _records(self, partition: Partition, entries: list[Entry], end: int) -> Sequence[StoredRecord]:
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

        bits, bytes_max = partition.bits, self._decompressed_bytes_max
        try:
            columns = read_columns(entries, bits, end, bytes_max)
            return read_entries(entries, bits, end, bytes_max, damaged) if columns is None else columns
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise malformed(partition.stream, "an entry") from error

    def bounds(self, partitions: Sequence[Partition]) -> list[Bounds | KafkaError]:
        """Return the ends of every log, all in one round trip where nobody else wrote to the streams.

        In the answers KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR. Raises StorageUnavailableError.
        """
        found = self._bounds_once(partitions)
        return [self._settled(*pair) for pair in zip(partitions, found, strict=True)]

    def _settled(self, partition: Partition, found: Bounds | KafkaError | None) -> Bounds | KafkaError:
        for _ in range(ROUNDS_MAX):
            if found is not None:
                return found
            refusal = self._settle(partition)
            if refusal is not None:
                return refusal
            [found] = self._bounds_once([partition])
        return found or outrun(partition)

    def _bounds_once(self, partitions: Sequence[Partition]) -> list[Bounds | KafkaError | None]:
        commands: list[Sequence[Arg]] = []
        asked: list[int] = []
        for partition in partitions:
            if partition.format == "batch":
                commands.append(log_replies.state_command(partition))
            else:
                commands += (
                    ("MULTI",),
                    log_replies.state_command(partition),
                    ("XRANGE", partition.stream, "-", "+", "COUNT", 1),
                    ("XREVRANGE", partition.stream, "+", "-", "COUNT", 1),
                    ("EXEC",),
                )
            asked.append(len(commands) - 1)
        replies = self._reads.pipeline(commands)
        found: list[Bounds | KafkaError | None] = []
        for partition, place in zip(partitions, asked, strict=True):
            read = log_replies.read_batch_bounds if partition.format == "batch" else log_replies.read_bounds
            found.append(read(partition, replies[place]))
        return found

    def renumber(self, partition: Partition) -> Renumbered:
        """Do one bounded step against foreign entries; without such entries it changes nothing.

        In format `record` they are taken into the log, in format `batch`, where they are no records, removed.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR; StorageUnavailableError.
        """
        [step] = self._renumber([partition])
        if isinstance(step, KafkaError):
            raise step
        return step

    def _renumber(self, partitions: Sequence[Partition]) -> list[Renumbered | KafkaError]:
        calls: list[_Call] = []
        for one in partitions:
            if one.format == "batch":
                calls.append((_EXPEL, (one.stream, one.state), [one.topic_id, _STEP_ENTRIES_MAX]))
                continue
            args: list[Arg] = [one.topic_id, one.bits, _STEP_ENTRIES_MAX, _STEP_BYTES_MAX, one.channel]
            calls.append((_RENUMBER, (one.stream, one.state, one.moving, one.index_key), args))
        steps = []
        for partition, reply in zip(partitions, self._redis.scripts(calls), strict=True):
            step = log_replies.read_renumbered(partition, reply)
            if isinstance(step, Renumbered) and step.moved:
                if partition.format == "batch":
                    _LOG.warning("%s: %s", partition.stream, removal(step.moved))
                else:
                    some = "1 foreign entry" if step.moved == 1 else f"{step.moved} foreign entries"
                    message = "%s: %s got new offsets, now up to %d"
                    _LOG.info(message, partition.stream, some, step.high_watermark)
            steps.append(step)
        return steps

    def _settle(self, partition: Partition) -> KafkaError | None:
        """Take in foreign entries until none is left; return what prevents it, an outage too, as a value.

        An append calls this after others were answered, and their answers must not be lost.
        """
        for _ in range(_STEPS_MAX):
            try:
                step = self.renumber(partition)
            except KafkaError as error:
                return error
            if not step.more:
                return None
        return outrun(partition)
