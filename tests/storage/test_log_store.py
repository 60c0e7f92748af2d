"""The log store against a real server: append, read, bounds, foreign entries, and answers that are no answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import gevent
import pytest

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.storage.entry import AtRest, Header, Record
from korvet.storage.keys import Keys
from korvet.storage.log_store import LogStore
from korvet.storage.log_types import Append, Appended, Bounds, Fetched, Partition, Read, Renumbered
from korvet.storage.resp import Redis, Reply, ScriptCall
from korvet.storage.topic_store import TopicRow, TopicStore

BITS = 10
TOPIC_ID = "id-1"


def record(value: bytes | None, key: bytes | None = b"k", *headers: Header) -> Record:
    return cast("Record", SimpleNamespace(key=key, value=value, timestamp=5, headers=list(headers)))


class Bench:
    """A store on topic `orders` with three partitions, and a foreign client beside it."""

    def __init__(self, redis: Redis, raw: Any, bits: int) -> None:
        self.raw = raw
        self.redis = redis
        self.keys = Keys("korvet")
        self.topics = TopicStore(redis, self.keys)
        self.topics.create(TopicRow(name="orders", id=TOPIC_ID, partitions=3))
        self.logs = LogStore(redis, redis, self.keys, decompressed_bytes_max=1 << 20)
        self.partitions = [self.logs.partition("orders", index, TOPIC_ID, bits) for index in range(3)]
        self.partition = self.partitions[0]

    def append(self, *values: bytes | None, partition: Partition | None = None) -> int:
        """Append, expect that to succeed, return the base offset."""
        [outcome] = self.logs.append([batch(partition or self.partition, *values)])
        assert isinstance(outcome, Appended), outcome
        return outcome.base_offset

    def read(self, offset: int, count: int = 1000, partition: Partition | None = None) -> Fetched:
        """Read, expect that to succeed."""
        [outcome] = self.logs.read([Read(partition or self.partition, offset, count)])
        assert isinstance(outcome, Fetched), outcome
        return outcome

    def read_all(self, offset: int = 0, count: int = 1000) -> list[tuple[int, bytes | None]]:
        """Read on as a consumer does, until nothing comes."""
        found: list[tuple[int, bytes | None]] = []
        while True:
            fetched = self.read(offset, count)
            if not fetched.records:
                assert not fetched.more
                return found
            found += [(one[0], one[3]) for one in fetched.records]
            assert fetched.high_watermark > found[-1][0]
            offset = found[-1][0] + 1

    def bounds(self) -> Bounds:
        """Ask for the bounds, expect an answer."""
        [outcome] = self.logs.bounds([self.partition])
        assert isinstance(outcome, Bounds), outcome
        return outcome

    def foreign(self, count: int, entry_id: str = "*") -> None:
        """XADD in one pipeline, as any Redis client may."""
        with self.raw.pipeline(transaction=False) as pipe:
            for n in range(count):
                pipe.xadd(self.partition.stream, {"value": str(n)}, id=entry_id)
            pipe.execute()


def batch(partition: Partition, *values: bytes | None, **producer: Any) -> Append:
    records = [record(value) for value in values]
    return Append(partition=partition, records=records, batch_bytes=100, max_timestamp=5, **producer)


def code_of(outcome: object) -> ErrorCode:
    assert isinstance(outcome, KafkaError), outcome
    return outcome.code


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    client = Redis(redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)
    yield client
    client.close()


@pytest.fixture
def bench(redis: Redis, raw_redis: Any) -> Bench:
    return Bench(redis, raw_redis, BITS)


def test_what_was_appended_is_read_back(bench: Bench) -> None:
    headers: list[Header] = [("a", b"1"), ("a", None), ("", b"")]
    records = [record(b"v"), record(None, None), record(b"", b""), record(b"\x00\xff", b"k", *headers)]
    [outcome] = bench.logs.append(
        [Append(partition=bench.partition, records=records, batch_bytes=70, max_timestamp=5)]
    )
    assert isinstance(outcome, Appended)
    base = outcome.base_offset
    assert (outcome.log_start, outcome.now_ms, outcome.duplicate) == (base, base >> BITS, False)
    assert bench.read(0) == Fetched(
        log_start=0,
        first_offset=base,
        high_watermark=base + 4,
        records=[
            (base, 5, b"k", b"v", []),
            (base + 1, 5, None, None, []),
            (base + 2, 5, b"", b"", []),
            (base + 3, 5, b"k", b"\x00\xff", headers),
        ],
        more=False,
    )


def test_many_appends_are_answered_in_their_order(bench: Bench) -> None:
    stranger = bench.logs.partition("orders", 0, "another-id", BITS)
    one, two, three = bench.partitions
    huge = Append(
        partition=two, records=[record(b"v", b"k", *[("h", b"")] * 5000)], batch_bytes=1, max_timestamp=5
    )
    appends = [
        batch(one, b"a"),
        batch(stranger, b"x"),
        batch(two, b"b"),
        huge,
        batch(three, b"c"),
        batch(one, b"d"),
    ]
    outcomes = bench.logs.append(appends)
    assert [isinstance(outcome, Appended) for outcome in outcomes] == [True, False, True, False, True, True]
    assert code_of(outcomes[1]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(outcomes[3]) == ErrorCode.INVALID_RECORD
    assert [value for _, value in bench.read_all()] == [b"a", b"d"]
    assert [one[3] for one in bench.read(0, partition=three).records] == [b"c"]


class WatchedRedis(Redis):
    """The real connection, which notes the streams that each pipeline of scripts was for."""

    pipelines: ClassVar[list[list[str]]] = []

    def scripts(self, calls: Sequence[ScriptCall]) -> list[Reply]:
        self.pipelines.append([str(keys[0]) for _, keys, _ in calls])
        return super().scripts(calls)


def test_two_batches_of_one_partition_keep_their_order_behind_foreign_entries(
    redis_url: str, raw_redis: Any
) -> None:
    watched = WatchedRedis(redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)
    bench = Bench(watched, raw_redis, BITS)
    bench.foreign(1, f"{2**60}-0")
    outcomes = bench.logs.append([batch(bench.partition, b"a"), batch(bench.partition, b"b")])
    assert all(isinstance(outcome, Appended) for outcome in outcomes)
    assert [value for _, value in bench.read_all()] == [b"0", b"a", b"b"]
    # In one pipeline the second could succeed after the first was told to come again.
    assert watched.pipelines
    assert all(len(set(streams)) == len(streams) for streams in watched.pipelines)
    watched.close()


def test_a_repeated_idempotent_batch_is_answered_with_its_first_offset(bench: Bench) -> None:
    produced = batch(bench.partition, b"a", b"b", producer_id=7, producer_epoch=1, base_sequence=2**31 - 1)
    first, again = bench.logs.append([produced, produced])
    assert isinstance(first, Appended)
    assert again == first._replace(duplicate=True, now_ms=cast("Appended", again).now_ms)
    [gap] = bench.logs.append(
        [batch(bench.partition, b"c", producer_id=7, producer_epoch=1, base_sequence=2)]
    )
    assert code_of(gap) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    [old] = bench.logs.append(
        [batch(bench.partition, b"c", producer_id=7, producer_epoch=0, base_sequence=1)]
    )
    assert code_of(old) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_log_append_time_replaces_every_timestamp(bench: Bench) -> None:
    bench.logs.append([batch(bench.partition, b"a", b"b", timestamp=777)])
    assert [one[1] for one in bench.read(0).records] == [777, 777]
    assert bench.bounds().max_timestamp == 777


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_each_append_says_how_its_values_are_compressed(bench: Bench, codec: Any) -> None:
    plain, packed = b"x" * 5000, b"y" * 5000
    bench.logs.append([batch(bench.partition, plain, at_rest=AtRest("none"))])
    bench.logs.append([batch(bench.partition, packed, at_rest=AtRest(codec, 1024))])
    (_, first), (_, second) = bench.raw.xrange(bench.partition.stream)
    assert first[b"value"] == plain
    assert second[b"korvet.encoding"] == codec.encode()
    assert len(second[b"value"]) < 500
    assert [value for _, value in bench.read_all()] == [plain, packed]


def test_twenty_thousand_records_are_one_append(bench: Bench) -> None:
    base = bench.append(*[b"x"] * 20_000)
    assert [offset for offset, _ in bench.read_all(count=7000)] == list(range(base, base + 20_000))


# Bounds.


def test_a_new_log_is_empty_and_begins_with_zero(bench: Bench) -> None:
    assert bench.bounds() == Bounds(0, 0, 0, -1)
    assert bench.read(0) == Fetched(0, 0, 0, [], more=False)


def test_a_consumer_at_the_end_of_an_empty_log_gets_the_first_record(bench: Bench) -> None:
    end = bench.bounds().high_watermark
    assert bench.read(end).records == []
    base = bench.append(b"first")
    fetched = bench.read(end)
    assert fetched.log_start <= end
    assert fetched.records == [(base, 5, b"k", b"first", [])]


def test_the_log_start_never_follows_the_first_entry(bench: Bench) -> None:
    base = bench.append(b"a", b"b", b"c")
    bench.raw.xtrim(bench.partition.stream, maxlen=1, approximate=False)
    assert bench.bounds() == Bounds(0, base + 2, base + 3, 5)
    fetched = bench.read(0)
    assert (fetched.log_start, [one[0] for one in fetched.records]) == (0, [base + 2])
    bench.raw.xtrim(bench.partition.stream, maxlen=0, approximate=False)
    assert bench.bounds() == Bounds(0, base + 3, base + 3, 5)
    assert bench.read(base) == Fetched(0, base, base + 3, [], more=False)


def test_the_log_start_is_what_the_state_says(bench: Bench) -> None:
    base = bench.append(b"a", b"b", b"c")
    bench.raw.hset(bench.partition.state, "start", base + 1)
    assert bench.bounds() == Bounds(base + 1, base + 1, base + 3, 5)
    fetched = bench.read(base + 1)
    assert (fetched.log_start, fetched.first_offset) == (base + 1, base + 1)


def test_an_offset_beyond_the_end_is_answered_with_the_real_bounds(bench: Bench) -> None:
    base = bench.append(b"a")
    assert bench.read(base + 2) == Fetched(0, base, base + 1, [], more=False)
    assert bench.read(2**63 - 1) == Fetched(0, base, base + 1, [], more=False)


def test_an_offset_beyond_the_end_is_looked_at_again_behind_foreign_entries(bench: Bench) -> None:
    bench.append(b"a")
    bench.foreign(3)
    last = bench.raw.xrevrange(bench.partition.stream, count=1)[0][0].decode().split("-")
    offset = (int(last[0]) << BITS) + int(last[1])
    assert bench.read(offset + 1).high_watermark == offset + 1
    assert bench.read(offset).records[0][3] == b"2"


def test_a_full_answer_says_that_there_may_be_more(bench: Bench) -> None:
    base = bench.append(b"a", b"b", b"c")
    fetched = bench.read(0, count=2)
    assert [one[0] for one in fetched.records] == [base, base + 1]
    assert fetched.more
    assert not bench.read(0, count=4).more


def test_many_partitions_are_read_and_bounded_at_once(bench: Bench) -> None:
    one, two, three = bench.partitions
    base = bench.append(b"b", partition=two)
    gone = bench.logs.partition("nowhere", 0, TOPIC_ID, BITS)
    fetched = bench.logs.read([Read(one, 0, 5), Read(gone, 0, 5), Read(two, 0, 5), Read(three, 0, 5)])
    assert [len(cast("Fetched", fetched[n]).records) for n in (0, 2, 3)] == [0, 1, 0]
    assert code_of(fetched[1]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    bounds = bench.logs.bounds([one, gone, two])
    assert (bounds[0], bounds[2]) == (Bounds(0, 0, 0, -1), Bounds(0, base, base + 1, 5))
    assert code_of(bounds[1]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# What others write.


@pytest.mark.parametrize("bits", [8, 10, 12])
def test_twenty_thousand_pipelined_foreign_entries_are_all_consumed(
    redis: Redis, raw_redis: Any, bits: int
) -> None:
    bench = Bench(redis, raw_redis, bits)
    bench.append(b"own")
    bench.foreign(20_000)
    found = bench.read_all()
    assert [value for _, value in found] == [b"own", *(b"%d" % n for n in range(20_000))]
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets))
    assert bench.bounds().high_watermark == offsets[-1] + 1


def test_a_foreign_entry_is_a_record_with_the_time_of_its_id(bench: Bench) -> None:
    entry_id = bench.raw.xadd(bench.partition.stream, {"value": "hello", "unit": "C"}).decode()
    ms, sequence = (int(part) for part in entry_id.split("-"))
    offset = (ms << BITS) + sequence
    assert bench.read(0) == Fetched(
        0, offset, offset + 1, [(offset, ms, None, b"hello", [("unit", b"C")])], more=False
    )
    assert bench.bounds() == Bounds(0, offset, offset + 1, -1)


def test_foreign_entries_behind_our_own_are_seen_by_the_next_read(bench: Bench) -> None:
    base = bench.append(b"a")
    bench.foreign(2)
    first = bench.read(base)
    assert first.more
    assert [value for _, value in bench.read_all(base)] == [b"a", b"0", b"1"]


def test_latest_lies_behind_a_foreign_burst(bench: Bench) -> None:
    bench.foreign(5, f"{2**60}-*")
    bench.foreign(3, f"{2**61}-*")
    latest = bench.bounds().high_watermark
    assert latest == bench.read_all()[-1][0] + 1
    base = bench.append(b"next")
    assert bench.read(latest).records == [(base, 5, b"k", b"next", [])]


def test_records_are_still_served_when_a_step_was_cut_short(bench: Bench) -> None:
    bench.append(b"own")
    bench.raw.xadd(bench.partition.stream, {"value": "waits"}, id=f"{2**60}-0")
    bench.raw.xadd(bench.partition.moving, {"id": f"{2**59}-0", "value": "was first"})
    bench.raw.hset(bench.partition.state, "moving", "1")
    bench.raw.xdel(bench.partition.stream, f"{2**60}-0")
    bench.raw.xadd(bench.partition.moving, {"id": f"{2**60}-0", "value": "waits"})
    assert [value for _, value in bench.read_all()] == [b"own", b"was first", b"waits"]


def test_consumers_and_foreign_writers_at_once_lose_and_double_nothing(bench: Bench, redis_url: str) -> None:
    other = Redis(redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)

    def write() -> None:
        for n in range(20):
            commands = [("XADD", bench.partition.stream, "*", "value", f"f{n * 500 + i}") for i in range(500)]
            other.pipeline(commands)
            gevent.sleep(0)

    def produce() -> None:
        for n in range(100):
            bench.append(b"own%d" % n)

    jobs = [gevent.spawn(write), gevent.spawn(produce)]
    found: list[bytes] = []
    offset = 0
    with gevent.Timeout(60):
        while len(found) < 10_100:
            records = bench.read(offset, count=300).records
            found += [cast("bytes", one[3]) for one in records]
            offset = records[-1][0] + 1 if records else offset
        gevent.joinall(jobs, raise_error=True)
    other.close()
    assert [value for value in found if value.startswith(b"f")] == [b"f%d" % n for n in range(10_000)]
    assert [value for value in found if value.startswith(b"own")] == [b"own%d" % n for n in range(100)]


def test_renumber_is_a_step_that_tells_what_it_did(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert bench.logs.renumber(bench.partition) == Renumbered(0, 0, more=False)
    bench.foreign(1500, f"{2**60}-*")
    first = bench.logs.renumber(bench.partition)
    assert (first.moved, first.high_watermark, first.more) == (0, 0, True)
    second = bench.logs.renumber(bench.partition)
    assert second.moved + bench.logs.renumber(bench.partition).moved == 1500
    assert "foreign entries got new offsets" in caplog.text


def test_a_damaged_value_is_logged_once_per_partition(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        bench.raw.xadd(bench.partition.stream, {"value": "plain", "korvet.encoding": "lz4"})
    assert [value for _, value in bench.read_all()] == [b"plain"] * 3
    assert bench.read_all()
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert bench.partition.stream in caplog.text


# Redis as an input.


@pytest.mark.parametrize("part", ["stream", "state"])
def test_a_key_of_the_wrong_type_is_an_error_that_names_it(bench: Bench, part: str) -> None:
    key = getattr(bench.partition, part)
    bench.raw.delete(key)
    bench.raw.set(key, "x")
    outcomes: list[object] = [
        *bench.logs.append([batch(bench.partition, b"a")]),
        *bench.logs.read([Read(bench.partition, 0, 5)]),
        *bench.logs.bounds([bench.partition]),
    ]
    for outcome in outcomes:
        assert code_of(outcome) == ErrorCode.KAFKA_STORAGE_ERROR
        assert bench.partition.stream in cast("KafkaError", outcome).message
        assert "WRONGTYPE" in cast("KafkaError", outcome).message
    with pytest.raises(KafkaError, match=r"KAFKA_STORAGE_ERROR .*WRONGTYPE"):
        bench.logs.renumber(bench.partition)


@pytest.mark.parametrize("field", ["next", "start", "max_timestamp"])
@pytest.mark.parametrize("garbage", ["", "x", "1.5x", "\xff"])
def test_a_malformed_state_is_an_error_that_names_it(bench: Bench, field: str, garbage: str) -> None:
    bench.append(b"a")
    bench.raw.hset(bench.partition.state, field, garbage)
    for outcome in (
        *bench.logs.append([batch(bench.partition, b"a")]),
        *bench.logs.read([Read(bench.partition, 0, 5)]),
        *bench.logs.bounds([bench.partition]),
    ):
        assert code_of(outcome) == ErrorCode.KAFKA_STORAGE_ERROR
        assert bench.partition.state in cast("KafkaError", outcome).message


def test_a_deleted_topic_is_unknown_to_everything(bench: Bench) -> None:
    bench.append(b"a")
    bench.topics.delete("orders", TOPIC_ID, 3)
    bench.raw.xadd(bench.partition.stream, {"value": "left over"})
    for outcome in (
        *bench.logs.append([batch(bench.partition, b"a")]),
        *bench.logs.read([Read(bench.partition, 0, 5)]),
        *bench.logs.bounds([bench.partition]),
    ):
        assert code_of(outcome) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        bench.logs.renumber(bench.partition)


def test_a_recreated_topic_takes_nothing_for_the_former_one(bench: Bench) -> None:
    bench.append(b"a")
    bench.topics.delete("orders", TOPIC_ID, 3)
    bench.topics.create(TopicRow(name="orders", id="id-2", partitions=3))
    [outcome] = bench.logs.append([batch(bench.partition, b"a")])
    assert code_of(outcome) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    renewed = bench.logs.partition("orders", 0, "id-2", BITS)
    assert bench.logs.bounds([renewed]) == [Bounds(0, 0, 0, -1)]


def test_a_lost_redis_is_told_for_every_append_and_raised_by_reads(bench: Bench) -> None:
    bench.redis.close()
    outcomes = bench.logs.append([batch(bench.partition, b"a"), batch(bench.partitions[1], b"a")])
    assert [type(outcome) for outcome in outcomes] == [StorageUnavailableError] * 2
    with pytest.raises(StorageUnavailableError):
        bench.logs.read([Read(bench.partition, 0, 5)])
    with pytest.raises(StorageUnavailableError):
        bench.logs.bounds([bench.partition])
