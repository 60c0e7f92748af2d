"""`korvet lake pipeline run` as a process: killed, ended, and with a topic of a real broker as its target."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from korvet.cluster.pipelines import PipelineStatus, PipelineStore
from korvet.lake.source import LakeSource
from korvet.redis.blocking_driver import blocking_redis
from korvet.redis.keys import Keys
from tests.jvm.spark import jars
from tests.support.archives import Topics, topics_in, where
from tests.support.batches import Record
from tests.support.broker import korvet_broker
from tests.support.processes import children, dying_with_tests, wait_until
from tests.support.reading import create_topic, read_to_end

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
MAIN = Path(__file__).parents[3] / "korvet" / "__main__.py"
SECONDS_MAX = 240

pytestmark = pytest.mark.timeout(4 * SECONDS_MAX)


def pipeline(directory: Path, target: str, trigger: str, source: str = "") -> Path:
    """Write a pipeline's file: orders as they are, with the jars of the tests."""
    settings = {
        "spark.driver.extraClassPath": ":".join(map(str, jars.prepare())),
        "spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.driver.memory": "768m",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",
    }
    file = directory / "orders.toml"
    conf = "\n".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in settings.items())
    file.write_text(
        f"""
name = "orders"
[sources.orders]
topics = ["orders"]
{source}
[sources.orders.value]
format = "string"
[transform]
sql = "SELECT value FROM orders"
[target]
{target}
[trigger]
{trigger}
[spark]
master = "local[2]"
[spark.conf]
{conf}
"""
    )
    return file


TABLE = 'type = "delta"\npath = "tables/orders"'


@contextmanager
def running(topics: Topics, file: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "korvet", "lake", "pipeline", "run", str(file), *where(topics), *flags]
    with subprocess.Popen(
        dying_with_tests(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def completed(topics: Topics, file: Path, *flags: str) -> None:
    """Run a pipeline until all is read."""
    with running(topics, file, *flags) as process:
        _, errors = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0, errors


def values(topics: Topics) -> Counter[str]:
    try:
        table = DeltaTable(Path(topics.lake) / "tables" / "orders")
    except TableNotFoundError:
        return Counter()
    return Counter(row["value"] for row in table.to_pyarrow_table().to_pylist())


def status(source: LakeSource) -> PipelineStatus:
    redis = blocking_redis(source.redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)
    [result] = PipelineStore(redis, Keys(source.namespace)).read()
    redis.close()
    return result


@pytest.mark.parametrize("victim", ["driver", "java"])
def test_a_run_that_is_killed_is_continued_and_one_that_is_ended_ends_in_order(
    topics: Topics, tmp_path: Path, victim: str
) -> None:
    topic = topics.make("orders", "batch", partitions=2)
    wanted: Counter[str] = Counter()

    def produce(first: int) -> None:
        for partition in topic.partitions:
            some = [f"{partition.index}-{at}" for at in range(first, first + 50)]
            topics.produce(partition, *(Record(item.encode()) for item in some))
            wanted.update(some)

    produce(0)
    # Several batches, so that the kill finds some done, and some under way.
    file = pipeline(tmp_path, TABLE, 'interval = "200ms"', "max_records_per_trigger = 40")
    with running(topics, file) as process:
        wait_until(
            lambda: process.poll() is not None or values(topics).total() >= 40,
            "some batches are written",
            SECONDS_MAX,
        )
        [java] = [pid for pid in children(process.pid) if "java" in Path(f"/proc/{pid}/exe").readlink().name]
        os.kill(java if victim == "java" else process.pid, signal.SIGKILL)
    produce(100)
    with running(topics, file) as process:
        wait_until(
            lambda: process.poll() is not None or values(topics) == wanted, "all is written", SECONDS_MAX
        )
        assert values(topics) == wanted, process.communicate()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0
        # Spark's start is shown at times; nothing else is said.
        assert [line for line in errors.splitlines() if "starting Spark" not in line] == []
    assert status(topics.source).state == "stopped"
    # Whatever the trigger is, it continues.
    produce(200)
    completed(topics, pipeline(tmp_path, TABLE, "available_now = true"))
    assert values(topics) == wanted
    assert status(topics.source).state == "completed"


def test_what_is_wrong_ends_it_with_one_line(topics: Topics, tmp_path: Path) -> None:
    [partition] = topics.make("orders", "batch").partitions
    topics.produce(partition, Record(b"1"))
    file = pipeline(tmp_path, TABLE, "available_now = true")
    text = file.read_text()
    file.write_text(text.replace("SELECT value", "SELECT CAST(raise_error(value) AS STRING) value"))
    with running(topics, file) as process:
        output, errors = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 1
    assert output == ""
    assert [line for line in errors.splitlines() if "starting Spark" not in line] == ["Error: 1"]
    assert status(topics.source).error == "1"


def test_spark_submit_without_a_package_is_one_clear_error(topics: Topics, tmp_path: Path) -> None:
    topics.make("orders", "batch")
    # What it says of jars comes too late: Java runs when it is read.
    file = pipeline(tmp_path, TABLE, "available_now = true")
    result = subprocess.run(
        [str(SUBMIT), str(MAIN), "lake", "pipeline", "run", str(file), *where(topics)],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert result.returncode == 1
    [*_, last] = result.stdout.splitlines()
    assert last.startswith("Error: Java has started without ")
    assert last.endswith(": give spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0")


def test_rows_go_to_a_topic_once(tmp_path: Path) -> None:
    with korvet_broker(tmp_path / "broker", "--set", "storage.format=batch", workers=1) as broker:
        create_topic(broker.bootstrap, "orders", 1)
        create_topic(broker.bootstrap, "copies", 2)
        with topics_in(broker.redis_url, tmp_path / "lake") as topics:
            [partition] = topics.stores.topic("orders").partitions
            target = 'type = "topic"\ntopic = "copies"'
            file = pipeline(tmp_path, target, "available_now = true")
            wanted: Counter[Any] = Counter()
            for first in (0, 100):
                some = [b"%d" % at for at in range(first, first + 20)]
                topics.produce(partition, *map(Record, some))
                wanted.update(some)
                completed(topics, file, "--bootstrap-server", broker.bootstrap)
            # As after a crash when the last batch was written, and before that was noted.
            commits = Path(topics.lake) / "_pipelines/orders/checkpoint/main/commits"
            for name in ("1", ".1.crc"):
                (commits / name).unlink()
            completed(topics, file, "--bootstrap-server", broker.bootstrap)
        result = read_to_end(broker.bootstrap, "copies", 2, "read_committed")
        assert Counter(item.value for some in result for item in some) == wanted


def test_a_run_that_is_ended_in_a_long_batch_interrupts_it_without_a_word(
    topics: Topics, tmp_path: Path
) -> None:
    topic = topics.make("orders", "batch")
    topics.produce(topic.partitions[0], Record(b"1"))
    file = pipeline(tmp_path, TABLE, 'interval = "200ms"')
    slow = "SELECT java_method('java.lang.Thread', 'sleep', 600000L) value FROM orders"
    file.write_text(file.read_text().replace("SELECT value FROM orders", slow))
    begun = Path(topics.lake) / "_pipelines" / "orders" / "checkpoint" / "main" / "offsets" / "0"
    with running(topics, file) as process:
        wait_until(lambda: process.poll() is not None or begun.exists(), "a batch has begun", SECONDS_MAX)
        process.terminate()
        _, errors = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, errors
    assert [line for line in errors.splitlines() if not line.startswith("starting Spark")] == []
