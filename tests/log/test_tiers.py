"""Records of one log in Redis and in the lake: one log for consumers, and what a lake that fails costs whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.lake.table import Advance, Lake, LakeTopic
from korvet.log.offsets import OffsetFound, OffsetQuery
from korvet.log.remote.archived import Archived, RemoteOffsetStore
from korvet.log.trim import BackgroundTrims, Reason, RecordDeletion, Trimmed, Trimmer, TrimStore
from korvet.log.types import LogPosition
from korvet.protocol.records.batch import CONTROL_BIT
from korvet.protocol.types import SpecialTimestamp
from korvet.topics.registry import TopicSpec
from tests.log.lake import TOPIC, Tiers, tiers
from tests.support import processes
from tests.support.batches import Record, headers_of, read
from tests.support.fetching import FetchResult
from tests.support.lake_service import LakeService, lake_service
from tests.support.log_bench import code_of

pytestmark = pytest.mark.slow

FORMATS: tuple[Literal["record", "batch"], ...] = ("record", "batch")
BATCHES, PER_BATCH = 30, 10


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeService]:
    """Run one process that reads the lake, in which each test has a table of its own."""
    with lake_service(tmp_path_factory.mktemp("lake"), tmp_path_factory.mktemp("socket")) as running:
        yield running


@pytest.fixture(params=FORMATS)
def two(request: pytest.FixtureRequest, redis_url: str, reader: LakeService) -> Iterator[Tiers]:
    """Make a log of 300 records with rising times, of which 200 are archived and 150 left in Redis."""
    with tiers(redis_url, reader, request.param) as made:
        fill(made)
        made.archive(offset_of(made, 200))
        made.trim(offset_of(made, 150))
        yield made


def fill(made: Tiers) -> None:
    for number in range(BATCHES):
        first = number * PER_BATCH
        records = [Record(b"value %d" % at, b"key", 1000 + at) for at in range(first, first + PER_BATCH)]
        made.worker.append(TOPIC, *records)


_offsets: dict[str, list[int]] = {}


def offset_of(made: Tiers, number: int) -> int:
    """Return the offset of a record by its number, and for their count the end of the log."""
    known = _offsets.get(made.topic_id)
    if known is None:
        [result] = made.worker.fetch(made.worker.wanted(TOPIC))
        known = _offsets[made.topic_id] = [record.offset for record in read(b"".join(result.chunks))]
        known.append(known[-1] + 1)
    return known[number]


def numbers_from(made: Tiers, offset: int, bytes_max: int = 1 << 20) -> list[int]:
    """Consume from an offset to the end; returns the numbers of the records."""
    got: list[int] = []
    end = offset_of(made, BATCHES * PER_BATCH)
    while offset < end:
        [result] = made.worker.fetch(made.worker.wanted(TOPIC, offset=offset, bytes_max=bytes_max))
        assert result.error is ErrorCode.NONE
        records = [record for record in read(b"".join(result.chunks)) if record.offset >= offset]
        assert records, f"nothing at {offset}"
        got += [int((record.value or b"").split()[1]) for record in records]
        assert [record.timestamp - 1000 for record in records] == got[-len(records) :]
        offset = records[-1].offset + 1
    return got


def test_a_consumer_reads_both_tiers_without_a_seam(two: Tiers) -> None:
    for first in (0, 7, 149, 150, 151, 200, 299):
        for bytes_max in (1, 300, 1 << 20):
            expected = list(range(first, BATCHES * PER_BATCH))
            assert numbers_from(two, offset_of(two, first), bytes_max) == expected


def test_every_fetch_returns_the_bounds_of_the_whole_log(two: Tiers) -> None:
    end = offset_of(two, BATCHES * PER_BATCH)
    for first in (0, 160, 300):
        [result] = two.worker.fetch(two.worker.wanted(TOPIC, offset=offset_of(two, first)))
        assert (result.log_start, result.high_watermark) == (offset_of(two, 0), end)
    for outside in (offset_of(two, 0) - 1, end + 1):
        [result] = two.worker.fetch(two.worker.wanted(TOPIC, offset=outside))
        assert result == FetchResult(error=ErrorCode.OFFSET_OUT_OF_RANGE)


def find(made: Tiers, timestamp: int) -> OffsetFound:
    [result] = made.worker.offsets.find([OffsetQuery(made.partition, timestamp)])
    assert not isinstance(result, KafkaError)
    return result


def test_offsets_are_found_by_time_in_both_tiers(two: Tiers) -> None:
    for number in (0, 1, 149, 150, 199, 200, 299):
        result = find(two, 1000 + number)
        assert (result.offset, result.timestamp) == (offset_of(two, number), 1000 + number)
    assert find(two, 5).offset == offset_of(two, 0)
    assert find(two, 5000) == OffsetFound()
    largest = find(two, SpecialTimestamp.MAX_TIMESTAMP)
    assert (largest.offset, largest.timestamp) == (offset_of(two, 299), 1299)


def test_what_both_tiers_hold_is_found_by_time_in_redis(redis_url: str, reader: LakeService) -> None:
    with tiers(redis_url, reader, "batch") as made:
        for at in (1, 2, 3):
            made.worker.append(TOPIC, Record(b"v", timestamp=at))
        made.archive(3)
        made.trim(1)
        made.worker.redis.call("XDEL", made.partition.stream, "0-2")
        assert find(made, 2) == OffsetFound(2, 3, made.log.epochs.current(made.partition.stream))


def test_the_largest_timestamp_may_be_in_the_lake(redis_url: str, reader: LakeService) -> None:
    with tiers(redis_url, reader, "batch") as made:
        for at in (5, 9, 9, 7, 3):
            made.worker.append(TOPIC, Record(b"v", timestamp=at))
        made.archive(4)
        made.trim(2)
        assert find(made, SpecialTimestamp.MAX_TIMESTAMP) == OffsetFound(
            1, 9, made.log.epochs.current(made.partition.stream)
        )
        made.trim(4)
        assert find(made, SpecialTimestamp.MAX_TIMESTAMP) == OffsetFound(
            1, 9, made.log.epochs.current(made.partition.stream)
        )


def test_the_special_offsets_tell_the_tiers_apart(two: Tiers) -> None:
    asked = {item: find(two, item).offset for item in SpecialTimestamp}
    assert asked[SpecialTimestamp.EARLIEST] == offset_of(two, 0)
    assert asked[SpecialTimestamp.EARLIEST_LOCAL] == offset_of(two, 150)
    assert asked[SpecialTimestamp.LATEST_TIERED] == offset_of(two, 200) - 1
    assert asked[SpecialTimestamp.EARLIEST_PENDING_UPLOAD] == offset_of(two, 200)
    assert asked[SpecialTimestamp.LATEST] == offset_of(two, 300)


@pytest.mark.parametrize("number", [100, 150, 220, 300])
def test_deleted_records_are_gone_from_both_tiers(two: Tiers, number: int) -> None:
    redis, offset = two.worker.redis, offset_of(two, number)
    trims = TrimStore(redis)
    trimmer = Trimmer(two.log, trims, lambda _reason, _records: None)
    deletion = RecordDeletion(two.log, RemoteOffsetStore(redis), trimmer, BackgroundTrims())
    assert deletion.delete([LogPosition(two.partition, offset)]) == [offset]
    assert find(two, SpecialTimestamp.EARLIEST).offset == offset
    assert numbers_from(two, offset) == list(range(number, BATCHES * PER_BATCH))
    [result] = two.worker.fetch(two.worker.wanted(TOPIC, offset=offset - 1))
    assert result.error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert find(two, 5).offset == (offset if number < 300 else -1)


class _Overtaken(Trimmer):
    """Deletes after an archiver that is faster."""

    made: Tiers

    def move(self, starts: Sequence[LogPosition], reason: Reason) -> list[Trimmed | KafkaError]:
        self.made.archive(200)
        return super().move(starts, reason)


def test_what_is_archived_while_it_is_deleted_stays_deleted(redis_url: str, reader: LakeService) -> None:
    with tiers(redis_url, reader, "batch") as made:
        fill(made)
        redis = made.worker.redis
        trimmer = _Overtaken(made.log, TrimStore(redis), lambda _reason, _records: None)
        trimmer.made = made
        deletion = RecordDeletion(made.log, RemoteOffsetStore(redis), trimmer, BackgroundTrims())
        assert deletion.delete([LogPosition(made.partition, 150)]) == [150]
        assert find(made, SpecialTimestamp.EARLIEST).offset == 150
        [result] = made.worker.fetch(made.worker.wanted(TOPIC, offset=149))
        assert result.error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_gap_between_the_tiers_is_passed_over_if_what_follows_fits(
    redis_url: str, reader: LakeService
) -> None:
    with tiers(redis_url, reader, "record") as made:
        first = made.worker.append(TOPIC, Record(b"a"))
        made.archive(first + 1)
        last = made.worker.append(TOPIC, Record(b"b"))
        made.trim(last)
        [result] = made.worker.fetch(made.worker.wanted(TOPIC, offset=first + 1))
        assert [record.offset for record in read(b"".join(result.chunks))] == [last]
        made.worker.topics.create(TopicSpec(name="other", partitions=1))
        archived_first = made.worker.append("other", Record(b"a"))
        Tiers(made.worker, made.lake, "other").archive(archived_first + 1)
        Tiers(made.worker, made.lake, "other").trim(made.worker.append("other", Record(b"b")))
        after = made.worker.wanted(TOPIC, offset=first + 1, bytes_max=1)
        archived, hot = made.worker.fetch(made.worker.wanted("other", offset=archived_first), after)
        assert [record.offset for record in read(b"".join(archived.chunks))] == [archived_first]
        assert hot.chunks == []


@pytest.mark.parametrize("storage_format", FORMATS)
def test_a_consumer_reaches_the_end_of_an_archived_log_whose_last_offset_has_no_row(
    redis_url: str, reader: LakeService, storage_format: Literal["record", "batch"]
) -> None:
    with tiers(redis_url, reader, storage_format) as made:
        first = made.worker.append(TOPIC, Record(b"a"))
        made.archive(first + 1)
        # As the marker of a transaction, which is not archived.
        end = made.worker.append(TOPIC, Record(b"b")) + 1
        table = Lake(str(made.lake)).create(LakeTopic(TOPIC, made.topic_id))
        table.append([], [Advance(0, first + 1, end)])
        assert RemoteOffsetStore(made.worker.redis).mirror([Archived(made.partition, end, first)])
        made.trim(end)
        wanted = made.worker.wanted(TOPIC, offset=first + 1)
        [result] = made.worker.fetch(wanted)
        [header] = headers_of(b"".join(result.chunks))
        assert (header.base_offset, header.last_offset_delta) == (end - 1, 0)
        assert header.attributes & CONTROL_BIT
        following = made.worker.append(TOPIC, Record(b"c"))
        [result] = made.worker.fetch(wanted)
        assert [record.offset for record in read(b"".join(result.chunks))] == [following]


def test_what_redis_holds_is_served_where_all_files_expire_meanwhile(two: Tiers) -> None:
    table = Lake(str(two.lake)).open(LakeTopic(TOPIC, two.topic_id))
    assert table is not None
    # Redis is not asked again between the look at the log and that at the table.
    table.replace(table.files(), [], 1)
    [result] = two.worker.fetch(two.worker.wanted(TOPIC, offset=offset_of(two, 10)))
    assert read(b"".join(result.chunks))[0].offset == offset_of(two, 150)


def test_archived_records_that_do_not_fit_any_more_are_not_passed_over(two: Tiers) -> None:
    two.worker.topics.create(TopicSpec(name="other", partitions=1))
    other = Tiers(two.worker, two.lake, "other")
    first_offset, *_, last_offset = [two.worker.append("other", Record(b"x" * 100)) for _ in range(3)]
    other.archive(last_offset)
    other.trim(last_offset)
    cold = two.worker.wanted(TOPIC, offset=offset_of(two, 0), bytes_max=500)
    result, without = two.worker.fetch(cold, two.worker.wanted("other", offset=first_offset, bytes_max=50))
    assert read(b"".join(result.chunks))[0].offset == offset_of(two, 0)
    assert (without.error, without.chunks) == (ErrorCode.NONE, [])
    [result] = two.worker.fetch(two.worker.wanted("other", offset=first_offset, bytes_max=50))
    assert read(b"".join(result.chunks))[0].offset == first_offset


def test_what_is_archived_and_still_in_redis_is_read_there(redis_url: str, reader: LakeService) -> None:
    with tiers(redis_url, reader, "batch") as made:
        fill(made)
        made.archive(200).unlink()
        assert numbers_from(made, 0) == list(range(300))


def test_a_file_that_is_gone_costs_its_partition_only(two: Tiers) -> None:
    for file in two.table.rglob("*.parquet"):
        file.unlink()
    two.worker.topics.create(TopicSpec(name="other", partitions=1))
    two.worker.append("other", b"hot")
    requests = (two.worker.wanted(TOPIC, offset=offset_of(two, 0)), two.worker.wanted("other"))
    error = ErrorCode.NONE
    while error is ErrorCode.NONE:
        # The lake is not waited for where there is something to answer with.
        cold, hot = two.worker.fetch(*requests)
        error = cold.error
        bounds = (-1, -1) if error else (offset_of(two, 0), offset_of(two, 300))
        assert (cold.log_start, cold.high_watermark) == bounds
        assert [record.value for record in read(b"".join(hot.chunks))] == [b"hot"]
    assert error is ErrorCode.KAFKA_STORAGE_ERROR
    assert numbers_from(two, offset_of(two, 150)) == list(range(150, 300))
    [answer] = two.worker.offsets.find([OffsetQuery(two.partition, 1000)])
    assert code_of(answer) == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_lake_that_says_nothing_costs_those_who_need_it_only(redis_url: str, reader: LakeService) -> None:
    with tiers(redis_url, reader, "batch", wait_ms=50) as made:
        fill(made)
        made.archive(200)
        made.trim(150)
        made.worker.topics.create(TopicSpec(name="other", partitions=1))
        made.worker.append("other", b"hot")
        cold_wish, hot_wish = made.worker.wanted(TOPIC), made.worker.wanted("other")
        with processes.stopped(reader.process.pid):
            cold, hot = made.worker.fetch(cold_wish, hot_wish)
            assert (cold.error, cold.chunks) == (ErrorCode.NONE, [])
            assert [record.value for record in read(b"".join(hot.chunks))] == [b"hot"]
            [alone] = made.worker.fetch(cold_wish)
            assert (alone.error, alone.chunks) == (ErrorCode.NONE, [])
        got: list[int] = []
        while not got:
            [result] = made.worker.fetch(cold_wish)
            got = [record.offset for record in read(b"".join(result.chunks))]
        assert got[0] == 0


def test_one_archived_record_is_served_whatever_a_fetch_allows(two: Tiers) -> None:
    first = offset_of(two, 0)
    [result] = two.worker.fetch(two.worker.wanted(TOPIC, offset=first, bytes_max=0), bytes_max=0)
    assert [record.offset for record in read(b"".join(result.chunks))] == [first]


def test_a_re_created_topic_inherits_nothing(two: Tiers) -> None:
    before = two.table
    two.worker.topics.delete([two.worker.topics.get(TOPIC)])
    two.worker.topics.create(TopicSpec(name=TOPIC, partitions=1, configs={"storage.format": "batch"}))
    assert find(two, SpecialTimestamp.EARLIEST).offset == 0
    two.worker.append(TOPIC, b"new")
    [result] = two.worker.fetch(two.worker.wanted(TOPIC))
    assert [(record.offset, record.value) for record in read(b"".join(result.chunks))] == [(0, b"new")]
    two.archive(1)
    assert before != two.table
    assert before.exists()
    assert two.table.exists()
