"""Fetching for consumers: reading at once, and waiting until there is enough.

A fetch reads on arrival and when an append wakes it. At its deadline it searches for logs that have grown without an
announcement: that makes up for a wake-up that was lost, and finds what other Redis clients have written. Logs whose end
replicas lack it also reads every AGE_SECONDS, for nobody announces that they have it. The reads of all its partitions
travel together, in rounds, within one budget of bytes. How many entries to ask for follows from what the partition's
entries weighed so far. What comes next is read ahead, within a fetch and for the next one.
Limits are KIP-74's, bounds are checked as Kafka does. Offsets that Redis does not hold any more are read from the
remote tier.

Redis is asked for pieces of PIECE_BYTES, of one fetch no more than two at once, and of all fetches of a worker no more
than redis.read.max.bytes: what was asked for and not read yet lies in the memory of Redis. All of this goes by what
entries are expected to weigh. XRANGE has no limit in bytes, so a log whose entries become much larger is read once by
the old weight: such a reply is as many times too large as the entries are, up to COUNT_MAX of the largest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import gevent
import msgspec

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError, partition_code
from korvet.log.collect import (
    BatchCollector,
    FetchPartitionSpec,
    FetchResult,
    RecordCollector,
    collect,
    merge_aborted,
    prepare,
    without_batches,
)
from korvet.log.epochs import NO_EPOCH, EpochStart, epoch_end
from korvet.log.fetch_set import FetchSet
from korvet.log.high_watermark import AGE_SECONDS
from korvet.log.readahead import Prepare, ReadAhead
from korvet.log.remote.client import RemoteRequest, RemoteResponse
from korvet.log.remote.tier import RemoteTier, read_request, to_end
from korvet.log.store import LogStore
from korvet.log.types import Fetched, FetchLimits, Read, RemoteRange
from korvet.redis.pubsub import Subscriptions, Watch
from korvet.telemetry.request_timer import ENCODE, NO_TIMER, REDIS, WAIT, RequestTimer
from korvet.topics.registry import PARTITIONS_AT_ONCE
from korvet.turns import in_parts, in_turns

FIRST_COUNT = 1
"""Entries asked of a partition of which this worker has seen none yet: each may be as large as the topic allows, and a
first fetch may ask of hundreds of partitions. The next round knows what they weigh."""

END_COUNT = 32
"""Entries asked at the end of a log: most likely there are none, or those that came in since the last fetch.

If a fetch found more, twice as many as it found are asked for there: a round each, for a log that is written fast.
"""

COUNT_MAX = 1100
"""Entries asked of a partition at once: records of 1 KiB, of which a fetch has 1 MiB, take one round. Larger replies
cost Python more for each record, not less, as soon as other processes want the cache too."""

WORST_REPLY_BYTES_MAX = 1024 * 1024 * 1024
"""What one partition's reply may weigh at the very worst, if every entry were of the largest size allowed."""

WEIGHTS_MAX = 50_000
"""Partitions whose weight is remembered; beyond it all are forgotten, and learned again within a fetch."""

PIECE_BYTES = 2 * 1024 * 1024
"""What is asked of Redis at once, or read ahead of a partition."""

PREPARED_BYTES_MIN = {"batch": 64 * 1024, "record": 0}
"""From which size on what is read ahead is prepared when it is here: for a few batches a greenlet, which has a stack of
its own, costs more than what their consumer is spared: an eighth of the fetch of one."""

_PIECES_AT_ONCE = 2
"""Pieces that one fetch has asked for and not put together: Redis works on one while the worker does on the other."""

ENTRY_BYTES = 96
"""What Redis sends of an entry besides what weighs in a batch: its id, the names of fields, lengths."""

END_ENTRY_BYTES_MAX = 64 * 1024
"""What is expected of an entry of unknown weight at the end of a log, where most likely there is none."""

ROUNDS_MAX = 256
"""Round trips one read may take before it answers with what it has."""


