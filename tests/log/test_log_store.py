"""The log store against a real server: what holds in both formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from korvet_core import Fetched

from korvet.errors import AppendUnknownError, ErrorCode, KafkaError, StorageUnavailableError
from korvet.log.packed import LOG_FIELD, PackedLog
from korvet.log.types import Appended, Bounds, LogPosition, Read
from korvet.redis.client import Redis
from korvet.topics.config import TopicConfig
from korvet.topics.entry_ids import OFFSETS_END
from tests.support.appends import at_rest
from tests.support.batches import CODECS, NONE, Record
from tests.support.log_bench import TIMESTAMP, TOPIC_ID, Bench, code_of, records_of
from tests.support.partition_state import log_of
from tests.support.proxy import Proxy, proxy


@pytest.mark.parametrize("config", [at_rest("none"), at_rest("lz4"), at_rest("zstd")])
@pytest.mark.parametrize("codec", CODECS)
def test_what_was_appended_is_counted_and_read_back(bench: Bench, codec: int, config: TopicConfig) -> None:
    headers = (("a", b"1"), ("a", None), ("", b""), ("ü", bytes(range(256))))
    records = [
        Record(b"v", b"k", 5),
        Record(None, None, 2**40),
        Record(b"", b"", 0),
        Record(b"\x00\xff" * 3000, b"k", 7, headers),
    ]
    base = bench.append(*records, codec=codec, config=config)
    entries = bench.raw.xrange(bench.partition.stream)
    stored = sum(len(name) + len(value) for _, fields in entries for name, value in fields.items())
    assert log_of(bench.raw, bench.partition.state).size_bytes == stored
    packed = config.at_rest.codec != "none" and (bench.format == "record" or codec == NONE)
    encodings = {fields[b"korvet.encoding"] for _, fields in entries if b"korvet.encoding" in fields}
    assert encodings == ({config.at_rest.codec.encode()} if packed else set())
    expected = [record._replace(offset=base + n) for n, record in enumerate(records)]
    assert bench.records() == expected
    fetched = bench.read(0)
    assert (fetched.log_start, fetched.first_offset, fetched.high_watermark) == (0, base, base + 4)
    assert not fetched.more
    assert bench.bounds() == Bounds(0, base, base + 4, 2**40)


NAMES = st.one_of(
    st.sampled_from(
        ["", "key", "value", "timestamp", "a.b", "header.x", "nullheader.x", "korvet.encoding", "\x00", "\n"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
CONTENTS = st.none() | st.binary(max_size=50) | st.binary(min_size=1, max_size=3).map(lambda part: part * 700)
RECORDS = st.builds(
    Record,
    value=CONTENTS,
    key=CONTENTS,
    timestamp=st.integers(0, 2**62),
    headers=st.lists(st.tuples(NAMES, CONTENTS), max_size=8).map(tuple),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(RECORDS, min_size=1, max_size=5),
    config=st.sampled_from([at_rest("none", 100), at_rest("lz4", 100), at_rest("zstd", 100)]),
    codec=st.sampled_from(CODECS),
)
def test_every_record_survives_the_log_exactly(
    bench: Bench, records: list[Record], config: TopicConfig, codec: int
) -> None:
    base = bench.append(*records, config=config, codec=codec)
    assert bench.records(base) == [record._replace(offset=base + n) for n, record in enumerate(records)]


def test_many_appends_are_answered_in_their_order(bench: Bench) -> None:
    one, two, three = bench.partitions
    stranger = bench.at(0, topic_id="another-id")
    outcomes = bench.logs.append(
        [
            bench.made(b"a", partition=one),
            bench.made(b"x", partition=stranger),
            bench.made(b"b", partition=two),
            bench.made(b"c", partition=three),
            bench.made(b"d", partition=one),
        ]
    )
    assert [isinstance(outcome, Appended) for outcome in outcomes] == [True, False, True, True, True]
    assert code_of(outcomes[1]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert bench.values() == [b"a", b"d"]
    assert [record.value for record in bench.records(partition=three)] == [b"c"]


# Bounds.


def test_the_log_start_never_follows_the_first_entry(bench: Bench) -> None:
    base, _, last = (bench.append(value) for value in (b"a", b"b", b"c"))
    bench.raw.xtrim(bench.partition.stream, maxlen=1, approximate=False)
    assert bench.bounds().log_start == bench.read(0).log_start == 0
    assert [record.offset for record in bench.records()] == [last]
    if bench.format == "record":
        assert bench.bounds().first_offset == last
    bench.raw.xtrim(bench.partition.stream, maxlen=0, approximate=False)
    bounds = bench.bounds()
    assert (bounds.log_start, bounds.high_watermark) == (0, last + 1)
    assert bounds.first_offset == (last + 1 if bench.format == "record" else base)
    assert bench.nothing(base) == (0, base, last + 1)


def test_partitions_of_both_formats_travel_together(redis: Redis, raw_redis: Any) -> None:
    lines, whole = (Bench(redis, raw_redis, item, topic=item) for item in ("record", "batch"))
    first, second = lines.logs.append([lines.made(b"a"), whole.made(b"b")])
    assert isinstance(first, Appended)
    assert isinstance(second, Appended)
    assert second.base_offset == 0
    result = lines.logs.read([Read(whole.partition, 0, 5), Read(lines.partition, 0, 5)])
    values = [[record.value for record in records_of(one, 0)] for one in result if isinstance(one, Fetched)]
    assert values == [[b"b"], [b"a"]]
    bounds = lines.all_bounds(whole.partition, lines.partition)
    base = first.base_offset
    assert bounds == [Bounds(0, 0, 1, TIMESTAMP), Bounds(0, base, base + 1, TIMESTAMP)]


def test_the_append_that_writes_a_row_of_the_index_says_so(bench: Bench) -> None:
    outcomes = []
    for _ in range(5):
        outcomes += bench.logs.append([bench.made(b"v" * 150_000, config=at_rest("none"))])
    appended = [outcome for outcome in outcomes if isinstance(outcome, Appended)]
    assert [bool(item.row_bytes) for item in appended] == [False, False, False, True, False]
    assert appended[3].row_bytes * 5 == log_of(bench.raw, bench.partition.state).size_bytes * 4
    assert bench.raw.zcard(bench.partition.index_key) == 2  # with that of the log's begin


@pytest.mark.parametrize("part", ["stream", "state"])
def test_a_key_of_the_wrong_type_is_an_error_that_names_it(bench: Bench, part: str) -> None:
    bench.append(b"a")
    key = getattr(bench.partition, part)
    bench.raw.delete(key)
    bench.raw.set(key, "x")
    outcomes: list[object] = [
        *bench.logs.append([bench.made(b"a")]),
        *bench.logs.read([Read(bench.partition, 0, 5)]),
    ]
    if part == "state" or bench.format == "record":  # in format batch the bounds lie in the state alone
        outcomes += bench.logs.bounds([bench.partition])
    for outcome in outcomes:
        assert isinstance(outcome, KafkaError)
        assert outcome.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert bench.partition.stream in outcome.message
        assert "WRONGTYPE" in outcome.message
    with pytest.raises(KafkaError, match=r"KAFKA_STORAGE_ERROR .*WRONGTYPE"):
        bench.logs.external.step(bench.partition)


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"x" * 77,
        PackedLog().pack()[:-1],
        PackedLog().pack() + b"\0",
        PackedLog(next_offset=2 * OFFSETS_END).pack(),
        PackedLog(start=1).pack(),
    ],
)
def test_a_malformed_state_is_an_error_that_names_it(bench: Bench, packed: bytes) -> None:
    bench.append(b"a")
    bench.raw.hset(bench.partition.state, LOG_FIELD, packed)
    bench.expect(ErrorCode.KAFKA_STORAGE_ERROR, bench.partition.state)


def test_a_deleted_topic_is_unknown_to_everything(bench: Bench) -> None:
    bench.append(b"a")
    bench.topics.deletion.delete({"orders": TOPIC_ID})
    bench.raw.xadd(bench.partition.stream, {"value": "left over"})
    bench.expect(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, bench.partition.stream)
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        bench.logs.external.step(bench.partition)


@pytest.mark.embedded  # reads of a node that is lost have outcomes of their own
def test_a_lost_redis_is_the_outcome_of_every_append_and_raised_by_reads(bench: Bench) -> None:
    bench.redis.close()
    appends = [bench.made(b"a"), bench.made(b"a", partition=bench.partitions[1])]
    outcomes = bench.logs.append(appends)
    assert [isinstance(outcome, StorageUnavailableError) for outcome in outcomes] == [True] * 2
    assert not any(isinstance(outcome, AppendUnknownError) for outcome in outcomes)
    with pytest.raises(StorageUnavailableError):
        bench.logs.read([Read(bench.partition, 0, 5)])
    with pytest.raises(StorageUnavailableError):
        bench.logs.bounds([bench.partition])
    with pytest.raises(StorageUnavailableError):
        bench.logs.external.step(bench.partition)


@pytest.fixture(params=["record", "batch"])
def distant(redis_url: str, raw_redis: Any, request: pytest.FixtureRequest) -> Iterator[tuple[Bench, Proxy]]:
    """Give a store whose connection to Redis leads over a network that fails."""
    with proxy(redis_url) as network:
        client = Redis(network.url, timeout_ms=60_000, connect_timeout_ms=10_000)
        yield Bench(client, raw_redis, request.param), network
        client.close()


@pytest.mark.embedded  # the network that fails is before one server
def test_an_append_whose_reply_is_lost_has_no_known_outcome(distant: tuple[Bench, Proxy]) -> None:
    bench, network = distant
    bench.append(b"first", producer=7, epoch=0, sequence=0)
    network.cut_after_to_client = network.bytes_to_client + 1
    second = bench.made(b"second", producer=7, epoch=0, sequence=1)
    [lost] = bench.logs.append([second])
    assert isinstance(lost, AppendUnknownError)
    assert lost.idempotent
    [again] = bench.logs.append([second])
    assert isinstance(again, Appended)
    assert again.duplicate
    assert len(bench.read(0)) == 2


def test_a_log_has_grown_where_something_came_in_and_in_doubt(bench: Bench) -> None:
    ends = [LogPosition(partition, 0) for partition in bench.partitions]
    assert bench.logs.have_grown(ends) == [False] * 3
    offset = bench.append(b"v", partition=bench.partitions[1])
    assert bench.logs.have_grown(ends) == [False, True, False]
    end = LogPosition(bench.partitions[1], offset + 1)
    assert bench.logs.have_grown([end]) == [False]
    bench.raw.xadd(bench.partitions[1].stream, {"value": "external"})
    bench.raw.set(bench.partitions[2].stream, "no stream")
    assert bench.logs.have_grown([*ends, end]) == [False, True, True, True]
