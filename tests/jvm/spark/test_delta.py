"""Tables of the lake under Delta Lake: it reads them as they are, and Korvet goes on with what it makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from korvet.errors import LakeError
from korvet.lake.compaction import compact, is_own
from korvet.lake.reader import LakeReader, RecordTimestamp
from korvet.lake.table import Lake
from korvet.protocol.records.record import StoredRecord
from korvet.spark.names import register_topics
from korvet.spark.session import PUSHDOWN
from tests.lake.archives import OF, append, by_time, files, opened, read_all, request
from tests.support.archives import Topics
from tests.support.batches import read
from tests.support.spark_driver import Driver

COUNT = 3000
FILES = (400, 1000, 200, 1400)
"""Records of each file: an OPTIMIZE takes large ones first."""


def record(at: int) -> StoredRecord:
    headers = [("h", None), ("h", b"%d" % at)] if at % 3 == 0 else []
    key = None if at % 5 == 0 else b"key"
    value = None if at % 11 == 0 else b"value %d" % at * (at % 11)
    return (at, -1 if at % 7 == 0 else 1_700_000_000_000 + at, key, value, headers)


def archive(lake: Lake, count: int) -> None:
    """Archive `count` more records of both partitions, as one file each."""
    for partition in range(2):
        first = (opened(lake).next_offset(partition) if lake.tables() else None) or 0
        append(lake, [record(at) for at in range(first, first + count)], first + count, partition)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Give a lake with a table of two partitions."""
    made = Lake(str(tmp_path / "lake"))
    for count in FILES:
        archive(made, count)
    return made


def check(lake: Lake, first: int = 0, stop: int = COUNT) -> None:
    """Check what Korvet reads of each partition, from any offset and by time."""
    table = opened(lake)
    assert {file.partition for file in table.files()} == {0, 1}
    reader = LakeReader(lake)
    for partition in range(2):
        assert table.next_offset(partition) == stop
        assert sum(file.rows for file in table.files() if file.partition == partition) == stop - first
        for at in (0, first, first + 1, 1400, 1600, stop - 1):
            result = read_all(reader, stop, at, partition=partition)
            assert result == [record(item) for item in range(max(first, at), stop)]
        place = request(0, stop, partition)
        assert by_time(reader, place, 1_700_000_001_500) == RecordTimestamp(1500, 1_700_000_001_500)
        assert by_time(reader, place) == RecordTimestamp(stop - 1, 1_700_000_000_000 + stop - 1)


def rows(spark: SparkSession, /, uri: str) -> list[tuple[Any, ...]]:
    """Read a table whole, by partition and offset."""
    frame = spark.read.format("delta").load(uri).withColumn("ms", f.unix_millis("timestamp"))
    return [
        (
            row.partition,
            (
                row.offset,
                -1 if row.ms is None else row.ms,
                None if row.key is None else bytes(row.key),
                None if row.value is None else bytes(row.value),
                [
                    (header.key, None if header.value is None else bytes(header.value))
                    for header in row.headers or ()
                ],
            ),
        )
        for row in frame.orderBy("partition", "offset").collect()
    ]


def run(spark: SparkSession, /, statement: str) -> dict[str, Any]:
    """Run SQL; returns the one row of its answer."""
    [row] = spark.sql(statement).collect()
    return row.asDict(recursive=True)


def execute(spark: SparkSession, /, statement: str) -> None:
    """Run SQL that answers nothing."""
    spark.sql(statement).collect()


