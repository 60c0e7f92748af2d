"""korvet/spark/sink.py: DataFrames and streams of a real Spark, written through a real broker."""

from __future__ import annotations

import itertools
import re
import textwrap
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.types import StructType

from korvet.errors import LakeError
from korvet.protocol.types import ScramMechanism
from korvet.spark.options import sink_options
from korvet.spark.sink import BatchSink, checked_options
from korvet.spark.source import KorvetDataSource
from tests.support.authority import Authority
from tests.support.broker import Broker, steady_broker
from tests.support.docs import PAGES
from tests.support.reading import create_topic, read_all
from tests.support.records import Received
from tests.support.sasl_client import set_password
from tests.support.topic_client import Client
from tests.support.tutorial import section_of

_NUMBERS = itertools.count()
PASSWORD = "the-password-of-alice-in-this-test"


def write(frame: DataFrame, broker: Broker, topic: str | None, **options: str) -> None:
    writer = frame.write.format("korvet").option("bootstrap.servers", broker.bootstrap).options(**options)
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.mode("append").save()


def columns_of(text: str) -> StructType:
    result = StructType.fromDDL(text)
    assert isinstance(result, StructType)
    return result


def received(broker: Broker, topic: str, count: int) -> list[Received]:
    return read_all(broker.bootstrap, topic, range(3), count)


