"""A pipeline on the standalone cluster with its checkpoints and its table in S3, as the lake's own options say."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession

from korvet.lake.files import filesystem
from korvet.lake.table import Lake
from korvet.spark.pipelines.packages import bucket_configs
from korvet.spark.pipelines.state import StateDirectory
from korvet.topics.types import Partition
from tests.jvm.spark import jars
from tests.jvm.spark.cluster import CONFIGS, ENVIRONMENT, Cluster, cluster, command_line
from tests.stores import s3
from tests.stores.s3 import BUCKET, SECRET, Store
from tests.support.archives import Topics, topics_in
from tests.support.batches import Record
from tests.support.processes import descendants, dying_with_tests, free_port, wait_until
from tests.support.spark_driver import spark_driver

SECONDS_MAX = 240
_APPLICATIONS = "/api/v1/applications"
_numbers = itertools.count()

pytestmark = pytest.mark.timeout(4 * SECONDS_MAX)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with s3.store() as running:
        yield running


@pytest.fixture
def topics(redis_url: str, store: Store) -> Iterator[Topics]:
    with topics_in(redis_url, f"s3://{BUCKET}/lake-{next(_numbers)}", store.options) as result:
        yield result


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as started:
        yield started


def pipeline(directory: Path, master: str, configs: Mapping[str, str]) -> Path:
    """Write a pipeline's file: orders as they are, with the jars of the tests, and without a word about S3."""
    path = ":".join(map(str, [*jars.prepare(), *jars.prepare(jars.S3)]))
    settings = CONFIGS | {
        "spark.driver.extraClassPath": path,
        "spark.executor.extraClassPath": path,
        "spark.driver.memory": "768m",
        **configs,
    }
    conf = "".join(f'"{name}" = "{value}"\n' for name, value in settings.items())
    file = directory / "orders.toml"
    file.write_text(
        f"""
name = "orders"
[sources.orders]
topics = ["orders"]
value.format = "string"
[transform]
sql = "SELECT value FROM orders"
[target]
type = "delta"
path = "tables/orders"
[trigger]
interval = "200ms"
[spark]
master = "{master}"
[spark.conf]
{conf}"""
    )
    return file


@contextlib.contextmanager
def begun(topics: Topics, store: Store, file: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a pipeline, whose lines go to a file."""
    with log.open("wb") as lines:
        process = subprocess.Popen(
            dying_with_tests(
                [
                    *(sys.executable, "-m", "korvet", "lake", "pipeline", "run", str(file)),
                    *("--redis-url", topics.source.redis_url, "--lake", topics.lake),
                ]
            ),
            stdout=lines,
            stderr=lines,
            env=os.environ | ENVIRONMENT | {"KORVET_LAKE_STORAGE_OPTIONS": store.setting},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def settings_shown(ui_port: int) -> str:
    """Return the environment page of the one application of a driver, as JSON."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", ui_port, timeout=SECONDS_MAX)) as ui:
        ui.request("GET", _APPLICATIONS)
        [application] = json.loads(ui.getresponse().read())
        ui.request("GET", f"{_APPLICATIONS}/{application['id']}/environment")
        return ui.getresponse().read().decode()


def values(topics: Topics) -> list[str]:
    lake = topics.source.lake
    try:
        table = DeltaTable(f"{lake.path}/tables/orders", storage_options=lake.storage_options)
    except TableNotFoundError:
        return []
    return sorted(row["value"] for row in table.to_pyarrow_table().to_pylist())


def test_a_pipeline_writes_by_the_options_of_the_lake_and_shows_them_to_nobody(
    running: Cluster, topics: Topics, store: Store, tmp_path: Path
) -> None:
    topic = topics.make("orders", "batch", partitions=2)
    for partition in topic.partitions:
        topics.produce(partition, *(Record(b"%d-%d" % (partition.index, at)) for at in range(50)))
    wanted = sorted(f"{index}-{at}" for index in range(2) for at in range(50))
    ui_port = free_port()
    configs = {"spark.ui.enabled": "true", "spark.ui.port": str(ui_port)}
    file, log = pipeline(tmp_path, running.url, configs), tmp_path / "pipeline.log"
    with begun(topics, store, file, log) as process:
        wait_until(
            lambda: process.poll() is not None or values(topics) == wanted, "all is written", SECONDS_MAX
        )
        assert process.poll() is None, log.read_text()
        shown = settings_shown(ui_port)
        assert f"fs.s3a.bucket.{BUCKET}.secret.key" in shown
        assert SECRET not in shown
        started = list(map(command_line, {*descendants(process.pid), *running.executors()}))
        assert any(b"org.apache.spark.deploy.SparkSubmit" in item for item in started)
        assert [item for item in started if SECRET.encode() in item] == []
        process.terminate()
        assert process.wait(SECONDS_MAX) == 0, log.read_text()
    assert SECRET not in log.read_text()
    assert [item.name for item in tmp_path.rglob("stderr") if SECRET in item.read_text()] == []


