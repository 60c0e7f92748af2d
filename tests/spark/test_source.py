"""korvet/spark/source.py: topics as DataFrames and streams, and filters as bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
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
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from korvet.errors import ConfigError, KafkaError
from korvet.lake.scan import ScanPart, offset_after
from korvet.lake.schema import SCHEMA
from korvet.lake.source import SourceTopic
from korvet.lake.table import Lake
from korvet.protocol.records.record import StoredRecord
from korvet.spark import source
from korvet.spark.options import EARLIEST, LATEST, ReadEdge, read_options
from korvet.spark.source import COLUMNS, FilterBounds, KorvetDataSource, filter_bounds, register
from tests.support import redis_servers
from tests.support.archives import FORMATS, Format, Topics, all_kinds, topics_in
from tests.support.batches import Record
from tests.support.processes import wait_until
from tests.support.trimming import archive, trim


@pytest.fixture
def topics(spark: SparkSession, redis_url: str, tmp_path: Path) -> Iterator[Topics]:
    register(spark)
    with topics_in(redis_url, tmp_path / "lake") as found:
        yield found


def options(topics: Topics, **more: str) -> dict[str, str]:
    return {"redis.url": topics.source.redis_url, "lake": topics.lake, "topic": "orders"} | more


def read(spark: SparkSession, topics: Topics, **more: str) -> DataFrame:
    return spark.read.format("korvet").options(**options(topics, **more)).load()


def in_three_parts(topics: Topics, topic: SourceTopic) -> None:
    """Produce what is in the lake only, what is in both tiers, and what is in Redis only."""
    all_kinds(topics, topic)
    archive(topics)
    for partition in topic.partitions:
        trim(topics, partition)
    all_kinds(topics, topic)
    archive(topics)
    all_kinds(topics, topic)


def records(frame: DataFrame, partition: int) -> list[StoredRecord]:
    """Return the rows of a partition in the order in which Spark has them, as the tuples that were produced."""
    found = []
    for row in (
        frame.where(col("partition") == partition).selectExpr("*", "unix_micros(timestamp) us").collect()
    ):
        rest = -1 if row.timestamp_ms is None else row.timestamp_ms
        found.append(
            (
                row.offset,
                rest if row.us is None else row.us // 1000,
                None if row.key is None else bytes(row.key),
                None if row.value is None else bytes(row.value),
                [(one.key, None if one.value is None else bytes(one.value)) for one in row.headers or []],
            )
        )
    return found


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def test_the_columns_are_those_of_the_lake() -> None:
    assert COLUMNS.names == SCHEMA.names


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
    assert offsets(read(spark, topics, startingTimestamp="1700000000004")) == []
    assert offsets(read(spark, topics).where("offset > 4 and offset < 7")) == [5, 6]
    assert offsets(read(spark, topics).where("timestamp = timestamp_millis(1700000000002)")) == [6, 7, 8]
    assert offsets(read(spark, topics).where("partition = 1")) == []
    small = read(spark, topics, maxRecordsPerPartition="3")
    # Two files, and what Redis alone has: Spark's tasks are fewer where it has pushed a filter down.
    assert small.rdd.getNumPartitions() == 3
    assert small.where("offset >= 4").rdd.getNumPartitions() == 2


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
        source = KorvetDataSource(options(topics, maxRecordsPerPartition="2"))
        reader = source.reader(COLUMNS)
        assert list(reader.pushFilters(list(filters))) == list(filters)
        found = [each.value for each in reader.partitions()]
        return [(each.partition.index, each.first, each.end) for each in found if isinstance(each, ScanPart)]

    assert len(parts()) == 8
    assert parts(EqualTo(("partition",), 1)) == [(1, 0, 2), (1, 2, 4), (1, 4, 6), (1, 6, 8)]
    assert parts(EqualTo(("partition",), 0), GreaterThanOrEqual(("offset",), 5)) == [(0, 5, 6), (0, 6, 8)]
    assert parts(EqualTo(("offset",), 2)) == [(0, 2, 3), (1, 2, 3)]
    second = topics_time(1)
    cold = parts(GreaterThanOrEqual(("timestamp",), second), LessThan(("timestamp",), topics_time(2)))
    # Of what is in Redis only, nobody knows the smallest timestamp.
    assert [each for each in cold if each[0] == 0] == [(0, 2, 4), (0, 4, 6), (0, 6, 8)]
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
    counts = [each["numInputRows"] for each in query.recentProgress]
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
        found = Counter(
            (row.partition, row.offset) for row in spark.read.parquet(str(tmp_path / "out")).collect()
        )
        assert found == Counter(
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


def test_what_a_stream_cannot_go_on_with_is_one_clear_error(topics: Topics) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], *(b"1" for _ in range(10)))
    reader = KorvetDataSource(options(topics, startingOffsets="earliest")).streamReader(COLUMNS)
    began = reader.initialOffset()
    assert began == {"topic_id": topic.id, "offsets": {"0": 0}}
    with pytest.raises(Exception, match="was deleted and re-created"):
        reader.partitions(began | {"topic_id": "B" * 22}, began)
    with pytest.raises(Exception, match="holds offsets 0 to 9, not 11"):
        reader.partitions(began | {"offsets": {"0": 11}}, began)
    with pytest.raises(ValueError, match="a checkpoint of another source"):
        reader.partitions({"index": 1}, began)
    two = '{"orders": {"0": 1, "1": 1}}'
    wrong = KorvetDataSource(options(topics, startingOffsets=two)).reader(COLUMNS)
    with pytest.raises(ValueError, match="has 1 partitions, but offsets are given for"):
        wrong.partitions()


@pytest.mark.parametrize("storage_format", FORMATS)
def test_a_stream_reads_what_replicas_have_and_waits_while_they_are_away(
    tmp_path: Path, storage_format: Format
) -> None:
    with redis_servers.master() as master, topics_in(master.url, tmp_path / "lake") as topics:
        topic = topics.make("orders", storage_format, min_insync_replicas="2")
        [partition] = topic.partitions
        source_of_orders = KorvetDataSource(options(topics, startingOffsets="earliest"))
        reader = source_of_orders.streamReader(COLUMNS)
        began = reader.initialOffset()
        with master.replica():
            topics.produce(partition, b"held")
            held = {"topic_id": topic.id, "offsets": {"0": topics.produced[topic.id, 0][0][0] + 1}}
            # One question waits for half a second only; a stream asks again.
            wait_until(lambda: reader.latestOffset(began, ReadAllAvailable()) == held, "the replica has it")
        topics.produce(partition, b"of the master only")
        assert reader.latestOffset(held, ReadAllAvailable()) == reader.reportLatestOffset() == held
        # A stream that is started again reads the batch that it had begun.
        reader = source_of_orders.streamReader(COLUMNS)
        [part] = reader.partitions(began, held)
        [rows] = reader.read(part)
        assert isinstance(rows, pa.RecordBatch)
        assert rows.num_rows == 1
        with pytest.raises(KafkaError, match="OFFSET_NOT_AVAILABLE"):
            source_of_orders.reader(COLUMNS).partitions()
        newest = held | {"offsets": {"0": topics.produced[topic.id, 0][1][0] + 1}}
        with master.replica():
            wait_until(lambda: reader.latestOffset(held, ReadAllAvailable()) == newest, "it has that too")


def test_a_stream_gets_on_though_what_it_counts_goes_to_the_lake_meanwhile(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.make("orders", "record")
    [partition] = topic.partitions
    topics.produce(partition, *(b"%d" % at for at in range(10)))
    reader = KorvetDataSource(options(topics, startingOffsets="earliest")).streamReader(COLUMNS)
    began = reader.initialOffset()
    counted = offset_after

    def late(*args: Any) -> int:
        monkeypatch.setattr(source, "offset_after", counted)
        archive(topics)
        trim(topics, partition)
        return counted(*args)

    monkeypatch.setattr(source, "offset_after", late)
    fourth = topics.produced[topic.id, 0][3][0]
    assert reader.latestOffset(began, ReadMaxRows(4))["offsets"] == {"0": fourth + 1}
    # Where it goes again and again, all is one batch.
    monkeypatch.setattr(source, "offset_after", lambda _stores, _log, first, _count: first)
    assert reader.latestOffset(began, ReadMaxRows(4)) == reader.reportLatestOffset()


def test_a_plan_shows_no_keys_of_an_object_store(spark: SparkSession, topics: Topics) -> None:
    topics.make("orders", "batch")
    given = options(topics) | {"lake.storage.options": "AWS_SECRET_ACCESS_KEY=hunter2"}
    frame: Any = spark.read.format("korvet").options(**given).load()
    given = frame._jdf.queryExecution().toString()
    assert "korvet" in given
    assert "hunter2" not in given


def test_a_wrong_query_says_what_is_wrong_with_it(spark: SparkSession, topics: Topics) -> None:
    topics.make("orders", "batch")
    with pytest.raises(PySparkException, match="there is no topic others"):
        read(spark, topics, topic="others").count()
    with pytest.raises(PySparkException, match="there is no column value of type string"):
        spark.read.format("korvet").options(**options(topics)).schema("value STRING").load().count()


SECOND = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
NEEDED = {"redis.url": "redis://127.0.0.1/", "topic": "orders"}


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
        ([EqualTo(("value",), b"1"), EqualTo(("headers", "key"), "a")], FilterBounds()),
        ([EqualTo(("timestamp",), datetime(1970, 1, 1))], FilterBounds()),  # noqa: DTZ001 - a time without a zone
        ([In(("offset",), (1, "x"))], FilterBounds()),
        ([EqualTo(("partition",), None)], FilterBounds()),
    ],
)
def test_filters_become_bounds_that_are_never_narrower(filters: list[Filter], wanted: FilterBounds) -> None:
    assert filter_bounds(filters) == wanted


def test_options_are_read_in_any_case_and_with_their_defaults() -> None:
    found = read_options({"REDIS.URL": "redis://127.0.0.1/", "topic": "orders"})
    assert (found.source.redis_url, found.source.namespace) == ("redis://127.0.0.1/", "korvet")
    assert (found.source.lake, found.starting, found.ending) == (Lake(), None, ReadEdge("latest"))
    assert found.fail_on_data_loss
    assert (found.source.replicas, found.source.min_insync_replicas) == (0, 1)
    given: dict[str, Any] = {
        "lake": "s3://bucket/lake",
        "lake.storage.options": "region=eu,secret=a=b",
        "startingOffsets": '{"orders": {"0": 23, "1": -1, "2": -2}}',
        "endingTimestamp": "1000",
        "maxRecordsPerTrigger": "10",
        "failOnDataLoss": "False",
        "replicas": "1",
        "min.insync.replicas": "2",
    }
    found = read_options(NEEDED | given)
    assert found.source.lake.storage_options == {"region": "eu", "secret": "a=b"}
    assert (found.source.replicas, found.source.min_insync_replicas) == (1, 2)
    assert found.starting is not None
    assert found.starting.offsets == {0: 23, 1: LATEST, 2: EARLIEST}
    assert found.ending.timestamp == 1000
    assert (found.records_per_trigger, found.fail_on_data_loss) == (10, False)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("topics", "a", "unknown option topics; known are redis.url"),
        ("topic", "", "the option topic is required"),
        ("startingOffsets", "first", "is not earliest, latest or"),
        ("startingOffsets", '{"others": {"0": 1}}', "is not earliest, latest or"),
        ("startingOffsets", '{"orders": {"0": "1"}}', "is not earliest, latest or"),
        ("endingOffsets", '{"orders": {"0": -3}}', "is not earliest, latest or"),
        ("endingOffsets", "earliest", "cannot be earliest"),
        ("startingTimestamp", "yesterday", "no timestamp in milliseconds"),
        ("maxRecordsPerTrigger", "0", "no positive number"),
        ("failOnDataLoss", "maybe", "neither true nor false"),
        ("lake.storage.options", "region", "not NAME=VALUE"),
    ],
)
def test_a_wrong_option_is_one_clear_error(option: str, value: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_options(NEEDED | {"lake": "/lake", option: value})


def test_without_a_redis_url_the_log_is_that_of_the_embedded_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"topic": "orders"}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError,
        match=rf"redis\.url is required: no embedded server runs on {tmp_path}/korvet-data \(data\.dir\)",
    ):
        read_options(given)
    for directory in (tmp_path / "korvet-data", tmp_path / "others data"):
        directory.mkdir()
        (directory / "server.sock").touch()
    assert read_options(given).source.redis_url == f"unix://{tmp_path}/korvet-data/server.sock"
    found = read_options(given | {"data.dir": "./others data"})
    assert found.source.redis_url == f"unix://{tmp_path}/others%20data/server.sock"


def test_a_password_is_read_from_a_file_and_no_text_of_the_options_has_it(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("hunter2\n")
    given = {
        "topic": "orders",
        "redis.url": "rediss://korvet@h/1?ssl_ca_certs=/ca.pem",
        "redis.password.file": str(file),
    }
    found = read_options(given | {"lake": "s3://lakes", "lake.storage.options": "KEY=store-key"})
    assert found.source.redis_url == "rediss://korvet:hunter2@h/1?ssl_ca_certs=/ca.pem"
    assert "LakeSource('korvet', Lake('s3://lakes'))" in repr(found)
    assert "hunter2" not in repr(found)
    assert "store-key" not in repr(found)
    with pytest.raises(ConfigError, match=r"redis\.url has to be set, and to have no password of its own"):
        read_options(given | {"redis.url": "redis://:other-secret@h"})


def test_an_end_is_given_in_one_way_only() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        read_options(NEEDED | {"startingOffsets": "earliest", "startingTimestamp": "1"})
