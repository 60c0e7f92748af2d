"""ListOffsets and OffsetForLeaderEpoch: the ends of a log, the offset that belongs to a timestamp, the end of an epoch.

A search by timestamp asks the index of the log which intervals may hold the answer, and reads these, most often one. In
format `batch` only batches whose header says that the answer may be in them are decoded. Records that only the remote
tier holds are older: it is asked first, and Redis if it has no answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from korvet_core import Fetched

from korvet.errors import KafkaError, or_raise
from korvet.log import high_watermark
from korvet.log.epochs import NO_EPOCH, epoch_at, epoch_end
from korvet.log.index import IndexStore, Search, SearchResult
from korvet.log.remote.tier import RemoteTier, Stamp, search_request
from korvet.log.store import LogStore
from korvet.log.types import Bounds, Read
from korvet.protocol.types import SpecialTimestamp
from korvet.topics.entry_ids import OFFSETS_END
from korvet.topics.types import Partition

SCAN_RECORDS, SCAN_BATCHES = 1000, 64
"""Entries per step of a search: a step holds up neither Redis nor the other greenlets of the worker for long."""

_ALWAYS_VISIBLE = {
    SpecialTimestamp.EARLIEST,
    SpecialTimestamp.EARLIEST_LOCAL,
    SpecialTimestamp.LATEST_TIERED,
    SpecialTimestamp.EARLIEST_PENDING_UPLOAD,
}
"""Offsets below every high watermark, for which no replica is asked: the log start, and archived offsets."""


class OffsetFound(msgspec.Struct, frozen=True):
    """An offset with its timestamp (ms) and leader epoch; all -1 if no record matches."""

    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = -1


class OffsetQuery(msgspec.Struct, frozen=True):
    """A timestamp in ms, or a SpecialTimestamp, of one partition; `remote_storage`: its topic is archived.

    `committed`: the log ends at its last stable offset (read_committed).
    """

    partition: Partition
    timestamp: int
    remote_storage: bool = False
    committed: bool = False

    def end(self, bounds: Bounds) -> int:
        """Return the end of what may be found, -1 if it is not known."""
        return bounds.stable_offset if self.committed else bounds.high_watermark

    @property
    def earliest(self) -> int | None:
        """The time from which on records are looked for; None: for the largest."""
        return None if self.timestamp == SpecialTimestamp.MAX_TIMESTAMP else self.timestamp


class OffsetLookup:
    """Finds offsets."""

    def __init__(self, log: LogStore, index: IndexStore, remote: RemoteTier) -> None:
        self._log = log
        self._index = index
        self._remote = remote

    def find(self, queries: Sequence[OffsetQuery]) -> list[OffsetFound | KafkaError]:
        """Answer each query, in order.

        A timestamp's answer is the first record, by offset, whose timestamp is not smaller; there may be none.
        """
        always_visible = all(query.timestamp in _ALWAYS_VISIBLE for query in queries)
        read_bounds = self._log.bounds if always_visible else self._log.visible_bounds
        bounds = read_bounds([query.partition for query in queries])
        searches = {
            place: search
            for place, (query, bound) in enumerate(zip(queries, bounds, strict=True))
            if not isinstance(bound, KafkaError) and (search := _search(query, bound)) is not None
        }
        intervals = (
            dict(zip(searches, self._index.find(list(searches.values())), strict=True)) if searches else {}
        )
        requests = {
            place: search_request(queries[place].partition, remote, queries[place].earliest)
            for place in searches
            if not isinstance(bound := bounds[place], KafkaError) and (remote := bound.remote) is not None
        }
        stamps = dict(zip(requests, self._remote.timestamps(list(requests.values())), strict=True))
        answers: list[OffsetFound | KafkaError] = []
        for place, (query, bound) in enumerate(zip(queries, bounds, strict=True)):
            if isinstance(bound, KafkaError):
                answers.append(bound)
            elif place in searches:
                stamp, where = stamps.get(place), (searches[place], intervals[place])
                visible = _visible(query, bound, self._of_both(query, bound, stamp, *where))
                answers.append(_with_epoch(bound, visible))
            else:
                answers.append(_with_epoch(bound, _bound(query, bound)))
        return answers

    def check_epoch(self, partition: Partition, epoch: int) -> None:
        """Check the leader epoch that a client knows of a log; raises as LeaderEpochs.check does."""
        self._log.check_epoch(partition, epoch)

    def epoch_ends(self, partitions: Sequence[tuple[Partition, int]]) -> list[OffsetFound | KafkaError]:
        """Return for each partition the last epoch up to the one asked for, and the offset at which it ends.

        As Kafka does (epoch_end). Raises StorageUnavailableError.
        """
        bounds = self._log.bounds([partition for partition, _ in partitions])
        answers: list[OffsetFound | KafkaError] = []
        for (partition, epoch), result in zip(partitions, bounds, strict=True):
            try:
                log = or_raise(result)
                current = self._log.check_epoch(partition, NO_EPOCH, log.epochs)
                last, end = epoch_end(log.epochs, epoch, current, log.log_start, log.high_watermark)
                answers.append(OffsetFound(end, leader_epoch=last))
            except KafkaError as error:
                answers.append(error.without_frames())
        return answers

    def _of_both(
        self,
        query: OffsetQuery,
        bounds: Bounds,
        stamp: Stamp | KafkaError | None,
        search: Search,
        intervals: SearchResult | KafkaError,
    ) -> OffsetFound | KafkaError:
        """Return the answer of the remote tier, `stamp`, or else the local answer from Redis, for newer records."""
        if isinstance(stamp, KafkaError):
            return stamp
        by_time = query.earliest is not None
        if stamp is None or (by_time and bounds.remote is not None and stamp[0] >= bounds.remote.end):
            return self._find_in_redis(query, search, intervals)
        archived = OffsetFound(*stamp)
        if by_time or archived.timestamp >= bounds.max_timestamp < OFFSETS_END:
            return archived
        local = self._find_in_redis(query, search, intervals)
        return local if isinstance(local, KafkaError) or local.timestamp > archived.timestamp else archived

    def _find_in_redis(
        self, query: OffsetQuery, search: Search, intervals: SearchResult | KafkaError
    ) -> OffsetFound | KafkaError:
        if isinstance(intervals, KafkaError):
            return intervals
        try:
            if query.timestamp != SpecialTimestamp.MAX_TIMESTAMP:
                return self._first_from(search, intervals)
            answer = OffsetFound()
            if search.timestamp < OFFSETS_END:
                answer = self._first_from(search, intervals)
            # Nothing: the record that had the largest timestamp has left the log.
            return self._largest(search.partition, search.offset) if answer.offset < 0 else answer
        except KafkaError as error:
            return error.without_frames()

    def _first_from(self, search: Search, result: SearchResult) -> OffsetFound:
        partition, timestamp, start = search
        while True:
            for first, end in result.intervals:
                for fetched in self._read(partition, first, end):
                    if stamp := fetched.first_since(timestamp, max(first, start)):
                        return OffsetFound(*stamp)
            if result.searched >= result.end:
                return OffsetFound()
            # The records that the index knows of have left the log.
            following = or_raise(*self._index.find([search._replace(offset=result.searched)]))
            result = following

    def _largest(self, partition: Partition, start: int) -> OffsetFound:
        """Return the first record from `start` on with the largest timestamp, from the most promising interval on."""
        largest = OffsetFound()
        intervals = sorted(
            self._index.intervals(partition), key=lambda interval: (-interval.bound, interval.first)
        )
        for first, end, bound in intervals:
            # State and index count a timestamp past OFFSETS_END as OFFSETS_END: each such interval is read.
            if bound < min(largest.timestamp, OFFSETS_END):
                break
            for fetched in self._read(partition, first, end):
                stamp = fetched.largest(largest.timestamp, max(first, start), end)
                if stamp and (stamp[1] > largest.timestamp or stamp[0] < largest.offset):
                    largest = OffsetFound(*stamp)
        return largest

    def _read(self, partition: Partition, first: int, end: int) -> Iterator[Fetched]:
        """Yield the log from one offset to another, in order."""
        offset = first
        count = SCAN_BATCHES if partition.format == "batch" else SCAN_RECORDS
        while offset < end:
            fetched = or_raise(*self._log.read([Read(partition, offset, count, end)]))
            if fetched.next_offset is None:
                return
            yield fetched
            offset = fetched.next_offset


def _search(query: OffsetQuery, bounds: Bounds) -> Search | None:
    """Return the search of the index; None if the bounds of the log are the answer."""
    # Redis may hold more below the log's start, which is then that of the remote tier.
    first = -1 if bounds.remote else bounds.log_start
    if query.timestamp == SpecialTimestamp.MAX_TIMESTAMP:
        # A record without a timestamp has -1, and is no answer.
        return Search(query.partition, max(bounds.max_timestamp, 0), first)
    return Search(query.partition, query.timestamp, first) if query.timestamp >= 0 else None


def _visible(
    query: OffsetQuery, bounds: Bounds, answer: OffsetFound | KafkaError
) -> OffsetFound | KafkaError:
    """Return what was found if consumers may see it, as Kafka does; what only the remote tier holds they may."""
    if isinstance(answer, KafkaError) or answer.offset < max(query.end(bounds), bounds.local_start):
        return answer
    return OffsetFound() if bounds.high_watermark >= 0 else high_watermark.unknown()


def _bound(query: OffsetQuery, bounds: Bounds) -> OffsetFound | KafkaError:
    match query.timestamp:
        case SpecialTimestamp.LATEST:
            end = query.end(bounds)
            return OffsetFound(end) if end >= 0 else high_watermark.unknown()
        case SpecialTimestamp.EARLIEST:
            return OffsetFound(bounds.first_offset)
        case SpecialTimestamp.EARLIEST_LOCAL:
            return OffsetFound(bounds.local_start)
        case SpecialTimestamp.LATEST_TIERED if bounds.archived > 0:
            return OffsetFound(bounds.archived - 1)
        case SpecialTimestamp.EARLIEST_PENDING_UPLOAD if query.remote_storage or bounds.archived > 0:
            # Before anything was archived, all is pending (UnifiedLog.fetchEarliestPendingUploadOffset).
            return OffsetFound(max(bounds.archived, bounds.local_start))
        case _:
            return OffsetFound()


def _with_epoch(bounds: Bounds, answer: OffsetFound | KafkaError) -> OffsetFound | KafkaError:
    """Return an answer with the epoch of its offset; at the end of the log, that of its last record."""
    if isinstance(answer, KafkaError) or answer.offset < 0:
        return answer
    return msgspec.structs.replace(answer, leader_epoch=epoch_at(bounds.epochs, answer.offset))