def produce(topics: Topics, partition: Partition, values: range) -> list[str]:
    """Produce a record of each number; return all values that the partition has now."""
    topics.produce(partition, *(Record(b"%d" % number) for number in values))
    return sorted(map(str, range(values.stop)))


def retries(configs: Mapping[str, str]) -> dict[str, str]:
    """Return settings of S3A, which tries a request some twenty times by default, with growing pauses."""
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in configs.items()}


def test_a_store_that_refuses_some_requests_costs_no_row_and_doubles_none(
    topics: Topics, store: Store, tmp_path: Path
) -> None:
    [partition] = topics.make("orders", "batch").partitions
    configs = retries({"retry.interval": "10ms", "retry.throttle.interval": "10ms"})
    file, log = pipeline(tmp_path, "local[2]", configs), tmp_path / "pipeline.log"
    with begun(topics, store, file, log) as process:
        for start in range(0, 150, 50):
            wanted = produce(topics, partition, range(start, start + 50))
            store.wait_for_refusals(10 if start else 0)
            wait_until(
                lambda: process.poll() is not None or values(topics) == wanted,  # noqa: B023 - called here
                "all is written",
                SECONDS_MAX,
            )
            assert process.poll() is None, log.read_text()
            store.refuse(10)
    store.refuse(0)


def test_a_store_that_is_away_ends_a_pipeline_with_one_line_and_once_it_is_back_no_row_is_missing_or_twice(
    topics: Topics, store: Store, tmp_path: Path
) -> None:
    [partition] = topics.make("orders", "batch").partitions
    limits = {"attempts.maximum": "1", "retry.limit": "2", "retry.throttle.limit": "2"}
    configs = retries(limits | {"retry.interval": "10ms", "retry.throttle.interval": "10ms"})
    file, log = pipeline(tmp_path, "local[2]", configs), tmp_path / "pipeline.log"
    wanted = produce(topics, partition, range(50))
    with begun(topics, store, file, log) as process:
        wait_until(lambda: process.poll() is not None or values(topics) == wanted, "it runs", SECONDS_MAX)
        store.refuse(1_000_000)
        wanted = produce(topics, partition, range(50, 100))
        assert process.wait(SECONDS_MAX) == 1
    store.refuse(0)
    [line] = [line for line in log.read_text().splitlines() if line.startswith("Error: ")]
    assert "503" in line
    with begun(topics, store, file, log) as process:
        wait_until(lambda: process.poll() is not None or values(topics) == wanted, "it goes on", SECONDS_MAX)
        assert process.poll() is None, log.read_text()


def rewrite(spark: SparkSession, /, lake: str, times: int) -> None:
    """Write a file of a pipeline again and again, in the driver."""
    state = StateDirectory(spark, lake, "orders")
    for number in range(times):
        state.write("pipeline.json", b"%d" % number)


def test_a_file_that_is_replaced_is_there_at_any_time(store: Store, tmp_path: Path) -> None:
    lake = Lake(f"s3://{BUCKET}/replaced", store.options)
    result = [*jars.prepare(), *jars.prepare(jars.S3)]
    files = filesystem(f"{lake.path}/_pipelines/orders", lake.storage_options)
    with spark_driver(tmp_path, result, bucket_configs(lake)) as driver:
        driver.run(rewrite, lake=lake.path, times=1)
        ended = threading.Event()
        missing: list[OSError] = []
        reads: list[bytes] = []

        def look() -> None:
            while not ended.is_set():
                try:
                    with files.open_input_stream("pipeline.json") as stream:
                        reads.append(stream.read())
                except OSError as error:
                    missing.append(error)

        looking = threading.Thread(target=look)
        looking.start()
        try:
            driver.run(rewrite, lake=lake.path, times=50)
        finally:
            ended.set()
            looking.join()
    assert len(set(reads)) > 1
    assert missing == []
