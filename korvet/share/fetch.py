"""Fetching for members of share groups: read what may be available, acquire of it what is, and wait for more.

The worker knows where each group is to be read next (positions.py). It reads there, and then has a script acquire of
exactly what was read (store.py), so that the log remains the log's business: high watermarks, transactions, the remote
tier, entries of other Redis clients. Where others have taken what was read, or something is to be delivered again, the
script says where to read, and that is done once more, a bounded number of times. Most fetches are two round trips.

Limits are those of Fetch: the bytes of the request, and of the worker's memory. What was acquired is always answered:
a member takes an offset that it has acquired and does not get for one that does not exist.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from korvet_core import Fetched

from korvet.clock import CLOCK, Clock
from korvet.config.definition import INT32_MAX
from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.high_watermark import AGE_SECONDS
from korvet.log.remote.client import RemoteRequest, RemoteResponse
from korvet.log.remote.tier import RemoteTier, read_request
from korvet.log.replication import Replicas
from korvet.log.store import LogStore
from korvet.log.types import FetchLimits, LogPosition, Read, RemoteRange, remote_of
from korvet.protocol.records.compression import refusals
from korvet.redis.pubsub import Watch
from korvet.share.parts import ShareAsk, SharePart, ShareResult, ShareSet
from korvet.share.positions import PartKey, Positions, part_key
from korvet.share.reading import SharePiece, chunks, joined, last_epoch, piece
from korvet.share.store import SharePartitions
from korvet.share.types import Acquire, Acquired, AcquiredRange, Readable
from korvet.telemetry.request_metrics import REQUEST_METRICS
from korvet.telemetry.request_timer import ENCODE, NO_TIMER, REDIS, WAIT, RequestTimer
from korvet.topics.registry import PARTITIONS_AT_ONCE, Topic
from korvet.topics.types import Partition
from korvet.turns import in_parts, in_turns

ROUNDS_MAX = 8
"""Reads of a partition in one look at it: others may be faster each time."""

AGAIN_SECONDS = 0.05
"""Pause before a partition is read again for which they were."""

SEARCH_SECONDS = 10.0
"""How long a partition may be quiet before it is read again: what a plain Redis client releases is not announced."""

END_COUNT = 32
"""Entries asked of a partition at the end of its log, where most likely there are none."""

COUNT_MAX = 1100
"""Entries asked of a partition at once."""

REMOTE_BYTES = 1 << 20
"""Bytes asked of the remote tier for a partition at once: to offer them, their batches are taken apart."""

WEIGHTS_MAX = 50_000
"""Partitions whose weight is remembered; beyond it all are forgotten."""

Taken = tuple[SharePiece, Sequence[AcquiredRange]]
"""What was read, and what of it was acquired."""


class _EntryWeight(NamedTuple):
    """What an entry of a log weighs, and how many records it has, as of the last read that found `entries`."""

    size_bytes: float
    records: float
    entries: int


class _EntryWeights:
    """How much to ask for of each log."""

    def __init__(self) -> None:
        self._known: dict[str, _EntryWeight] = {}

    def learn(self, stream: str, read: SharePiece) -> None:
        if len(self._known) > WEIGHTS_MAX:
            self._known.clear()
        known = self._known.get(stream)
        if read.entries:
            records = max(1.0, read.acquirable / read.entries)
            self._known[stream] = _EntryWeight(read.size_bytes / read.entries, records, read.entries)
        elif known is not None:
            self._known[stream] = known._replace(entries=known.entries // 2)

    def entries(self, partition: Partition, records: int, room: int, *, at_end: bool) -> int:
        """Return how many entries to ask for; each of an unknown weight may be as large as the topic allows."""
        known = self._known.get(partition.stream)
        if known is None:
            return 1
        wanted = records if partition.format == "record" else math.ceil(records / known.records)
        if at_end:
            wanted = min(wanted, max(END_COUNT, 2 * known.entries))
        return max(1, min(wanted, int(room / known.size_bytes) + 1, COUNT_MAX))

    def expected(self, topic: Topic, partition: Partition, entries: int) -> tuple[int, int]:
        known = self._known.get(partition.stream) or _EntryWeight(
            max(1, topic.config.max_message_bytes), 1.0, 0
        )
        return int(known.size_bytes * entries) + 1, int(known.records * entries)


class _PartLooks:
    """Who may look at a group's part of a partition: one fetch of this worker, or all would read what one acquires."""

    def __init__(self) -> None:
        self._waiting: dict[PartKey, list[ShareSet]] = {}

    def begin(self, key: PartKey, share_set: ShareSet) -> bool:
        """Begin a look; False: another fetch has begun one, and a wait for `share_set` ends after that."""
        if key in self._waiting:
            self._waiting[key].append(share_set)
            return False
        self._waiting[key] = []
        return True

    def end(self, key: PartKey) -> None:
        for item in self._waiting.pop(key):
            item.watch.wake_all()


