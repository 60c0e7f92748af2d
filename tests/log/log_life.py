"""One log and what it must be: a model in memory beside the real one, through everything that may happen to a log.

Every method does one thing to both. `check` compares all that a client can see, and that the index is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

from korvet.config.settings import Settings
from korvet.errors import ErrorCode
from korvet.log.appends import BatchAppend
from korvet.log.compaction import Compactor
from korvet.log.compaction_store import CompactionStore
from korvet.log.index import IndexStore
from korvet.log.index_repair import IndexRepair, Repaired
from korvet.log.offsets import OffsetFound, OffsetLookup, OffsetQuery
from korvet.log.remote.archived import RemoteOffsetStore
from korvet.log.retention import Policy, RetainedLog, Retention
from korvet.log.stats import read_stats
from korvet.log.store import LogStore
from korvet.log.trim import BackgroundTrims, RecordDeletion, Trimmer, TrimStore
from korvet.log.types import Appended, LogLimits, LogPosition
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.telemetry.stats import LogStats
from korvet.topics import config as topic_config
from korvet.topics.config import TopicConfig
from korvet.topics.entry_ids import OFFSETS_END
from tests.support.batches import Header, Record
from tests.support.domain import NO_LAKE
from tests.support.entry_ids import end_of_id
from tests.support.log_bench import Bench, Layout, code_of, configs_of, records_of
from tests.support.redis_servers import now_ms

MAX_TIMESTAMP = -3
NEVER_MS = 10**15
_DECOMPRESSED_BYTES_MAX = 1 << 26


class Live(NamedTuple):
    """A record as clients see it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class LogLife:
    """The log of one partition and its model."""

    def __init__(self, url: str, raw: Any, layout: Layout, bits: int, *, keep_tombstones: bool) -> None:
        self._url = url
        self._raw = raw
        self.format = "batch" if layout == "batch" else "record"
        self._bits = bits
        self.records: list[Live] = []
        """Those from the log start on."""
        self.start = 0
        self.end = 0
        self.compacted_end = 0
        self._was_compacted = self._lost_index = False
        self._sent: dict[int, list[tuple[BatchAppend, int]]] = {}
        """What each producer has sent, with the offsets that it was answered."""
        self._sequences: dict[int, int] = {}
        self._keep_tombstones = keep_tombstones
        self._config = topic_config.effective(
            {
                **configs_of(layout),
                "cleanup.policy": "compact,delete",
                "min.cleanable.dirty.ratio": "0",
                "delete.retention.ms": str(NEVER_MS if keep_tombstones else 0),
            },
            Settings(),
        )
        self._redis: Redis | None = None
        self._connect()
        self.bench = Bench(self.redis, raw, layout, bits)
        self.bench.logs = self.logs

    @property
    def redis(self) -> Redis:
        assert self._redis is not None
        return self._redis

    def _connect(self) -> None:
        self.close()
        redis = self._redis = Redis(self._url, timeout_ms=60_000, connect_timeout_ms=10_000)
        self.logs = LogStore(redis, redis, Keys("korvet"), limits=LogLimits(_DECOMPRESSED_BYTES_MAX))
        self.index = IndexStore(redis)
        self.offsets = OffsetLookup(self.logs, self.index, NO_LAKE)
        trims = TrimStore(redis)
        self.trimmer = Trimmer(self.logs, trims, lambda _reason, _count: None)
        self.deletion = RecordDeletion(
            self.logs, RemoteOffsetStore(self.redis), self.trimmer, BackgroundTrims()
        )
        self.retention = Retention(self.logs, trims, self.trimmer)
        self.compactor = Compactor(
            CompactionStore(redis),
            self.logs,
            buffer_bytes=1 << 20,
            decompressed_bytes_max=_DECOMPRESSED_BYTES_MAX,
        )
        self.mender = IndexRepair(redis)

    def close(self) -> None:
        if self._redis is not None:
            self._redis.close()

    def restart(self) -> None:
        """Be another process, before a Redis that has forgotten the scripts."""
        self._connect()
        self.bench.redis, self.bench.logs = self.redis, self.logs
        self._raw.script_flush()

    def produce(
        self,
        records: Sequence[Record],
        codec: int,
        producer: int = -1,
        config: TopicConfig | None = None,
    ) -> None:
        """Append a batch."""
        made = self._made(records, producer, codec=codec, config=config)
        [outcome] = self.bench.logs.append([made])
        assert isinstance(outcome, Appended), outcome
        assert not outcome.duplicate
        base = outcome.base_offset
        if producer >= 0:
            self._sent.setdefault(producer, []).append((made, base))
            self._sequences[producer] = self._sequences.get(producer, 0) + len(records)
        assert base >= self.end
        if self.format == "batch":
            assert base == self.end
        self.records += [
            Live(base + delta, item.timestamp, item.key, item.value, tuple(item.headers))
            for delta, item in enumerate(records)
        ]
        self.end = base + len(records)

    def _made(self, records: Sequence[Record], producer: int, gap: int = 0, **options: Any) -> BatchAppend:
        if producer >= 0:
            options |= {"producer": producer, "epoch": 0, "sequence": self._sequences.get(producer, 0) + gap}
        return self.bench.made(*records, **options)

    def repeat(self, producer: int, age: int) -> None:
        """Send a batch again, the newest but `age`: the last five are known, whatever became of their records."""
        sent = self._sent.get(producer, ())
        if age >= len(sent):
            return
        made, base = sent[-1 - age]
        [outcome] = self.bench.logs.append([made])
        if age < 5:
            assert isinstance(outcome, Appended), outcome
            assert (outcome.base_offset, outcome.duplicate) == (base, True)
        else:
            assert code_of(outcome) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def skip(self, producer: int, gap: int) -> None:
        """Send a batch before the one that is to come first."""
        if producer in self._sequences:
            [outcome] = self.bench.logs.append([self._made([Record(b"gap")], producer, gap)])
            assert code_of(outcome) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def read_from(self, place: float, count: int) -> None:
        """Read on as a consumer does, from any record on."""
        if self.records:
            first = int(place * (len(self.records) - 1))
            assert self._read_all(self.records[first].offset, count) == self.records[first:]

    def external(self, entries: Sequence[dict[str, bytes]], entry_id: str) -> None:
        """XADD as any Redis client may; in format `record` these are records, in the order in which they came."""
        now_ms = int(self._raw.time()[0]) * 1000
        with self._raw.pipeline(transaction=False) as pipe:
            for fields in entries:
                pipe.xadd(self.bench.partition.stream, fields, id=entry_id)
            replies = pipe.execute(raise_on_error=False)
        added = [
            (fields, reply)
            for fields, reply in zip(entries, replies, strict=True)
            if isinstance(reply, bytes)
        ]
        bounds = self.bench.bounds()
        if self.format == "batch":
            assert bounds.high_watermark == self.end
            return
        results = self._read_all(self.end)
        assert [(result.key, result.value) for result in results] == [
            (fields.get("key"), fields.get("value")) for fields, _ in added
        ]
        for record, (fields, old_id) in zip(results, added, strict=True):
            if self.bench.partition.is_dense:
                time_ms = int(old_id.split(b"-")[0])
                if "timestamp" not in fields and not 0 < time_ms <= OFFSETS_END:
                    assert record.timestamp >= now_ms  # when it was taken in
                    continue
            else:
                time_ms = record.offset >> self._bits
            assert record.timestamp == int(fields.get("timestamp", time_ms))
        self.records += results
        self.end = max(bounds.high_watermark, self.end)

    def delete_records(self, offset: int) -> None:
        """Delete everything below an offset."""
        reported = self.bench.bounds().first_offset
        [answer] = self.deletion.delete([LogPosition(self.bench.partition, offset)])
        assert answer == max(offset, reported)
        self._start_at(max(offset, self.start))

    def _start_at(self, offset: int) -> None:
        self.start = offset
        self.records = [record for record in self.records if record.offset >= offset]

    def retain(self, policy: Policy) -> None:
        """Enforce retention: only what is over goes, and all of it that single records show."""
        before = self._look().size_bytes
        began_ms = now_ms(self._raw)
        errors = list(self.retention.enforce([RetainedLog(self.bench.partition, policy)]))
        assert errors == []
        start = self.bench.bounds().log_start
        assert self.start <= start <= self.end
        gone = [record for record in self.records if record.offset < start]
        self._start_at(start)
        if policy.retention_ms >= 0:
            expired_before = began_ms - policy.retention_ms
            if policy.retention_bytes < 0:
                assert all(item.timestamp < expired_before for item in gone)
            if self.format == "record" and self.records:
                assert not 0 <= self.records[0].timestamp < expired_before
        elif gone:
            assert self._look().size_bytes >= min(policy.retention_bytes, before)

    def older_than(self, timestamp: int) -> Policy:
        """Return the policy by which records before a timestamp (ms) are over."""
        return Policy(retention_ms=now_ms(self._raw) - timestamp)

    def compact(self) -> None:
        """Do the pass of compaction that is due, if one is."""
        plans, errors = self.compactor.plans([(self.bench.partition, self._config)], lambda: None)
        assert errors == []
        for plan in plans:
            done = self.compactor.compact(plan, lambda: None)
            if done is None:
                # A pass ends at a row of the index: without any it waits until the keeper has mended that.
                assert self._lost_index
                continue
            dirty_start = max(self.compacted_end, self.start)
            latest = {
                record.key: record.offset for record in self.records if record.offset < done.compacted_end
            }
            self.records = [
                record
                for record in self.records
                if record.offset >= done.compacted_end
                or record.offset == self.end - 1
                or (
                    (record.key is not None and latest[record.key] == record.offset)
                    and not (
                        record.value is None and record.offset < dirty_start and not self._keep_tombstones
                    )
                )
            ]
            self.compacted_end = done.compacted_end
            self._was_compacted = True

    def lose_index(self) -> None:
        """Delete the index, as somebody might who cleans up."""
        self._raw.delete(self.bench.partition.index_key)
        self._lost_index = True

    def mend_index(self) -> None:
        """Do what the keeper does about indexes: once, for there must be nothing left then."""
        partitions = [self.bench.partition]
        for _, outcome in self.mender.repair(partitions, lambda: None):
            assert isinstance(outcome, Repaired), outcome
        assert list(self.mender.repair(partitions, lambda: None)) == []

    def give_memory_back(self) -> None:
        """Do what is left of a trim."""
        while self.trimmer.free(self.bench.partition):
            pass

    def keep(self) -> None:
        """Do what the keeper does about external entries."""
        while self.logs.external.step(self.bench.partition).more:
            pass

    def _read_all(self, offset: int, count: int = 50) -> list[Live]:
        result: list[Live] = []
        while True:
            fetched = self.bench.read(offset, count)
            records = records_of(fetched, offset)
            if not records:
                assert not fetched.more
                return result
            result += [
                Live(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
                for record in records
            ]
            offset = result[-1].offset + 1

    def _first_offset(self) -> int:
        return self.records[0].offset if self.records else self.end

    def look_up(self, timestamp: int) -> None:
        """Ask for the first record that is not older."""
        expected = next((record for record in self.records if record.timestamp >= timestamp), None)
        [result] = self.offsets.find([OffsetQuery(self.bench.partition, timestamp)])
        assert isinstance(result, OffsetFound), result
        wanted = (-1, -1) if expected is None else (expected.offset, expected.timestamp)
        assert (result.offset, result.timestamp) == wanted

    def look_up_largest(self) -> None:
        """Ask for the record with the largest timestamp, the first of them."""
        largest = max((record.timestamp for record in self.records), default=-1)
        expected = next((record.offset for record in self.records if record.timestamp == largest), -1)
        [result] = self.offsets.find([OffsetQuery(self.bench.partition, MAX_TIMESTAMP)])
        assert isinstance(result, OffsetFound), result
        if largest >= 0:
            assert (result.offset, result.timestamp) == (expected, largest)

    def count_from(self, offset: int) -> None:
        """Ask how many records there are from an offset on."""
        [count] = self.index.records_from([LogPosition(self.bench.partition, offset)])
        if self.bench.partition.is_dense:
            assert count == self.end - offset
            return
        assert isinstance(count, int), count
        if self._lost_index:
            return
        expected = sum(record.offset >= offset for record in self.records)
        assert count == expected or (self._was_compacted and count > expected)

    def _look(self) -> LogStats:
        [look] = read_stats(self.redis, [self.bench.partition])[1]
        assert isinstance(look, LogStats), look
        return look

    def check(self) -> None:
        """Compare everything."""
        assert self._read_all(self.start) == self.records
        bounds = self.bench.bounds()
        assert (bounds.log_start, bounds.high_watermark) == (self.start, self.end)
        assert self.start <= bounds.first_offset <= self._first_offset()
        self._check_index()

    def _stored_bytes(self) -> int:
        """Return the lengths of all fields and values of the entries that are the log."""
        partition = self.bench.partition
        which = self._raw.hget(partition.state, "clean")
        streams = [(partition.stream, max(self.start, self.compacted_end))]
        if which is not None:
            streams.append((partition.compacted[int(which)], self.start))
        stored = 0
        for stream, begin in streams:
            entries = cast("list[tuple[bytes, list[bytes]]]", self.redis.call("XRANGE", stream, "-", "+"))
            for entry_id, fields in entries:
                entry_end = end_of_id(entry_id, partition.bits)
                if entry_end is not None and begin < entry_end <= self.end:
                    stored += sum(map(len, fields))
        return stored

    def _check_index(self) -> None:
        """Nothing that a row or the state says of records, bytes and timestamps may be less than what there is."""
        look = self._look()
        assert look.records >= len(self.records)
        stored = self._stored_bytes()
        exact = self.start == 0
        if not self._lost_index:
            assert (look.size_bytes == stored) if exact else (look.size_bytes >= stored), (look, stored)
            assert look.records == len(self.records) or not exact
        rows = [
            (int(score), *map(int, member.split(b":")))
            for member, score in self._raw.zrange(self.bench.partition.index_key, 0, -1, withscores=True)
        ]
        for (begin, begun, *_), (end, records, _size, largest, interval) in pairwise(rows):
            between = [record for record in self.records if begin <= record.offset < end]
            below = [record for record in self.records if record.offset < end]
            assert records - begun >= len(between)
            assert interval >= min(max((item.timestamp for item in between), default=-1), OFFSETS_END)
            assert largest >= min(max((file.timestamp for file in below), default=-1), OFFSETS_END)
