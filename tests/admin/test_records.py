"""Records through the admin client: slices of logs, with any contents, and the last N of a log."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from korvet.admin.client import AdminClient
from korvet.admin.errors import (
    AnswerTooLargeError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    UnreadableBatchError,
)
from korvet.admin.records import _batches, offset_of_last
from korvet.admin.types import LogRecord, LogSlice, TopicPartition, settled
from korvet.errors import KafkaError
from korvet.protocol.records.compression import Codec
from tests.support.batches import LINKED, MALFORMED, Record, batch
from tests.support.domain import domain
from tests.support.in_process import InProcessBroker
from tests.support.topic_client import Client


def piece(admin: AdminClient, topic: str, offset: int = 0, partition: int = 0, **limits: int) -> LogSlice:
    place = TopicPartition(topic, partition)
    return settled(admin.records.read({place: offset}, **limits))[place]


def test_a_record_has_its_offset_time_key_value_and_headers(
    admin: AdminClient, client: Client, topic: str
) -> None:
    headers = [("a", b"\xff"), ("a", None), ("", b"")]
    client.append(topic, Record(b"value", b"key", 17, headers), Record(None, None, 18))
    result = piece(admin, topic)
    assert result.records == [LogRecord(0, 17, b"key", b"value", headers), LogRecord(1, 18, None, None, [])]
    assert (result.next_offset, result.start, result.end) == (2, 0, 2)


def test_a_piece_ends_where_it_has_enough_and_the_next_goes_on(
    admin: AdminClient, client: Client, topic: str
) -> None:
    for number in range(4):
        client.append(topic, b"%d" % number * 1000)
    values, offset = [], 0
    while offset < 4:
        result = piece(admin, topic, offset, bytes_max=1500)
        assert len(result.records) == 1
        values += [record.value for record in result.records]
        offset = result.next_offset
    assert values == [b"%d" % number * 1000 for number in range(4)]


def test_each_partition_has_its_outcome(admin: AdminClient, client: Client, name: str) -> None:
    client.create(name, partitions=2)
    client.append(name, b"one", partition=1)
    zero, one, two, beyond = *(TopicPartition(name, index) for index in range(3)), TopicPartition("no", 0)
    outcomes = admin.records.read({zero: 5, one: 0, two: 0, beyond: 0})
    assert isinstance(outcomes[zero], OffsetOutOfRangeError)
    assert isinstance(result := outcomes[one], LogSlice)
    assert [record.value for record in result.records] == [b"one"]
    assert isinstance(outcomes[two], UnknownTopicOrPartitionError)
    assert isinstance(outcomes[beyond], UnknownTopicOrPartitionError)


def test_a_batch_that_grows_beyond_the_limit_is_not_decompressed_and_what_lies_before_it_is_a_piece(
    admin: AdminClient, client: Client, topic: str
) -> None:
    client.append(topic, b"small")
    assert client.produce(topic, batch(b"\0" * 100_000, codec=Codec.gzip)).error_code == 0
    result = piece(admin, topic, decompressed_bytes_max=99_999)
    assert ([record.value for record in result.records], result.next_offset) == ([b"small"], 1)
    with pytest.raises(AnswerTooLargeError, match=f"partition {topic}:0, offsets 1 to 1: ") as caught:
        piece(admin, topic, 1, decompressed_bytes_max=99_999)
    assert caught.value.next_offset == 2
    assert len(piece(admin, topic, decompressed_bytes_max=200_000).records) == 2


def test_batches_that_grow_together_beyond_the_limit_come_piece_by_piece(
    admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    for partition in (0, 1):
        for _ in range(4):
            grows = batch(b"\0" * 100_000, codec=Codec.gzip)
            assert client.produce(name, grows, partition=partition).error_code == 0
    both = [TopicPartition(name, 0), TopicPartition(name, 1)]
    offsets = dict.fromkeys(both, 0)
    pieces = 0
    while min(offsets.values()) < 4:
        result = settled(admin.records.read(offsets, decompressed_bytes_max=200_000))
        assert sum(len(value.records) for value in result.values()) == 2
        offsets = {place: item.next_offset for place, item in result.items()}
        pieces += 1
    assert pieces == 4


@pytest.mark.parametrize("codec", list(Codec))
def test_a_slice_begins_at_its_offset_and_has_no_more_records_than_its_maximum(
    admin: AdminClient, client: Client, topic: str, codec: Codec
) -> None:
    for values in ((b"0", b"1", b"2"), (b"3", b"4", b"5")):
        assert client.produce(topic, batch(*values, codec=codec)).error_code == 0
    result = piece(admin, topic, 1, records_max=3)
    assert ([record.value for record in result.records], result.next_offset) == ([b"1", b"2", b"3"], 4)
    result = piece(admin, topic, 1, records_max=2)
    assert ([record.value for record in result.records], result.next_offset) == ([b"1", b"2"], 3)
    assert piece(admin, topic, 6).records == []


def test_a_batch_that_cannot_be_read_is_an_error_with_the_offset_after_it(
    broker: InProcessBroker, admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, storage_format="batch")
    key, offset, end, values = TopicPartition(name, 0), 0, 0, []
    with domain(broker.redis_url) as here:
        for kind in sorted(MALFORMED.keys() - {LINKED}):
            base = here.put(name, MALFORMED[kind])
            end = here.append(name, kind.encode())
            error = admin.records.read({key: base}, decompressed_bytes_max=16_000_000)[key]
            assert isinstance(error, UnreadableBatchError | AnswerTooLargeError), kind
            assert error.next_offset == end
            assert admin.records.offset_of_last(key, 0, end + 1, 1) == end
            values.append(kind.encode())
    contents = []
    while offset <= end:
        slice_ = admin.records.read({key: offset}, decompressed_bytes_max=16_000_000)[key]
        contents += [record.value for record in slice_.records] if isinstance(slice_, LogSlice) else []
        assert slice_.next_offset is not None
        assert slice_.next_offset > offset
        offset = slice_.next_offset
    assert contents == values


def test_an_answer_above_the_limit_is_not_read_and_the_client_goes_on(
    broker: InProcessBroker, client: Client, topic: str
) -> None:
    client.append(topic, b"x" * 20_000)
    client.append(topic, b"small")
    with AdminClient(broker.bootstrap, answer_bytes_max=10_000) as admin:
        with pytest.raises(AnswerTooLargeError, match="more than 10000"):
            piece(admin, topic)
        assert [record.value for record in piece(admin, topic, 1).records] == [b"small"]


def test_a_piece_that_is_cut_off_ends_before_the_cut() -> None:
    whole = batch(b"one")
    assert len(list(_batches(whole + whole[:-1]))) == 1
    assert list(_batches(whole[:40])) == []


@pytest.mark.parametrize("damaged", [b"\0" * 61, batch(b"one")[:16] + b"\1" + batch(b"one")[17:]])
def test_what_is_no_batch_is_no_records(damaged: bytes) -> None:
    with pytest.raises(KafkaError, match="a batch of magic"):
        list(_batches(damaged))


class Log:
    """A log in memory that counts what is read of it."""

    def __init__(self, offsets: list[int]) -> None:
        self.offsets = offsets
        self.read = self.ranges = 0

    def between(self, begin: int, end: int, count_max: int) -> list[int] | None:
        assert begin < end
        result = self.offsets[bisect_left(self.offsets, begin) : bisect_left(self.offsets, end)]
        self.read += min(len(result), count_max + 1)
        self.ranges += 1
        return None if len(result) > count_max else result


# Bursts of records, each at a distance from the one before.
BURSTS = st.lists(st.tuples(st.integers(0, 2**58), st.integers(1, 50)), max_size=20)


@given(bursts=BURSTS, gap=st.integers(0, 2**20), count=st.integers(1, 200))
@example(bursts=[(0, 50)] * 20, gap=0, count=1)
@example(bursts=[], gap=0, count=1)
def test_the_last_records_begin_where_counting_says(
    bursts: list[tuple[int, int]], gap: int, count: int
) -> None:
    offsets: list[int] = []
    for distance, size in bursts:
        first = (offsets[-1] + 1 if offsets else 0) + distance
        offsets += range(first, first + size)
    begin, end = (offsets[0] if offsets else 0), (offsets[-1] + 1 if offsets else 0) + gap
    log = Log(offsets)
    result = offset_of_last(begin, end, count, log.between)
    if count <= len(offsets):
        assert result == offsets[-count]
    else:
        assert result == begin
    assert log.ranges <= 200


def test_dense_offsets_take_one_range() -> None:
    log = Log(list(range(1_000_000)))
    assert offset_of_last(0, 1_000_000, 50, log.between) == 999_950
    assert log.ranges == 1


def test_an_empty_log_begins_where_it_ends() -> None:
    assert offset_of_last(7, 7, 50, Log([]).between) == 7


def test_a_burst_is_not_read_as_a_whole() -> None:
    at = 1_795_000_000_000 << 10
    recent = Log([at + number for number in range(200_000)])
    assert offset_of_last(at, at + 200_000, 50, recent.between) == at + 199_950
    old = Log([*range(1_000_000), 2**50])
    assert offset_of_last(0, 2**50 + 1, 10, old.between) == 999_991
    assert recent.read + old.read < 60_000
    assert recent.ranges + old.ranges < 100