class ShareFetcher:
    """Fetches for the members of share groups of one worker."""

    def __init__(
        self,
        log: LogStore,
        store: SharePartitions,
        positions: Positions,
        remote: RemoteTier,
        replicas: Replicas,
        *,
        clock: Clock = CLOCK,
    ) -> None:
        self.log, self.store, self.positions, self.remote = log, store, positions, remote
        self.replicas, self.clock = replicas, clock
        self.weights = _EntryWeights()
        self.looks = _PartLooks()
        self._parked: set[Watch] = set()
        self._draining = False

    def drain(self) -> None:
        """Answer every parked fetch now, and park none from now on."""
        self._draining = True
        for watch in self._parked:
            watch.wake_all()

    def fetch(
        self,
        share_set: ShareSet,
        places: Collection[int],
        ask: ShareAsk,
        limits: FetchLimits,
        *,
        is_gone: Callable[[], bool] = lambda: False,
        timer: RequestTimer = NO_TIMER,
    ) -> dict[int, ShareResult]:
        """Acquire the available records at the resolved `places` for a member; returns them.

        Waits up to the limit if there is nothing, or too little. An error of one partition stands in its result; it
        ends the waiting unless the client knows that there is one (`SharePart.failed`). For a client that has gone
        meanwhile (`is_gone`), or while the worker stops, nothing is acquired.
        """
        deadline = self.clock.monotonic() + limits.wait_ms_max / 1000
        if not share_set.watch.hears_all:
            # Before anything is read: what is announced from then on is read again.
            with contextlib.suppress(StorageUnavailableError):
                share_set.watch.listen()
        under_way = _ShareFetch(self, share_set, ask, limits, timer)
        while not self._draining:
            final = not places or self.clock.monotonic() >= deadline
            # Without a wait there is no time after which to search: all is read at once.
            due = share_set.due(places, self.clock.monotonic(), all_of_them=limits.wait_ms_max <= 0)
            under_way.look(due, final=final)
            if under_way.has_news or final:
                break
            self._wait(share_set, [share_set.parts[place] for place in places], deadline, under_way)
            if share_set.closed or is_gone():
                return {}
        return under_way.results

    def _wait(
        self, share_set: ShareSet, parts: Sequence[SharePart], deadline: float, under_way: _ShareFetch
    ) -> None:
        """Wait until something is due; at the deadline quiet logs are searched for what nobody has announced."""
        until = min([deadline, *(min(part.wake_at, part.search_at) for part in parts)])
        if any(part.withheld for part in parts):
            until = min(until, self.clock.monotonic() + AGE_SECONDS)
        if under_way.outrun:
            until = min(until, self.clock.monotonic() + AGAIN_SECONDS)
        if self._draining:
            return
        self._parked.add(share_set.watch)
        REQUEST_METRICS.parked("ShareFetch", 1)
        try:
            share_set.wait(max(0.0, until - self.clock.monotonic()))
        finally:
            self._parked.discard(share_set.watch)
            REQUEST_METRICS.parked("ShareFetch", -1)
        under_way.timer.end_stage(WAIT)
        for item in parts:
            item.due = item.due or item.withheld
        quiet = [part for part in parts if not part.due and part.end >= 0]
        if quiet and self.clock.monotonic() >= deadline and not share_set.closed:
            grown = self.log.have_grown([LogPosition(item.resolved()[1], item.end) for item in quiet])
            for item, has_grown in zip(quiet, grown, strict=True):
                item.due = has_grown
            under_way.timer.end_stage(REDIS)


