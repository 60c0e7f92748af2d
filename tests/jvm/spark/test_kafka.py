"""Spark's own Kafka source and sink against two brokers: batches and streams, by offset and by time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from tests.jvm.spark import jars
from tests.support import processes, reading, redis_servers
from tests.support.broker import korvet_cluster
from tests.support.records import PARTITIONS, Received, Sample, samples, topic_name
from tests.support.spark_driver import Driver, FailedInSparkError, spark_driver

SCHEMA = (
    "topic string, partition int, key binary, value binary, headers array<struct<key: string, value: binary>>"
)


# A task asks for the end of its partition on the connection where the consumer waits for more records already, so it
# takes as long as that wait, with any broker.
WAIT = {"kafka.fetch.max.wait.ms": "20"}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give two brokers; topics named dense... are of the format `batch`, all others of `record`."""
    directory = tmp_path_factory.mktemp("cluster")
    with (
        redis_servers.server() as url,
        korvet_cluster(directory, url, "--set", "storage.format.topics=dense*=batch") as brokers,
    ):
        yield ",".join(broker.bootstrap for broker in brokers)
        assert all("Traceback" not in broker.log() for broker in brokers)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Give a driver with the Kafka source."""
    with spark_driver(tmp_path_factory.mktemp("spark"), jars.prepare()) as running:
        yield running


def source(spark: SparkSession, /, bootstrap: str, **options: Any) -> DataFrame:
    """Read a batch; `options` have `_` for `.`."""
    given = {name.replace("_", "."): value for name, value in options.items()}
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return reader.option("includeHeaders", value=True).options(**WAIT, **given).load()


def received(frame: DataFrame) -> list[Received]:
    """Collect the rows, by partition and offset."""
    return sorted(
        Received(
            row.partition,
            row.offset,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            tuple(
                (header.key, None if header.value is None else bytes(header.value))
                for header in row.headers or ()
            ),
            row.ms,
        )
        for row in frame.withColumn("ms", f.unix_millis("timestamp")).collect()
    )


def write(spark: SparkSession, /, bootstrap: str, rows: list[tuple[Any, ...]], **options: str) -> None:
    given = {name.replace("_", "."): value for name, value in options.items()}
    writer = spark.createDataFrame(rows, SCHEMA).write.format("kafka")
    writer.option("kafka.bootstrap.servers", bootstrap).option("includeHeaders", "true").options(
        **given
    ).save()


def read(spark: SparkSession, /, bootstrap: str, **options: Any) -> list[Received]:
    return received(source(spark, bootstrap, **options))


def test_what_a_data_frame_writes_comes_back_exactly(bootstrap: str, driver: Driver) -> None:
    topics = [topic_name("dense-sink"), topic_name("sparse-sink")]
    for topic in topics:
        reading.create_topic(bootstrap, topic, PARTITIONS)
    sent = samples(0, 1200)
    rows = [
        (topic, record.partition, record.key, record.value, record.headers or None)
        for topic in topics
        for record in sent
    ]
    driver.run(write, bootstrap, rows, kafka_compression_type="zstd")
    for topic in topics:
        back = sorted(reading.read_all(bootstrap, topic, range(PARTITIONS), len(sent)))
        # Spark's sink takes no timestamps.
        assert contents(back) == contents(sent)
        assert driver.run(read, bootstrap, subscribe=topic) == back


def contents(records: Sequence[Sample | Received]) -> list[str]:
    """Return what records hold besides offset and time, in an order that does not depend on these."""
    return sorted(str((record.partition, record.key, record.value, record.headers)) for record in records)


def offsets_of(topic: str, offsets: dict[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


def counted(spark: SparkSession, /, bootstrap: str, tasks: int, **options: Any) -> list[Received]:
    """Read a batch that must have at least `tasks` tasks."""
    frame = source(spark, bootstrap, **options)
    result = frame.rdd.getNumPartitions()
    assert result >= tasks, result
    return received(frame)


def produce(bootstrap: str, topic: str, first: int, count: int) -> list[Received]:
    """Produce records with timestamps of their own, and return all of the topic as confluent-kafka reads it."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for sample in samples(first, count):
        producer.produce(
            topic,
            sample.value,
            sample.key,
            sample.partition,
            timestamp=sample.timestamp,
            headers=list(sample.headers),
        )
    assert producer.flush(processes.WAIT_SECONDS_MAX) == 0
    return sorted(reading.read_all(bootstrap, topic, range(PARTITIONS), first + count))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_batch_has_the_records_between_offsets_or_times(bootstrap: str, driver: Driver, kind: str) -> None:
    topic = topic_name(f"{kind}-source")
    reading.create_topic(bootstrap, topic, PARTITIONS)
    everything = produce(bootstrap, topic, 0, 1200)
    parts = {number: [one for one in everything if one.partition == number] for number in range(PARTITIONS)}

    def batch(**options: Any) -> list[Received]:
        return driver.run(read, bootstrap, **options)

    # By offsets: of Spark -2 is the earliest and -1 the latest.
    firsts = {0: parts[0][10].offset, 1: -2, 2: parts[2][-1].offset, 3: parts[3][-1].offset}
    lasts = {0: parts[0][200].offset, 1: parts[1][3].offset, 2: -1, 3: -1}
    assert batch(
        subscribe=topic, startingOffsets=offsets_of(topic, firsts), endingOffsets=offsets_of(topic, lasts)
    ) == [*parts[0][10:200], *parts[1][:3], parts[2][-1], parts[3][-1]]
    assert batch(assign=json.dumps({topic: [1, 3]})) == parts[1] + parts[3]
    # By times: the first record that is not older, and up to it.
    first_ms, last_ms = everything[100].timestamp, everything[200].timestamp
    between = [item for item in everything if first_ms <= item.timestamp < last_ms]
    assert (
        batch(subscribePattern=f"{topic}.*", startingTimestamp=first_ms, endingTimestamp=last_ms) == between
    )
    times = {number: first_ms + number for number in range(PARTITIONS)}
    assert batch(subscribe=topic, startingOffsetsByTimestamp=offsets_of(topic, times)) == [
        item for item in everything if item.timestamp >= times[item.partition]
    ]
    ahead_ms = max(item.timestamp for item in everything) + 1
    late = {"subscribe": topic, "startingTimestamp": ahead_ms}
    assert batch(**late, startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(FailedInSparkError, match=r"[Nn]o offset"):
        batch(**late)
    assert driver.run(counted, bootstrap, 11, subscribe=topic, minPartitions=11) == everything


class Progress(NamedTuple):
    """What a stream has done: the records of each of its batches, and where its last one ends."""

    batches: list[int]
    end: dict[str, dict[str, int]]


def stream(spark: SparkSession, /, bootstrap: str, topic: str, directory: Path, **options: Any) -> Progress:
    """Append to files what a topic has and they have not."""
    query = started(spark, bootstrap, topic, directory, options)
    assert query.awaitTermination(120)
    done = [json.loads(progress.json) for progress in query.recentProgress]
    return Progress([item["numInputRows"] for item in done], done[-1]["sources"][0]["endOffset"])


def begin_stream(
    spark: SparkSession, /, bootstrap: str, topic: str, directory: Path, batches: int, **options: Any
) -> None:
    """Do some batches of that, and go on with the next ones."""
    query = started(spark, bootstrap, topic, directory, options)
    processes.wait_until(lambda: len(query.recentProgress) >= batches, "batches of the stream", 120)


def started(
    spark: SparkSession, /, bootstrap: str, topic: str, directory: Path, options: dict[str, Any]
) -> StreamingQuery:
    given = {name.replace("_", "."): value for name, value in options.items()}
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic).option("includeHeaders", value=True)
    writer = reader.options(**WAIT, **given).load().writeStream.format("parquet").trigger(availableNow=True)
    return writer.start(f"{directory}/rows", checkpointLocation=f"{directory}/checkpoint")


def written(spark: SparkSession, /, directory: Path) -> list[Received]:
    return received(spark.read.parquet(f"{directory}/rows"))


def test_a_stream_goes_on_where_it_was_killed_with_batches_of_a_bounded_size(
    bootstrap: str, driver: Driver, tmp_path: Path
) -> None:
    topic = topic_name("dense-stream")
    reading.create_topic(bootstrap, topic, PARTITIONS)
    produce(bootstrap, topic, 0, 1200)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 400}
    driver.run(begin_stream, bootstrap, topic, tmp_path, 2, **options)
    driver.kill()
    everything = produce(bootstrap, topic, 1200, 300)
    progress = driver.run(stream, bootstrap, topic, tmp_path, **options)
    assert max(progress.batches) <= 400
    assert sum(progress.batches) <= len(everything) - 2 * 400
    ends = {item.partition: item.offset + 1 for item in everything}
    assert json.dumps(progress.end) == offsets_of(topic, ends)
    assert driver.run(written, tmp_path) == everything
