"""korvet/spark/source.py: topics as DataFrames and streams, and filters as bounds."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.functions import col
from pyspark.sql.streaming.datasource import ReadAllAvailable

from korvet.lake.compaction import compact
from korvet.lake.scan import ScanPart
from korvet.lake.schema import SCHEMA
from korvet.lake.source import SourceTopic
from korvet.protocol.records.record import StoredRecord
from korvet.spark.source import COLUMNS, FilterBounds, KorvetDataSource, filter_bounds
from tests.lake.archives import committed_in_the_past
from tests.support.archives import FORMATS, Format, Topics, all_kinds, archive, trim
from tests.support.batches import Record


def options(topics: Topics, **more: str) -> dict[str, str]:
    return {"redis.url": topics.source.redis_url, "lake": topics.lake, "topic": "orders"} | more


def read(spark: SparkSession, topics: Topics, **more: str) -> DataFrame:
    return spark.read.format("korvet").options(**options(topics, **more)).load()


def in_three_parts(topics: Topics, topic: SourceTopic) -> None:
    """Produce records in the lake only, in both tiers, and in Redis only."""
    all_kinds(topics, topic)
    archive(topics)
    for partition in topic.partitions:
        trim(topics, partition)
    all_kinds(topics, topic)
    archive(topics)
    all_kinds(topics, topic)


def records(frame: DataFrame, partition: int) -> list[StoredRecord]:
    """Return the rows of a partition in the order in which Spark has them, as the tuples that were produced."""
    result = []
    for row in (
        frame.where(col("partition") == partition).selectExpr("*", "unix_micros(timestamp) us").collect()
    ):
        rest = -1 if row.timestamp_ms is None else row.timestamp_ms
        result.append(
            (
                row.offset,
                rest if row.us is None else row.us // 1000,
                None if row.key is None else bytes(row.key),
                None if row.value is None else bytes(row.value),
                [(one.key, None if one.value is None else bytes(one.value)) for one in row.headers or []],
            )
        )
    return result


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


SPARKS_KAFKA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " timestampType int, headers array<struct<key:string,value:binary>>"
)
"""The columns of Spark's Kafka source with includeHeaders."""


def test_the_columns_are_those_of_sparks_kafka_source_and_then_the_others_of_the_lake() -> None:
    theirs = SPARKS_KAFKA.split(", ")
    assert [f"{field.name} {field.dataType.simpleString()}" for field in COLUMNS][: len(theirs)] == theirs
    assert set(COLUMNS.names) - set(SCHEMA.names) == {"topic", "timestampType"}
    assert set(SCHEMA.names) <= set(COLUMNS.names)


def test_the_column_of_the_type_of_timestamps_has_its_former_name_too(
    spark: SparkSession, topics: Topics
) -> None:
    for number, (name, timestamp) in enumerate((("created", None), ("appended", 1_700_000_000_000))):
        topic = topics.make(name, "batch", number=number)
        topics.produce(topic.partitions[0], b"1", timestamp=timestamp)
    frame = read(spark, topics, topic="", subscribe="created, appended")
    result = {(row.topic, row.timestampType, row.timestamp_type) for row in frame.collect()}
    assert result == {("created", 0, 0), ("appended", 1, 1)}


def in_topics(frame: DataFrame) -> list[tuple[str, int, int]]:
    return sorted((row.topic, row.partition, row.offset) for row in frame.select(*WHERE).collect())


WHERE = ("topic", "partition", "offset")