def test_rows_become_records_at_the_partitions_of_their_keys(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    frame = spark.range(2000, numPartitions=2).selectExpr(
        "if(id % 10 = 0, null, concat('key ', id % 100)) key", "cast(id as string) value"
    )
    before = time.time_ns() // 1_000_000
    write(frame, broker, topic, **{"compression.type": "lz4"})
    results = received(broker, topic, 2000)
    assert Counter((result.key, result.value) for result in results) == Counter(
        (None if at % 10 == 0 else b"key %d" % (at % 100), b"%d" % at) for at in range(2000)
    )
    for result in results:
        assert result.key is None or result.partition == (murmur2(result.key) & 0x7FFFFFFF) % 3
        assert result.headers == ()
        assert before <= result.timestamp <= time.time_ns() // 1_000_000
    # Each of Spark's tasks has kept its order.
    for partition, half in itertools.product(range(3), range(2)):
        numbers = [
            int(result.value or b"") for result in results if result.partition == partition and result.key
        ]
        mine = [number for number in numbers if half * 1000 <= number < half * 1000 + 1000]
        assert mine == sorted(mine)


def test_every_column_is_what_it_says(spark: SparkSession, broker: Broker, topic: str) -> None:
    other = f"other-{next(_NUMBERS)}"
    create_topic(broker.bootstrap, other, 3)
    moment = datetime(2024, 5, 6, 7, 8, 9, 123000, UTC)
    rows = [
        (topic, 2, bytearray(b"\xff\x00"), bytearray(b"1"), [("a", bytearray(b"x")), ("a", None)], moment),
        (topic, 0, None, None, None, moment),
        (other, 1, bytearray(b""), bytearray(b""), [], moment),
        (other, None, bytearray(b"key"), bytearray(b"4"), None, None),
    ]
    schema = (
        "topic STRING, partition INT, key BINARY, value BINARY,"
        " headers ARRAY<STRUCT<key: STRING, value: BINARY>>, timestamp TIMESTAMP"
    )
    frame = spark.createDataFrame(rows, schema)
    write(frame, broker, None)
    at = int(moment.timestamp() * 1000)
    here = sorted(received(broker, topic, 2))
    assert here == [
        Received(0, 0, None, None, (), at),
        Received(2, 0, b"\xff\x00", b"1", (("a", b"x"), ("a", None)), at),
    ]
    keyed = (murmur2(b"key") & 0x7FFFFFFF) % 3
    there = {item.value: item for item in received(broker, other, 2)}
    assert there[b""] == Received(1, there[b""].offset, b"", b"", (), at)
    assert (there[b"4"].partition, there[b"4"].key) == (keyed, b"key")
    assert there[b"4"].timestamp > at
    # The option names the topic for all rows.
    write(frame, broker, topic)
    assert len(received(broker, topic, 6)) == 6


def test_the_example_of_the_page_writes_its_row(spark: SparkSession, broker: Broker) -> None:
    section = section_of(PAGES["docs/lake/spark.md"], "Writing from Spark")
    [example] = re.findall(r"(?:^ {4}.*\n)+", section, re.MULTILINE)
    create_topic(broker.bootstrap, "bills", 3)
    code = textwrap.dedent(example).replace("127.0.0.1:9092", broker.bootstrap)
    exec(code, {"spark": spark})  # noqa: S102 - what a reader would run
    [bill] = received(broker, "bills", 1)
    assert (bill.key, bill.value) == (b"bill-1", b"12")


def test_many_rows_are_sent_in_batches_that_the_topic_takes(spark: SparkSession, broker: Broker) -> None:
    name = f"other-{next(_NUMBERS)}"
    create_topic(broker.bootstrap, name, 3, {"max.message.bytes": "20000"})
    frame = spark.range(60_000, numPartitions=2).selectExpr(
        "cast(id as string) key", "concat(id, repeat('x', 100)) value"
    )
    write(frame, broker, name)
    results = received(broker, name, 60_000)
    assert {result.value for result in results} == {b"%d" % at + b"x" * 100 for at in range(60_000)}


def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    for at in range(2):
        spark.range(at * 100, at * 100 + 100, numPartitions=1).selectExpr(
            "cast(id as string) value"
        ).write.mode("append").parquet(str(source))
        query = (
            spark.readStream.schema("value STRING")
            .parquet(str(source))
            .writeStream.format("korvet")
            .option("bootstrap.servers", broker.bootstrap)
            .option("topic", topic)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            # Spark passes the name on as an option.
            .queryName("bills")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert query.exception() is None
    results = received(broker, topic, 200)
    assert sorted(int(result.value or b"") for result in results) == list(range(200))


def test_what_a_task_cannot_write_is_one_clear_error(spark: SparkSession, broker: Broker, topic: str) -> None:
    with pytest.raises(PySparkException, match=f"there is no partition {topic}:3"):
        write(spark.range(1, numPartitions=1).selectExpr("'v' value", "3 partition"), broker, topic)

    def failed(**columns: pa.Array) -> str:
        where = {"bootstrap.servers": broker.bootstrap} | ({} if "topic" in columns else {"topic": topic})
        with pytest.raises((LakeError, ValueError)) as raised:
            BatchSink(sink_options(where)).write(iter([pa.record_batch(columns)]))
        return str(raised.value)

    value = pa.array(["v", "w"])
    assert failed(value=value, topic=pa.array([topic, None])).startswith("column topic is null in some rows")
    assert "topic nowhere: UNKNOWN_TOPIC_OR_PARTITION" in failed(value=value, topic=pa.array(["nowhere"] * 2))
    assert f"{topic}:1 did not take records: MESSAGE_TOO_LARGE" in failed(
        value=pa.array(["v", "w" * 2_000_000]), partition=pa.array([1, 1], pa.int32())
    )
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    headers = pa.array([[], [{"key": None, "value": b"x"}]], pa.list_(header))
    assert failed(value=value, headers=headers) == "column headers has a header without a key"


def test_wrong_columns_options_and_modes_are_one_clear_error_each(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    options = sink_options({"bootstrap.servers": broker.bootstrap, "topic": topic})

    def refused(columns: str, *, to: str | None = topic) -> str:
        given = sink_options({"bootstrap.servers": broker.bootstrap} | ({"topic": to} if to else {}))
        with pytest.raises(ValueError, match=r".") as raised:
            checked_options(given, columns_of(columns))
        return str(raised.value)

    assert checked_options(options, columns_of("value STRING")) == options
    assert refused("value BINARY, offset BIGINT").startswith("unknown column offset; a record has key, ")
    assert refused("value INT") == "column value is int: it has to be string or binary"
    assert refused("value STRING, partition BIGINT") == "column partition is bigint: it has to be int"
    assert refused("value STRING, headers ARRAY<STRING>").startswith("column headers is array<string>: ")
    assert refused("key STRING") == "there is no column value"
    assert refused("value STRING", to=None).startswith("the option topic is required")
    assert refused("value STRING", to="nowhere").startswith("topic nowhere: UNKNOWN_TOPIC_OR_PARTITION")

    def wrong(**given: str) -> str:
        with pytest.raises(ValueError, match=r".") as raised:
            sink_options({name.replace("_", "."): value for name, value in given.items()})
        return str(raised.value)

    of_spark = {"path": "/orders", "queryName": "bills", "checkpointLocation": "/checkpoints/bills"}
    given = {"bootstrap.servers": "b", "topic": "t"}
    assert sink_options(given | of_spark, streaming=True) == sink_options(given, streaming=True)
    assert wrong(bootstrap_servers="b", queryNames="bills").startswith("unknown option querynames; ")
    assert wrong(topic="t") == "the option bootstrap.servers is required"
    assert wrong(bootstrap_servers="b", redis_url="x") == (
        "unknown option redis.url; known for writing are bootstrap.servers, topic, compression.type,"
        " delivery.timeout.ms, exactly.once, staging.path, staging.storage.options, transaction.timeout.ms, txnAppId,"
        " txnVersion"
    )
    assert wrong(bootstrap_servers="b", compression_type="zip").startswith(
        "compression.type: 'zip' is none of"
    )
    assert wrong(bootstrap_servers="b", delivery_timeout_ms="0").startswith("delivery.timeout.ms: '0' is no")
    source = KorvetDataSource({"bootstrap.servers": broker.bootstrap, "topic": topic})
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(ValueError, match="records can only be appended"):
            writer(columns_of("value STRING"), overwrite=True)
    frame = spark.range(1).select(col("id").cast("string").alias("value")).write.format("korvet")
    with pytest.raises(PySparkException, match="records can only be appended"):
        frame.option("bootstrap.servers", broker.bootstrap).option("topic", topic).mode("overwrite").save()


def test_rows_are_written_to_a_listener_with_a_login_by_tls(spark: SparkSession, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.issue("/CN=broker").store,
    }
    login = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(authority.certificate),
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'a.ScramLoginModule required username="alice" password="{PASSWORD}";',
    }
    with steady_broker(tmp_path, settings=settings, listen=(), workers=1) as secured:
        plain = secured.bootstrap_of("PLAINTEXT")
        with Client(secured.at("PLAINTEXT")) as admin:
            set_password(admin, "alice", PASSWORD, ScramMechanism.SCRAM_SHA_512)
        create_topic(plain, "secured", 3)
        writer = spark.range(20).selectExpr("cast(id as string) value").write.format("korvet")
        writer = writer.option("bootstrap.servers", secured.bootstrap_of("SASL_SSL")).option(
            "topic", "secured"
        )
        writer.options(**login).mode("append").save()
        results = read_all(plain, "secured", range(3), 20)
        assert sorted(int(result.value or b"") for result in results) == list(range(20))
        wrong = login["kafka.sasl.jaas.config"].replace(PASSWORD, "wrong-password")
        with pytest.raises(PySparkException, match="Authentication failed") as refused:
            writer.options(**login | {"kafka.sasl.jaas.config": wrong}).mode("append").save()
        assert "wrong-password" not in str(refused.value)