def checkpoint(spark: SparkSession, /, uri: str) -> None:
    """Let Delta Lake write a checkpoint of the table's log, as it does after some commits."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, uri).checkpoint()


def name_topics(spark: SparkSession, /, options: dict[str, str]) -> list[str]:
    """Give each topic a view in a session of which nobody has set anything for Korvet."""
    spark.conf.set(PUSHDOWN, "false")
    return register_topics(spark, **options)


def test_topics_have_names_beside_delta_tables(delta: Driver, topics: Topics) -> None:
    [orders] = topics.make("orders", "batch").partitions
    topics.produce(orders, b"1", b"2")
    assert topics.archiver().round(topics.run).records == 2
    topics.trim(orders, 1)
    topics.produce(orders, b"3")
    options = {"redis.url": topics.source.redis_url, "lake": topics.lake}
    assert delta.run(name_topics, options) == ["korvet.`orders`"]
    delta.run(execute, "CREATE TABLE prices USING delta AS SELECT id offset, id * 10 price FROM range(2, 9)")
    joined = "SELECT count(*) records, sum(price) price FROM korvet.orders LEFT JOIN prices USING (offset)"
    assert delta.run(run, joined) == {"records": 3, "price": 20}
    topics.produce(orders, b"4")
    assert delta.run(run, joined) == {"records": 4, "price": 50}


def test_a_table_reads_as_any_other(delta: Driver, lake: Lake) -> None:
    everything = [(partition, record(at)) for partition in range(2) for at in range(COUNT)]
    assert delta.run(rows, opened(lake).uri) == everything


def test_korvet_goes_on_with_a_table_that_was_optimized_and_deleted_from(delta: Driver, lake: Lake) -> None:
    uri = opened(lake).uri
    optimized = delta.run(run, f"OPTIMIZE delta.`{uri}`")
    assert (optimized["metrics"]["numFilesRemoved"], optimized["metrics"]["numFilesAdded"]) == (8, 2)
    check(lake)
    delta.run(run, f"DELETE FROM delta.`{uri}` WHERE offset < 500")
    delta.run(checkpoint, uri)
    assert list(Path(lake.path).rglob("*.checkpoint*.parquet"))
    check(lake, 500)
    archive(lake, 100)
    check(lake, 500, COUNT + 100)
    assert all(step.done for step in compact(lake, OF))
    assert all(is_own(file.path) for file in files(lake))
    check(lake, 500, COUNT + 100)
    left = [(partition, record(at)) for partition in range(2) for at in range(500, COUNT + 100)]
    assert delta.run(rows, uri) == left


def stream(spark: SparkSession, /, uri: str, directory: str) -> list[int]:
    """Carry what is new in a table on, and return all that was carried by now."""
    rows = spark.readStream.format("delta").load(uri)
    writing = rows.select("offset").writeStream.format("parquet")
    checkpointed = writing.option("checkpointLocation", f"{directory}/checkpoint")
    checkpointed.trigger(availableNow=True).start(f"{directory}/carried").awaitTermination()
    return sorted(row.offset for row in spark.read.parquet(f"{directory}/carried").collect())


def test_a_stream_over_the_table_goes_on_past_compactions(delta: Driver, lake: Lake, tmp_path: Path) -> None:
    where = (opened(lake).uri, str(tmp_path / "stream"))
    assert delta.run(stream, *where) == sorted([*range(COUNT)] * 2)
    archive(lake, 1)
    assert all(step.done for step in compact(lake, OF))
    archive(lake, 1)
    assert delta.run(stream, *where) == sorted([*range(COUNT + 2)] * 2)


def test_rows_that_only_a_deletion_vector_hides_are_never_served(delta: Driver, lake: Lake) -> None:
    uri = opened(lake).uri
    delta.run(
        execute, f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    check(lake)
    delta.run(run, f"DELETE FROM delta.`{uri}` WHERE offset = 700")
    place = request(0, COUNT)
    with pytest.raises(LakeError, match="APPLY \\(PURGE\\)"):
        LakeReader(lake).answer(place)
    archive(lake, 100)
    delta.run(run, f"REORG TABLE delta.`{uri}` APPLY (PURGE)")
    result = [item.offset for item in read(LakeReader(lake).answer(place).data)]
    assert result == [item for item in range(COUNT + 100) if item != 700]