class PartitionReading:
    """One partition of a read under way.

    `taking`: what is read next goes into the result; else only the bounds are, which are known (`bounded`) once
    anything was read. `more`: there is something after what was taken. `at_end`: the end of the log may be right after
    what is read, so that too little would be read ahead there. `probing`: a transaction was open at the offset, and
    only whether it still is is asked. `remote`: only the remote tier holds the offset.
    """

    entries: int = 0
    entries_taken: int = 0
    bytes_expected: int = 0
    taking: bool = False
    bounded: bool = False
    more: bool = False
    at_end: bool = False
    probing: bool = False
    collector: RecordCollector | BatchCollector | None = None
    remote: RemoteRange | None = None
    done: bool = False

    def __init__(self, place: int, spec: FetchPartitionSpec) -> None:
        self.place, self.spec = place, spec
        self.offset, self.room = spec.offset, spec.bytes_max
        worst = max(1, spec.topic.config.max_message_bytes)
        self.entries_max = min(COUNT_MAX, max(END_COUNT, WORST_REPLY_BYTES_MAX // worst))

    def expect(self, weight: int | None) -> None:
        """Note what the entries asked for weigh, if each has `weight`; None: unknown."""
        if weight is None:
            worst = max(1, self.spec.topic.config.max_message_bytes)
            weight = min(worst, END_ENTRY_BYTES_MAX) if self.at_end or not self.taking else worst
        self.bytes_expected = self.entries * (weight + ENTRY_BYTES)


_Found: TypeAlias = list[tuple[PartitionReading, Fetched | KafkaError]]


class Reader:
    """Reads partitions for one worker, and remembers what their entries weigh."""

    def __init__(self, log: LogStore, remote: RemoteTier) -> None:
        self._log = log
        self._remote = remote
        self._ahead = ReadAhead(log)
        self._weights: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        # Entries that the last fetch got which got any.
        self._found: dict[str, int] = {}
        # The last stable offsets of logs that have open transactions.
        self._unstable: dict[str, int] = {}

    def read(
        self,
        specs: Mapping[int, FetchPartitionSpec],
        places: Sequence[int],
        results: dict[int, FetchResult],
        bytes_max: int,
        timer: RequestTimer = NO_TIMER,
    ) -> None:
        """Read the partitions at `places`, in this order, and replace their results; the others keep theirs, and count.

        Raises StorageUnavailableError.
        """
        for place in in_turns(places):
            results[place] = FetchResult()
        left = bytes_max - _size(results)
        anything = any(each.size_bytes for each in results.values())
        reading = [PartitionReading(place, specs[place]) for place in in_turns(places)]
        since = self._ahead.now()
        for _ in range(ROUNDS_MAX):
            round_ = self._plan(reading, left, anything=anything)
            if not round_:
                # What only the remote tier holds may turn out to be a gap, after which Redis goes on.
                left, gaps = self._read_remote(reading, results, left, timer, wait=not anything)
                if not gaps:
                    break
                anything = anything or any(each.size_bytes for each in results.values())
            timer.end_stage(ENCODE)
            histories = self._log.watermarks.begin(each.spec.partition for each in round_)
            for found in self._read_round(round_, since):
                timer.end_stage(REDIS)
                shown = self._log.watermarks.limit(histories, found, lambda each: each.spec.partition)
                if shown is not found:
                    timer.end_stage(WAIT)
                left, anything = self._take_all(shown, results, left, anything=anything)
                timer.end_stage(ENCODE)
        for each in in_turns(reading):
            if each.collector is not None and not results[each.place].error:
                self._finish(each, each.collector, results[each.place])

    def _finish(
        self, reading: PartitionReading, collector: RecordCollector | BatchCollector, result: FetchResult
    ) -> None:
        """Put the batches into the result, and read ahead for the next fetch."""
        if reading.more and result.size_bytes:
            self._read_ahead(reading, collector.next_offset, reading.spec.bytes_max, for_next=True)
        if reading.entries_taken:
            self._found[reading.spec.partition.stream] = reading.entries_taken
        result.record_count = collector.record_count
        result.chunks = collector.finish()
        if result.aborted:
            result.aborted = [each for each in result.aborted if each.first_offset < collector.next_offset]

    def _plan(self, reading: list[PartitionReading], left: int, *, anything: bool) -> list[PartitionReading]:
        """Choose what to read next, and how much of each, so that the replies fit what is left of the budget.

        `anything`: something was found already; until then the budget does not count (KIP-74).
        """
        planned = 0
        round_ = []
        for each in in_turns(reading):
            if each.done:
                continue
            stream = each.spec.partition.stream
            weight = self._weights.get(stream)
            room = max(0, min(each.room, left - planned, PIECE_BYTES))
            each.taking = room > 0 or not anything
            each.at_end = each.offset >= self._ends.get(stream, each.offset + 1)
            unstable = each.spec.committed and each.offset == self._unstable.get(stream)
            each.probing = unstable and each.taking and not each.bounded
            if not each.taking:
                # Nothing is left for it: one entry, for the bounds that its result must have.
                each.entries = 1
                if each.bounded:
                    continue
            elif each.probing:
                each.entries = 1
            elif each.at_end:
                likely = max(END_COUNT, min(2 * self._found.get(stream, 0), each.entries_max))
                self._found[stream] = self._found.get(stream, 0) // 2  # less each time if it has gone quiet
                each.entries = min(room // weight + 1, likely) if weight else FIRST_COUNT
            elif weight is None:
                each.entries = FIRST_COUNT
                planned += room
                anything = True
            else:
                each.entries = min(room // weight + 1, each.entries_max)
                planned += each.entries * weight
                anything = True
            each.expect(weight)
            round_.append(each)
        return round_

    def _read_round(self, round_: list[PartitionReading], since: float) -> Iterator[_Found]:
        """Read a round, in pieces.

        Of a log of batches for which no bytes are left only the bounds are read, since a batch may be large.
        """
        bounded = [each for each in round_ if not each.taking and each.spec.partition.format == "batch"]
        pieces = _pieces([each for each in round_ if each.taking or each.spec.partition.format != "batch"])
        if len(pieces) == 1:
            yield self._read_piece(pieces[0], since)
        elif pieces:
            yield from self._read_pieces(pieces, since)
        for some in in_parts(bounded, PARTITIONS_AT_ONCE) if bounded else ():
            ends = self._log.bounds([each.spec.partition for each in some])
            pairs = zip(some, ends, strict=True)
            yield [(each, without_batches(each.spec, each.offset, end)) for each, end in pairs]

    def _read_pieces(self, pieces: list[list[PartitionReading]], since: float) -> Iterator[_Found]:
        """Read one piece after the other: while one is put together, the next is on its way."""
        begun: deque[gevent.Greenlet[..., _Found | StorageUnavailableError]] = deque()
        left = iter(pieces)
        for _ in pieces:
            while len(begun) < _PIECES_AT_ONCE and (following := next(left, None)):
                begun.append(gevent.spawn(self._try_piece, following, since))
                gevent.sleep(0)  # so that it is sent before the one before it is put together
            found = begun.popleft().get()
            if isinstance(found, StorageUnavailableError):
                raise found
            yield found

    def _try_piece(self, piece: list[PartitionReading], since: float) -> _Found | StorageUnavailableError:
        """Return the error as a value: if the piece before it failed, nobody asks for this one."""
        try:
            return self._read_piece(piece, since)
        except StorageUnavailableError as error:
            return error.without_frames()

    def _read_piece(self, piece: list[PartitionReading], since: float) -> _Found:
        reads = [
            Read(
                *(each.spec.partition, each.offset, each.entries, each.offset if each.probing else None),
                bytes_expected=each.bytes_expected,
                committed=each.spec.committed,
            )
            for each in piece
        ]
        return list(zip(piece, self._ahead.read(reads, since), strict=True))

    def _read_on(self, reading: PartitionReading, fetched: Fetched | KafkaError, left: int) -> None:
        """Read ahead for the next round, if there is sure to be one: Redis works while this one is put together."""
        if isinstance(fetched, KafkaError) or not (reading.taking and fetched.more):
            return
        taken = self._weights.get(reading.spec.partition.stream, 0) * reading.entries
        room = min(reading.room, left) - taken
        if room >= taken > 0 and fetched.holds_any:
            self._read_ahead(reading, fetched.next_offset, room)

    def _read_ahead(
        self, reading: PartitionReading, offset: int, room: int, *, for_next: bool = False
    ) -> None:
        """Read ahead for the next round, or `for_next` fetch."""
        partition = reading.spec.partition
        weight = self._weights.get(partition.stream)
        if weight and not reading.at_end:
            wanted = room // weight + 1
            entries = min(wanted, PIECE_BYTES // weight + 1, reading.entries_max)
            expected = entries * (weight + ENTRY_BYTES)
            prepare_with: Prepare | None = None
            # Of a fetch of several pieces the first is put together while Redis works on the second.
            if for_next and entries == wanted and expected >= PREPARED_BYTES_MIN[partition.format]:
                prepare_with = partial(prepare, msgspec.structs.replace(reading.spec, offset=offset))
            read = Read(partition, offset, entries, bytes_expected=expected, committed=reading.spec.committed)
            self._ahead.begin(read, expected, prepare_with, for_next=for_next)

    def _take_all(
        self, found: _Found, results: dict[int, FetchResult], left: int, *, anything: bool
    ) -> tuple[int, bool]:
        """Put what was read into the results; returns what is left of the budget, and whether there is anything."""
        for each, fetched in in_turns(found):
            result = results[each.place]
            try:
                self._read_on(each, fetched, left)
                left = self._take(each, fetched, result, left, first=not anything)
            except KafkaError as error:
                each.done = True
                # The records before the error are served, and the next fetch has the error.
                if not result.size_bytes:
                    result = results[each.place] = FetchResult(error=partition_code(error))
            anything = anything or result.size_bytes > 0
        return left, anything

    def _take(
        self,
        reading: PartitionReading,
        fetched: Fetched | KafkaError,
        result: FetchResult,
        left: int,
        *,
        first: bool,
    ) -> int:
        """Put what was read of one partition into its result; returns what is left of the budget then."""
        if isinstance(fetched, KafkaError):
            raise fetched
        spec = reading.spec
        result.high_watermark, result.last_stable_offset = fetched.high_watermark, fetched.stable_offset
        result.log_start = fetched.first_offset
        result.withheld = fetched.end_offset > fetched.high_watermark
        reading.bounded = True
        result.diverging = self._check_position(spec, fetched)
        if result.diverging is not None:
            reading.done = True
            return left
        if fetched.remote is not None and reading.offset < fetched.remote.end and not fetched.holds_any:
            reading.remote, reading.done = fetched.remote if reading.taking else None, True
            return left
        if not reading.taking:
            reading.done = not (fetched.holds_any or fetched.more)
            self._learn(spec.partition.stream, fetched, 0, 0)
            return left
        if reading.probing:
            reading.done = reading.offset >= fetched.visible_end
            self._learn(spec.partition.stream, fetched, 0, 0)
            return left
        room = min(reading.room, left)
        collector, taken, entries = collect(reading.collector, spec, fetched, room, first=first)
        reading.collector = collector
        result.aborted = merge_aborted(result.aborted, fetched.aborted)
        reading.offset = collector.next_offset
        # If less is left than an entry weighs, another round trip would most likely bring nothing that fits.
        weight = taken // entries if entries else 0
        reading.more = fetched.more or collector.full
        reading.done = not fetched.more or collector.full or reading.room - taken <= weight
        # What did not fit into the rest of the request's budget ends it: the others get their bounds only.
        used_up = collector.full and left <= reading.room
        reading.room -= taken
        reading.entries_taken += entries
        result.size_bytes += taken
        self._learn(spec.partition.stream, fetched, taken, entries)
        return 0 if used_up else left - taken

    def _check_position(self, spec: FetchPartitionSpec, fetched: Fetched) -> EpochStart | None:
        """Check that the position is one of this log; returns where it diverges from what the client has read.

        The epochs come first: a client of a log that was cut is to find out where. They are those of the history that
        was read, and so they are compared after the read. Raises KafkaError.
        """
        refusal: KafkaError | None = None
        try:
            current = self._log.check_epoch(spec.partition, spec.leader_epoch, fetched.epochs)
        except StorageUnavailableError as error:
            # Redis answers reads and takes no writes: its history may have no epoch yet.
            refusal = error
        else:
            if spec.last_fetched_epoch != NO_EPOCH:
                log = fetched.epochs, spec.last_fetched_epoch, current, fetched.log_start, fetched.end_offset
                last = epoch_end(*log)
                if last.epoch < spec.last_fetched_epoch or last.start < spec.offset:
                    if last.epoch != NO_EPOCH:
                        return last
                    raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "its last epoch has not begun")
        if not fetched.log_start <= spec.offset <= fetched.end_offset:
            message = f"{spec.offset} is not in {fetched.log_start}..{fetched.end_offset}"
            raise refusal or KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        return None

    def _learn(self, stream: str, fetched: Fetched, size_bytes: int, entries: int) -> None:
        if len(self._weights) > WEIGHTS_MAX or len(self._ends) > WEIGHTS_MAX:
            for each in (self._weights, self._ends, self._found, self._unstable):
                each.clear()
        self._ends[stream] = fetched.visible_end
        if fetched.stable_offset < fetched.high_watermark:
            self._unstable[stream] = fetched.stable_offset
        elif self._unstable:
            self._unstable.pop(stream, None)
        if entries:
            self._weights[stream] = max(1, size_bytes // entries)

    def _read_remote(
        self,
        reading: list[PartitionReading],
        results: dict[int, FetchResult],
        left: int,
        timer: RequestTimer,
        *,
        wait: bool,
    ) -> tuple[int, bool]:
        """Read what only the remote tier holds; returns what is left of the budget, and whether some was a gap."""
        asked: list[PartitionReading] = []
        requests: list[RemoteRequest] = []
        planned = 0
        for each in reading:
            room = min(each.room, left - planned)
            if each.remote is not None and (room > 0 or (wait and not requests)):
                of = (each.spec.partition, each.remote, each.offset, max(room, 0))
                least = wait and not requests
                requests.append(read_request(*of, at_least_one=least, codec=each.spec.codec))
                asked.append(each)
                planned += room
        gaps = False
        if not requests:
            return left, gaps
        timer.end_stage(ENCODE)
        answers = self._remote.read(requests, wait=wait)
        timer.end_stage(WAIT)
        for each, reply in zip(asked, answers, strict=True):
            part, each.remote = each.remote, None
            result = results[each.place]
            answer = to_end(reply, part, result.readable_end(each.spec))
            result.from_remote = answer is None or (isinstance(answer, RemoteResponse) and answer.more)
            if isinstance(answer, KafkaError):
                results[each.place] = FetchResult(error=partition_code(answer))
            elif answer is not None and answer.record_count:
                result.chunks, result.size_bytes = [answer.data], len(answer.data)
                result.record_count, result.from_remote = answer.record_count, True
                left -= len(answer.data)
            elif answer is not None and part is not None and not answer.more:
                # The remote tier has nothing more: what comes next is where Redis begins, though the tier had been
                # further before its files expired. With more, the next record was too large for what is left, and is
                # for another fetch.
                each.offset, each.done, gaps = part.end, False, True
        return left, gaps


def _pieces(reading: list[PartitionReading]) -> list[list[PartitionReading]]:
    """Return what is to be read, in order, in pieces of about PIECE_BYTES, and PARTITIONS_AT_ONCE at the most."""
    pieces: list[list[PartitionReading]] = []
    size = PIECE_BYTES
    for each in in_turns(reading):
        size += each.bytes_expected
        if size > PIECE_BYTES or len(pieces[-1]) >= PARTITIONS_AT_ONCE:
            pieces.append([])
            size = each.bytes_expected
        pieces[-1].append(each)
    return pieces


def _size(results: Mapping[int, FetchResult]) -> int:
    return sum(each.size_bytes for each in results.values())


class Fetcher:
    """Reads for the consumers of one worker."""

    def __init__(
        self,
        log: LogStore,
        subscriptions: Subscriptions,
        remote: RemoteTier,
        clock: Callable[[], float] = time.monotonic,
        on_park: Callable[[int], None] = lambda _change: None,
    ) -> None:
        """`on_park` is called when a fetch begins (1) and ends (-1) to wait for records."""
        self._log = log
        self._on_park = on_park
        self._reader = Reader(log, remote)
        self._subscriptions = subscriptions
        self._clock = clock
        self._parked: set[Watch] = set()
        self._draining = False

    def drain(self) -> None:
        """Answer every parked fetch now, with what there is, and park none from now on."""
        self._draining = True
        for watch in self._parked:
            watch.wake_all()

    def fetch(
        self, specs: Sequence[FetchPartitionSpec], limits: FetchLimits, timer: RequestTimer = NO_TIMER
    ) -> list[FetchResult]:
        """Read each of `specs`, in order; waits up to the limit until `bytes_min` are there.

        An error of one partition stands in its result and ends the waiting. So does a request without partitions, and
        one for archived records: the remote tier has a timeout of its own (Kafka: DelayedRemoteFetch).
        """
        with Watch(self._subscriptions, [each.partition.channel for each in specs]) as watch:
            once = FetchSet(watch)
            once.specs.update(enumerate(in_turns(specs)))
            return list(self.fetch_due(once, None, limits, timer).values())

    def fetch_due(
        self,
        of: FetchSet,
        due: Collection[int] | None,
        limits: FetchLimits,
        timer: RequestTimer = NO_TIMER,
    ) -> dict[int, FetchResult]:
        """Fetch of a set what is `due`, None: all of it; returns the results of what was read, by place.

        The others must have been quiet (FetchResult.is_quiet), and the watch must have heard of them since. They are
        read when they are announced, or found to have grown.
        """
        deadline = self._clock() + limits.wait_ms_max / 1000
        results: dict[int, FetchResult] = {}
        watch, tried = of.watch, False
        if due is not None and self._clock() >= of.search_at:
            due = of.search(self._log, due, self._clock())
            timer.end_stage(REDIS)
        self._read(of, due, results, limits, timer)
        while not self._enough(of, results, limits) and self._clock() < deadline:
            errors: dict[int, StorageUnavailableError] = {}
            changed: Collection[int] | None = None
            if not watch.live or not (watch.hears_all or tried):
                errors, tried = watch.listen(), True
                timer.end_stage(REDIS)
            else:
                withheld = [place for place, each in results.items() if each.withheld]
                until = min(deadline, self._clock() + AGE_SECONDS) if withheld else deadline
                changed = self._park(watch, until) & of.specs.keys()
                timer.end_stage(WAIT)
                if not changed:
                    changed = withheld if until < deadline else self._search(of, results)
                    timer.end_stage(REDIS)
            self._read(of, changed, results, limits, timer)
            for place, error in errors.items():
                # Its node is away, or about to be: nothing would announce its records.
                if not (results[place].error or results[place].size_bytes):
                    results[place] = FetchResult(error=partition_code(error))
        return results

    def _read(
        self,
        of: FetchSet,
        places: Collection[int] | None,
        results: dict[int, FetchResult],
        limits: FetchLimits,
        timer: RequestTimer,
    ) -> None:
        """Read again what is at `places`, None: everything, within the room that there is in memory."""
        if places is None:
            places, of.read_at = of.specs, self._clock()
            of.searched_at = of.read_at
        memory, held = limits.memory, _size(results)
        more = min(limits.bytes_max - held, memory.room)
        memory.reserve(more)
        try:
            self._reader.read(of.specs, sorted(places, key=of.order), results, held + more, timer)
        finally:
            memory.reserve(_size(results) - held - more)
        of.ends |= {place: results[place].high_watermark for place in places if of.specs[place].committed}

    def _search(self, of: FetchSet, results: Mapping[int, FetchResult]) -> Collection[int] | None:
        """Return what has to be read at the deadline, None: everything."""
        loud = [place for place, each in results.items() if not each.is_quiet(of.specs[place])]
        return of.search(self._log, loud, self._clock())

    def _enough(self, of: FetchSet, results: Mapping[int, FetchResult], limits: FetchLimits) -> bool:
        if (
            not of.specs
            or self._draining
            or any(each.error or each.from_remote or each.diverging for each in results.values())
        ):
            # Waiting brings no more from the remote tier, and no append announces a late answer of it.
            return True
        return _size(results) >= limits.bytes_min

    def _park(self, watch: Watch, deadline: float) -> set[int]:
        self._parked.add(watch)
        self._on_park(1)
        try:
            return watch.wait(max(0.0, deadline - self._clock()))
        finally:
            self._parked.discard(watch)
            self._on_park(-1)