def test_topics_are_chosen_by_names_by_a_pattern_or_by_partitions(
    spark: SparkSession, topics: Topics
) -> None:
    for number, (name, partitions) in enumerate((("orders", 2), ("bills", 3), ("clicks", 1))):
        topic = topics.make(name, "batch", partitions=partitions, number=number)
        for partition in topic.partitions:
            topics.produce(partition, b"1", b"2")
        if name == "bills":
            archive(topics)

    def result(**chosen: str) -> list[tuple[str, int, int]]:
        return in_topics(read(spark, topics, topic="", **chosen))

    def whole(name: str, *partitions: int) -> list[tuple[str, int, int]]:
        return [(name, at, offset) for at in partitions for offset in (0, 1)]

    assert result(subscribe="orders,clicks") == whole("clicks", 0) + whole("orders", 0, 1)
    assert result(subscribePattern=".*ls|ord.*") == whole("bills", 0, 1, 2) + whole("orders", 0, 1)
    # The whole name has to match.
    assert result(subscribePattern="order") == []
    assigned = '{"bills": [2, 0], "clicks": [0]}'
    assert result(assign=assigned) == whole("bills", 0, 2) + whole("clicks", 0)
    two = '{"bills": {"0": 1, "2": -1}, "clicks": {"0": -2}}'
    assert result(assign=assigned, startingOffsets=two) == [("bills", 0, 1), *whole("clicks", 0)]
    frame = read(spark, topics, topic="", subscribePattern=".*")
    assert in_topics(frame.where("topic = 'bills' and partition > 0")) == whole("bills", 1, 2)
    with pytest.raises(PySparkException, match="bills has no partition 3"):
        result(assign='{"bills": [0, 3]}')
    with pytest.raises(PySparkException, match="there is no topic nothing"):
        result(subscribe="orders,nothing")
    with pytest.raises(PySparkException, match="given for all partitions: orders-1 is missing"):
        result(subscribe="orders", startingOffsets='{"orders": {"0": 1}}')


def test_each_partition_begins_and_ends_at_a_time_of_its_own(spark: SparkSession, topics: Topics) -> None:
    topic = topics.make("orders", "batch", partitions=2)
    for partition in topic.partitions:
        topics.produce(partition, *(Record(b"v", None, 1000 + at) for at in range(4)))
    begin, end = '{"orders": {"0": 1001, "1": 1003}}', '{"orders": {"0": 1003, "1": 9999}}'
    result = read(spark, topics, startingOffsetsByTimestamp=begin, endingOffsetsByTimestamp=end)
    assert in_topics(result) == [("orders", 0, 1), ("orders", 0, 2), ("orders", 1, 3)]
    late = '{"orders": {"0": 1001, "1": 1004}}'
    with pytest.raises(PySparkException, match="orders-1 has no record from timestamp 1004 on"):
        read(spark, topics, startingOffsetsByTimestamp=late).count()
    after_end = {"startingOffsetsByTimestampStrategy": "latest"}
    result = read(spark, topics, startingOffsetsByTimestamp=late, **after_end)
    assert in_topics(result) == [("orders", 0, 1), ("orders", 0, 2), ("orders", 0, 3)]
    assert in_topics(read(spark, topics, startingTimestamp="1004", **after_end)) == []