class _ShareFetch:
    """One fetch under way. `outrun`: others were faster for what was read, again and again."""

    def __init__(
        self,
        fetcher: ShareFetcher,
        share_set: ShareSet,
        ask: ShareAsk,
        limits: FetchLimits,
        timer: RequestTimer,
    ) -> None:
        self.timer = timer
        self.outrun = False
        self.results: dict[int, ShareResult] = {}
        self._fetcher, self._share_set, self._ask, self._limits = fetcher, share_set, ask, limits
        self._records_left = ask.records_max
        self._bytes_left = 0
        self._final = False
        self._taken: dict[int, list[Taken]] = {}

    @property
    def has_news(self) -> bool:
        """Whether there is anything but errors that the client knows of."""
        return any(
            item.error is None
            or place not in self._share_set.parts
            or not self._share_set.parts[place].failed
            for place, item in self.results.items()
        )

    def look(self, parts: Sequence[SharePart], *, final: bool) -> None:
        """Look at partitions, and put what is acquired of them, or the error, into the results.

        Until the `final` look nothing is acquired if there are fewer bytes than the member waits for.
        """
        memory = self._limits.memory
        self._bytes_left = more = min(self._limits.bytes_max, memory.room)
        self._final, self.outrun = final, False
        memory.reserve(more)
        keys = {part.place: part_key(self._ask.group, part) for part in parts}
        parts = [part for part in parts if self._fetcher.looks.begin(keys[part.place], self._share_set)]
        looks = [keys[part.place] for part in parts]
        for part in parts:
            self.results.pop(part.place, None)
        try:
            for _ in range(ROUNDS_MAX):
                parts = self._round(parts)
                if not parts:
                    break
            self.outrun = bool(parts)
        except StorageUnavailableError:
            # What was acquired before is answered all the same.
            if not self._taken:
                raise
        finally:
            for key in looks:
                self._fetcher.looks.end(key)
            self._finish()
            memory.reserve(sum(result.size_bytes for result in self.results.values()) - more)
        self.timer.end_stage(ENCODE)

    def _finish(self) -> None:
        for place, taken in in_turns(self._taken.items()):
            part = self._share_set.parts.get(place)
            if part is None:
                continue
            topic, _ = part.resolved()
            ranges = joined(taken, None if self._ask.exact else self._ask.batch_size)
            result, count = chunks(taken, topic)
            self.results[place] = ShareResult(None, result, ranges, sum(map(len, result)), count)
            # The others come first next time: one that always has records would use up the limits.
            self._share_set.parts[place] = self._share_set.parts.pop(place)
        self._taken = {}

    def _round(self, parts: Sequence[SharePart]) -> list[SharePart]:
        """Read and acquire once; returns those of which there may be more at once."""
        group = self._ask.group
        unknown = [part for part in parts if self._fetcher.positions.get(group, part) is None]
        errors = self._fetcher.positions.begin(self._ask, unknown) if unknown else {}
        for part in unknown:
            if part.place in errors:
                self._fail(part, errors[part.place])
        parts = [part for part in parts if part.place not in errors]
        result, others = self._read(parts)
        self.timer.end_stage(REDIS)
        size = sum(item.size_bytes for _, item in result)
        if not self._final and not self._taken and 0 < size < self._limits.bytes_min:
            return []
        asks: list[Acquire] = []
        left = self._records_left
        for part, item in result:
            if left > 0:
                subject = part.resolved()[1], group, self._ask.member
                asks.append(
                    Acquire(
                        *subject,
                        item.readable,
                        left,
                        self._ask.exact,
                        self._ask.policy,
                        goes_on=part.place in self._taken,
                    )
                )
                left -= item.acquirable
        answers = self._acquire(asks)
        self.timer.end_stage(REDIS)
        asked = zip(result, answers, strict=False)
        again = [part for (part, item), answer in asked if self._take(part, item, answer)]
        again += [part for part, _ in result[len(asks) :]] + others
        return again if self._records_left > 0 and self._bytes_left > 0 else []

    def _acquire(self, asks: Sequence[Acquire]) -> Sequence[Acquired | KafkaError | None]:
        if not asks or self._share_set.closed:
            return [Acquired()] * len(asks)
        try:
            # What a member was given no failover may give to another one as if for the first time.
            return self._fetcher.replicas.confirm_call(
                partial(self._fetcher.store.acquire, asks),
                ErrorCode.KAFKA_STORAGE_ERROR,
                changed=lambda answers: any(
                    isinstance(answer, Acquired) and answer.ranges for answer in answers
                ),
            )
        except StorageUnavailableError:
            raise
        except KafkaError as error:
            return [error.without_frames()] * len(asks)

    def _take(self, part: SharePart, result: SharePiece, answer: Acquired | KafkaError | None) -> bool:
        """Note what came of asking for what was read; returns whether there may be more at once."""
        now = self._fetcher.clock.monotonic()
        part.due, part.wake_at, part.search_at = True, math.inf, now + SEARCH_SECONDS
        if isinstance(answer, KafkaError):
            self._fail(part, answer)
            return False
        if answer is None:
            # The group has no part of it any more.
            self._fetcher.positions.set(self._ask.group, part, None)
            return True
        was_blocked, part.blocked = part.blocked, answer.read_next is None
        if answer.wake_ms is not None:
            part.wake_at = now + max(1, answer.wake_ms) / 1000
        if answer.read_next is not None:
            self._fetcher.positions.set(self._ask.group, part, answer.read_next)
        if answer.ranges:
            self._taken.setdefault(part.place, []).append((result, answer.ranges))
            self._records_left -= sum(item.last - item.first + 1 for item in answer.ranges)
            self._bytes_left -= result.size_bytes
        throttled_from = self._ask.policy.throttled_from
        has_all = part.place in self._taken and all(
            item.delivery_count > throttled_from for item in answer.ranges
        )
        if answer.read_next is None or has_all:
            # Only an acknowledgement or the end of a lock makes room; no others come with throttled records.
            return False
        more = answer.read_next < result.visible_end
        if answer.ranges:
            # What was released meanwhile, before what is answered already, is for the next fetch.
            fits = self._bytes_left * max(1, result.entries) >= result.size_bytes
            return more and fits and answer.read_next >= result.readable.end
        if was_blocked or more:
            return True
        part.due = not self._share_set.watch.hears(part.place)
        return False

    def _fail(self, part: SharePart, error: KafkaError) -> None:
        part.due, part.wake_at, part.search_at = (
            True,
            math.inf,
            self._fetcher.clock.monotonic() + SEARCH_SECONDS,
        )
        if part.place not in self._taken:
            self.results[part.place] = ShareResult(error.without_frames())

    def _read(self, parts: Sequence[SharePart]) -> tuple[list[tuple[SharePart, SharePiece]], list[SharePart]]:
        """Return what was read, and the parts for which nothing was left of the limits."""
        result = [(part, self._unread(part)) for part in parts if part.blocked]
        plan = list(self._plan([part for part in parts if not part.blocked]))
        planned = {part.place for part, _ in plan}
        others = [part for part in parts if not part.blocked and part.place not in planned]
        log = self._fetcher.log
        room, any_read = self._bytes_left, False
        archived: list[tuple[SharePart, Fetched, RemoteRange]] = []
        for chunk in in_parts(plan, PARTITIONS_AT_ONCE) if plan else ():
            reads = [read for _, read in chunk]
            partitions = [read.partition for read in reads]
            histories = log.watermarks.begin(partitions)
            limited = log.watermarks.limit(histories, partitions, log.read(reads))
            for (part, read), item in zip(chunk, limited, strict=True):
                if isinstance(item, KafkaError):
                    self._fail(part, item)
                    continue
                part.end, part.withheld = item.high_watermark, item.end_offset > item.high_watermark
                remote = remote_of(item)
                if remote is not None and read.offset < remote.end and not len(item):
                    archived.append((part, item, remote))
                    continue
                got = piece(read.offset, item, room, at_least_one=not (self._taken or any_read))
                if got is None:
                    continue
                any_read = any_read or got.entries > 0
                self._fetcher.weights.learn(read.partition.stream, got)
                room = max(0, room - got.size_bytes)
                result.append((part, got))
        if archived:
            result += self._read_remote(archived, room, wait=not any_read)
        return result, others

    def _plan(self, parts: Sequence[SharePart]) -> Iterator[tuple[SharePart, Read]]:
        room, records = self._bytes_left, self._records_left
        for part in in_turns(parts):
            if room <= 0 or records <= 0:
                return
            topic, partition = part.resolved()
            offset = self._fetcher.positions.get(self._ask.group, part) or 0
            at_end = 0 <= part.end <= offset
            entries = self._fetcher.weights.entries(partition, records, room, at_end=at_end)
            size, count = self._fetcher.weights.expected(topic, partition, entries)
            if not at_end:
                room, records = room - size, records - count
            committed = self._ask.committed
            yield part, Read(partition, offset, entries, bytes_expected=size, committed=committed)

    def _unread(self, part: SharePart) -> SharePiece:
        """Return what stands for a read of a partition in which nothing else can be acquired."""
        offset = self._fetcher.positions.get(self._ask.group, part) or 0
        return SharePiece(Readable(offset, offset))

    def _read_remote(
        self, archived: Sequence[tuple[SharePart, Fetched, RemoteRange]], room: int, *, wait: bool
    ) -> Iterator[tuple[SharePart, SharePiece]]:
        """Yield what only the remote tier holds; what it does not answer in time is for another fetch."""
        requests: list[RemoteRequest] = []
        size_bytes = min(room // len(archived), REMOTE_BYTES)
        for part, _, remote in archived:
            topic, partition = part.resolved()
            offset = self._fetcher.positions.get(self._ask.group, part) or 0
            share_set = partition, remote, offset, size_bytes
            requests.append(read_request(*share_set, at_least_one=True, codec=topic.config.codec))
        self.timer.end_stage(REDIS)
        answers = self._fetcher.remote.read(requests, wait=wait)
        self.timer.end_stage(WAIT)
        for (part, fetched, remote), request, answer in zip(archived, requests, answers, strict=True):
            if isinstance(answer, KafkaError):
                self._fail(part, answer)
            elif answer is None:
                self.results[part.place] = ShareResult()
            else:
                yield part, self._remote_piece(part, request.offset, fetched, remote, answer)

    def _remote_piece(
        self, part: SharePart, offset: int, fetched: Fetched, remote: RemoteRange, answer: RemoteResponse
    ) -> SharePiece:
        batches = fetched.with_batches(answer.data)
        if not len(batches):
            # The remote tier has nothing more: what comes next is where Redis begins.
            readable = Readable(offset, remote.end, epoch=last_epoch(fetched))
            return SharePiece(readable, visible_end=fetched.visible_end)
        _, partition = part.resolved()
        runs = None
        if partition.format == "record":
            with refusals():
                runs = batches.record_spans()
        result = piece(offset, batches, INT32_MAX, offsets=runs)
        assert result is not None  # noqa: S101 - it has room for all
        return result