def test_a_batch_reads_tables_as_they_were(spark: SparkSession, topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    second = datetime.now(UTC)
    for at in range(3):
        topics.produce(topic.partitions[0], *(Record(b"v", None, 1000 + 2 * at + item) for item in range(2)))
        archive(topics)
        if at == 1:
            second = committed_in_the_past(topics.source.lake.uri(topic.of))
    topics.produce(topic.partitions[0], b"of Redis only")
    table = topics.source.lake.open(topic.of)
    assert table is not None
    assert offsets(read(spark, topics)) == list(range(7))
    assert offsets(read(spark, topics, versionAsOf=str(table.version))) == list(range(6))
    for as_of in ({"versionAsOf": str(table.version - 1)}, {"timestampAsOf": str(second)}):
        assert offsets(read(spark, topics, **as_of)) == list(range(4))
        assert offsets(read(spark, topics, startingTimestamp="1003", **as_of)) == [3]
        assert offsets(read(spark, topics, **as_of).where("offset > 2")) == [3]
    with pytest.raises(PySparkException, match="nothing of orders was archived yet as of 0"):
        read(spark, topics, versionAsOf="0").count()
    [before, *_] = table.files()
    for item in compact(topics.source.lake, topic.of):
        assert item.done
    assert offsets(read(spark, topics, versionAsOf=str(table.version))) == list(range(6))
    # What has left the table is vacuumed a day later.
    (Path(topics.lake) / "orders" / topic.id / before.path).unlink()
    assert offsets(read(spark, topics)) == list(range(7))
    with pytest.raises(PySparkException, match=rf"in version {table.version}: what has left the table"):
        read(spark, topics, versionAsOf=str(table.version)).count()
    with pytest.raises(ValueError, match="versionAsOf and timestampAsOf are for batches"):
        KorvetDataSource(options(topics, versionAsOf="1")).streamReader(COLUMNS)


@pytest.mark.parametrize("storage_format", FORMATS)
def test_a_query_has_as_many_tasks_as_it_wants(
    spark: SparkSession, topics: Topics, storage_format: Format
) -> None:
    topic = topics.make("orders", storage_format, partitions=2)
    in_three_parts(topics, topic)
    expected = in_topics(read(spark, topics))
    frame = read(spark, topics, minPartitions="17")
    assert frame.rdd.getNumPartitions() == 17
    assert in_topics(frame) == expected
    assert read(spark, topics, minPartitions="1").rdd.getNumPartitions() == 4
    topics.make("empty", "batch", number=1)
    assert read(spark, topics, topic="empty", minPartitions="3").count() == 0


@pytest.mark.parametrize("storage_format", FORMATS)
def test_a_batch_has_every_record_of_both_tiers_once_and_in_order(
    spark: SparkSession, topics: Topics, storage_format: Format
) -> None:
    topic = topics.make("orders", storage_format, partitions=2)
    in_three_parts(topics, topic)
    frame = read(spark, topics)
    assert frame.count() == 2 * 3 * 1520
    for partition in topic.partitions:
        produced = topics.produced[topic.id, partition.index]
        assert records(frame, partition.index) == produced
    named = (
        spark.read.format("korvet").options(**options(topics)).schema("offset BIGINT, value BINARY").load()
    )
    assert named.columns == ["offset", "value"]
    assert (
        named.where("offset = 3 and value is null").count()
        == read(spark, topics).where("offset = 3 and value is null").count()
    )


@pytest.mark.parametrize("storage_format", FORMATS)
def test_one_tier_is_read_alone(spark: SparkSession, topics: Topics, storage_format: Format) -> None:
    topic = topics.make("orders", storage_format)
    [partition] = topic.partitions
    in_three_parts(topics, topic)
    everything = topics.produced[topic.id, 0]
    bounds = topics.bounds(partition)
    assert bounds.remote is not None
    tiers = {
        "hot": [item for item in everything if item[0] >= bounds.remote.end],
        "archived": [item for item in everything if item[0] < bounds.archived],
        "both": everything,
    }
    for name, wanted in tiers.items():
        assert records(read(spark, topics, tiers=name), 0) == wanted
        # A stream ends at the same place.
        reader = KorvetDataSource(options(topics, tiers=name, startingOffsets="earliest")).streamReader(
            COLUMNS
        )
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert end["topics"]["orders"]["offsets"]["0"] == wanted[-1][0] + 1
    assert len(tiers["hot"]) < len(everything) > len(tiers["archived"])


def test_a_batch_has_the_offsets_and_times_that_are_asked_for(spark: SparkSession, topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    [partition] = topic.partitions
    for at in range(4):
        topics.produce(partition, *(Record(b"v", None, 1_700_000_000_000 + at) for _ in range(3)))
        if at < 2:
            archive(topics)
    within = read(
        spark, topics, startingOffsets='{"orders": {"0": 2}}', endingOffsets='{"orders": {"0": 10}}'
    )
    assert offsets(within) == list(range(2, 10))
    timed = read(spark, topics, startingTimestamp="1700000000001", endingTimestamp="1700000000003")
    assert offsets(timed) == list(range(3, 9))
    assert offsets(read(spark, topics).where("offset > 4 and offset < 7")) == [5, 6]
    assert offsets(read(spark, topics).where("timestamp = timestamp_millis(1700000000002)")) == [6, 7, 8]
    assert offsets(read(spark, topics).where("partition = 1")) == []
    # Two files, and what Redis alone has: Spark's tasks are fewer where it has pushed a filter down.
    for filters, tasks in (("offset >= 0", 3), ("offset >= 4", 2)):
        small = read(spark, topics, maxRecordsPerPartition="3", pushFilters="true")
        assert small.where(filters).rdd.getNumPartitions() == tasks


def test_a_frame_that_is_used_twice_has_the_rows_of_each_of_its_filters(
    spark: SparkSession, topics: Topics
) -> None:
    [partition] = topics.make("orders", "batch").partitions
    for value in (b"1", b"2", b"3"):
        topics.produce(partition, value)
    frame = read(spark, topics)
    assert offsets(frame.where("offset < 1")) == [0]
    assert offsets(frame) == [0, 1, 2]
    assert offsets(frame.where("offset < 1").union(frame.where("offset > 1"))) == [0, 2]


def test_filters_bound_what_is_read_by_a_frame_that_asks_for_it(spark: SparkSession, topics: Topics) -> None:
    for partition in topics.make("orders", "batch", partitions=3).partitions:
        topics.produce(partition, b"1", b"2")
    for more, tasks in (({"pushFilters": "true"}, 1), ({}, 3)):
        frame = read(spark, topics, **more).where("partition = 1 and offset > 0")
        assert frame.rdd.getNumPartitions() == tasks
        assert in_topics(frame) == [("orders", 1, 1)]


def test_a_topic_without_a_remote_tier_is_read_without_a_lake(spark: SparkSession, topics: Topics) -> None:
    topic = topics.make("orders", "record", remote_storage_enable="false")
    topics.produce(topic.partitions[0], *(b"%d" % at for at in range(10)))
    frame = spark.read.format("korvet").options(**options(topics)).option("lake", "").load()
    assert records(frame, 0) == topics.produced[topic.id, 0]


def test_filters_leave_fewer_files_and_ranges_to_read(topics: Topics) -> None:
    topic = topics.make("orders", "batch", partitions=2)
    for at in range(4):
        for partition in topic.partitions:
            topics.produce(partition, *(Record(b"v", None, 1_700_000_000_000 + at * 1000) for _ in range(2)))
        if at < 3:
            archive(topics)

    def parts(*filters: Filter) -> list[tuple[int, int, int]]:
        source = KorvetDataSource(options(topics, maxRecordsPerPartition="2", pushFilters="true"))
        reader = source.reader(COLUMNS)
        assert list(reader.pushFilters(list(filters))) == list(filters)
        results = [item.value for item in reader.partitions()]
        return [
            (result.partition.index, result.first, result.end)
            for result in results
            if isinstance(result, ScanPart)
        ]

    assert len(parts()) == 8
    assert parts(EqualTo(("partition",), 1)) == [(1, 0, 2), (1, 2, 4), (1, 4, 6), (1, 6, 8)]
    assert parts(EqualTo(("partition",), 0), GreaterThanOrEqual(("offset",), 5)) == [(0, 5, 6), (0, 6, 8)]
    assert parts(EqualTo(("offset",), 2)) == [(0, 2, 3), (1, 2, 3)]
    second = topics_time(1)
    cold = parts(GreaterThanOrEqual(("timestamp",), second), LessThan(("timestamp",), topics_time(2)))
    # Of what is in Redis only, nobody knows the smallest timestamp.
    assert [item for item in cold if item[0] == 0] == [(0, 2, 4), (0, 4, 6), (0, 6, 8)]
    assert parts(GreaterThanOrEqual(("timestamp",), topics_time(4))) == []


def topics_time(at: int) -> datetime:
    return datetime.fromtimestamp(1_700_000_000 + at, UTC)


def start(frame: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    """Run a stream over what there is, on from its checkpoint, into a directory."""
    query = (
        frame.select("partition", "offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
    counts = [progress["numInputRows"] for progress in query.recentProgress]
    assert counts
    assert max(counts) <= 4000


@pytest.mark.parametrize("storage_format", FORMATS)
def test_a_stream_that_is_started_again_has_read_each_record_once(
    spark: SparkSession, topics: Topics, tmp_path: Path, storage_format: Format
) -> None:
    topic = topics.make("orders", storage_format, partitions=2)
    in_three_parts(topics, topic)
    frame = (
        spark.readStream.format("korvet")
        .options(**options(topics, startingOffsets="earliest", maxRecordsPerTrigger="4000"))
        .load()
    )
    for _ in range(2):
        start(frame, spark, tmp_path)
        result = Counter(
            (row.partition, row.offset) for row in spark.read.parquet(str(tmp_path / "out")).collect()
        )
        assert result == Counter(
            (partition.index, record[0])
            for partition in topic.partitions
            for record in topics.produced[topic.id, partition.index]
        )
        # What was hot when the checkpoint was written is cold when the stream goes on.
        for partition in topic.partitions:
            topics.produce(partition, *(b"%d" % at for at in range(700)))
        archive(topics)
        for partition in topic.partitions:
            trim(topics, partition)


def test_a_wrong_query_says_what_is_wrong_with_it(spark: SparkSession, topics: Topics) -> None:
    topics.make("orders", "batch")
    with pytest.raises(PySparkException, match="there is no topic others"):
        read(spark, topics, topic="others").count()
    with pytest.raises(PySparkException, match="there is no column value of type string"):
        spark.read.format("korvet").options(**options(topics)).schema("value STRING").load().count()


SECOND = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([], FilterBounds()),
        ([EqualTo(("partition",), 3)], FilterBounds(partition=(3, 3))),
        ([In(("partition",), (5, 2, None))], FilterBounds(partition=(2, 5))),
        ([GreaterThan(("offset",), 7), LessThanOrEqual(("offset",), 9)], FilterBounds(offset=(7, 9))),
        ([GreaterThanOrEqual(("offset",), 2**60 + 1)], FilterBounds(offset=(2**60 + 1, math.inf))),
        ([LessThan(("timestamp",), SECOND)], FilterBounds(timestamp=(-math.inf, 1_000_000))),
        ([EqualTo(("timestamp",), SECOND)], FilterBounds(timestamp=(1_000_000, 1_000_000))),
        # What is not understood bounds nothing.
        ([Not(EqualTo(("partition",), 3)), IsNotNull(("offset",))], FilterBounds()),
        ([EqualTo(("topic",), "a")], FilterBounds(topics=frozenset({"a"}))),
        ([In(("topic",), ("a", "b")), EqualTo(("topic",), "b")], FilterBounds(topics=frozenset({"b"}))),
        ([EqualTo(("value",), b"1"), EqualTo(("headers", "key"), "a")], FilterBounds()),
        ([EqualTo(("timestamp",), datetime(1970, 1, 1))], FilterBounds()),  # noqa: DTZ001 - a time without a zone
        ([In(("offset",), (1, "x"))], FilterBounds()),
        ([EqualTo(("partition",), None)], FilterBounds()),
    ],
)
def test_filters_become_bounds_that_are_never_narrower(filters: list[Filter], wanted: FilterBounds) -> None:
    assert filter_bounds(filters) == wanted


READER = """
import sys
from korvet.spark.source import COLUMNS, KorvetDataSource

reader = KorvetDataSource({"redis.url": sys.argv[1], "topic": "orders"}).reader(COLUMNS)
print(sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part)))
print("pandas" in sys.modules)
"""


def test_a_worker_that_reads_imports_no_pandas_which_costs_more_than_its_records(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    all_kinds(topics, topic)
    result = subprocess.run(
        [sys.executable, "-c", READER, topics.source.redis_url], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"{len(topics.produced[topic.id, 0])}\nFalse\n"
