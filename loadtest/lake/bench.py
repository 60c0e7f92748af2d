"""What the lake costs: archiving, fetches and pipelines, beside other ways: `make bench-lake`.

Run as `python -m loadtest.lake.bench [--only archive,cold,streams] [--records 500000] [--rounds 3]` in the repository,
with Java 17 and Maven, which fetches the jars of the peers. Each round of `archive` fills a topic of two partitions in
each storage format with records of 100 bytes. All of these bring the same records from it to a directory, in turn:

- `korvet`: `archive_rounds` on Spark with two cores, which read Redis, into a Delta table;
- `spark`: Spark's Kafka source on two cores, which reads the broker, into a Delta table;
- `connect`: a worker of Kafka Connect with the sink that comes with Kafka. It writes values as lines of text and no
  table, so a sink that does costs more.

All are warm: the first round is not counted. CPU is that of all processes, Redis and broker included; the rate of
`connect` counts that it joins a group. Then follows `korvet lake archive --once` with nothing to do. `cold` and
`streams` are those of cold.py and streams.py.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from korvet.lake.archiver import Archiver
from korvet.lake.source import LakeSource
from korvet.lake.table import Lake
from korvet.lake.tasks import archive_ranges
from korvet.spark.jobs import archive_rounds
from korvet.spark.session import session
from loadtest import harness
from loadtest.lake import cold, streams
from loadtest.lake.fill import FORMATS, VALUE_BYTES, fill, topic_id
from tests.jvm import jars as kafka_jars
from tests.jvm.connect.test_connect import STRINGS, worker_configs
from tests.jvm.connect.worker import Worker
from tests.jvm.connect.worker import running as connect_running
from tests.jvm.spark import jars as spark_jars
from tests.support import redis_servers, spark_driver
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import wait_until
from tests.support.spark_driver import Driver

CORES = 2
WARM_UP_RECORDS = 100_000
COLD_RECORDS = 200_000
SECONDS_MAX = 600.0
"""For one peer and one topic."""
DELTA = streams.DELTA | {
    # As Spark runs by default, unlike in the tests.
    "spark.driver.defaultJavaOptions": "",
    "spark.driver.memory": "1g",
    "spark.sql.codegen.wholeStage": "true",
}

Peer = Callable[[str, int], None]
"""Brings a number of records of a topic to a directory of its own."""

Figures = dict[tuple[str, str], list[tuple[float, float]]]
"""Records a second, and CPU of a record in us, of each round; by format and peer."""


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=500_000, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fetches", type=int, default=200, help="of each kind")
    parser.add_argument("--batches", type=int, default=30, help="small ones, of streams")
    parser.add_argument("--only", default="archive,cold,streams", help="some of these")
    args = parser.parse_args()
    wanted = args.only.split(",")
    if "archive" in wanted:
        archive(args.records, args.rounds)
    if "cold" in wanted:
        for storage_format in FORMATS:
            cold.measure(storage_format, COLD_RECORDS, args.fetches)
    if "streams" in wanted:
        streams.measure(args.records, args.batches, args.rounds)


def archive(records: int, rounds: int) -> None:
    """Measure archiving."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(redis_servers.embedded_server())
        source = LakeSource(redis_url=url, lake=Lake(str(directory / "lake")), timeout_ms=60_000)
        settings = ("--set", "lake.interval.ms=0", "--set", f"lake.path={source.lake.path}")
        broker = stack.enter_context(korvet_broker(directory / "broker", "--redis-url", url, *settings))
        peers: dict[str, Peer] = {
            "korvet": stack.enter_context(_korvet(source)),
            "spark": stack.enter_context(_spark(broker, directory / "spark")),
            "connect": stack.enter_context(_connect(broker, directory / "connect")),
        }
        _print(_rounds(source, peers, records, rounds))
        _nothing_to_do(source)


@contextmanager
def _korvet(source: LakeSource) -> Iterator[Peer]:
    with session("loadtest", master=f"local[{CORES},4]", only_schedules=True) as spark:
        yield partial(_archive, source, spark)


def _archive(source: LakeSource, spark: SparkSession, topic: str, records: int) -> None:
    rounds = archive_rounds(spark, source, names=[topic])
    assert sum(done.records for done in rounds if done is not None) == records


@contextmanager
def _spark(broker: Broker, directory: Path) -> Iterator[Peer]:
    directory.mkdir()
    spark_driver.SECONDS_MAX = SECONDS_MAX
    with spark_driver.spark_driver(directory, spark_jars.prepare(), DELTA) as driver:
        yield partial(_copy_by_spark, driver, broker.bootstrap, directory)


def _copy_by_spark(driver: Driver, bootstrap: str, directory: Path, topic: str, records: int) -> None:
    assert driver.run(_copied, bootstrap, topic, str(directory / topic)) == records


def _copied(spark: SparkSession, /, bootstrap: str, topic: str, path: str) -> int:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "kafka.fetch.max.wait.ms": "20"}
    spark.read.format("kafka").options(**options).load().write.format("delta").save(path)
    # Delta's log knows the number of records.
    return spark.read.format("delta").load(path).count()


@contextmanager
def _connect(broker: Broker, directory: Path) -> Iterator[Peer]:
    kafka_jars.prepare()
    directory.mkdir()
    with connect_running() as workers:
        workers.append(Worker(directory, worker_configs(broker) | {"consumer.auto.offset.reset": "earliest"}))
        workers[0].wait_until_ready()
        yield partial(_copy_by_connect, workers[0], directory)


def _copy_by_connect(worker: Worker, directory: Path, topic: str, records: int) -> None:
    file = directory / topic
    sink = {
        "name": topic,
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "topics": topic,
        "file": str(file),
        "value.converter": STRINGS,
    }
    worker.call("POST", "/connectors", {"name": topic, "config": sink})
    size = records * (VALUE_BYTES + 1)
    wait_until(lambda: file.exists() and file.stat().st_size == size, f"{records} lines", SECONDS_MAX)
    worker.call("DELETE", f"/connectors/{topic}")


def _rounds(source: LakeSource, peers: dict[str, Peer], records: int, rounds: int) -> Figures:
    figures: Figures = defaultdict(list)
    with source.opened() as stores:
        for number in range(rounds + 1):
            for storage_format in FORMATS:
                count = records if number else WARM_UP_RECORDS
                topic = f"{storage_format}-{number}"
                fill(stores, topic, storage_format, count)
                for name, copy in peers.items():
                    began, before = time.perf_counter(), harness.cpu(os.getpid())
                    copy(topic, count)
                    rate = count / (time.perf_counter() - began)
                    used_us = harness.cpu(os.getpid()).since(before).us(count).total
                    print(f"{topic} {name}: {rate:,.0f} records/s, {used_us:.2f} us", file=sys.stderr)
                    if number:
                        figures[storage_format, name].append((rate, used_us))
                for _ in stores.topics.deletion.delete({topic: topic_id(topic)})[1]:
                    pass
    return figures


def _print(figures: Figures) -> None:
    """Print medians, and those of the ratios in each round to Korvet."""
    rows: list[list[str | float]] = []
    for (storage_format, name), rounds in figures.items():
        rate, used_us = (statistics.median(column) for column in zip(*rounds, strict=True))
        own = figures[storage_format, "korvet"]
        ratios = sorted(one[1] / other[1] for one, other in zip(rounds, own, strict=True))
        ratio = f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
        rows.append([storage_format, name, rate, used_us, ratio])
    head = ("format", "peer", "records/s", "us CPU/record", "CPU ratio, median (least to most)")
    print(harness.table(head, rows), flush=True)


def _nothing_to_do(source: LakeSource) -> None:
    with source.opened() as stores:
        fill(stores, "archived", "batch", WARM_UP_RECORDS)
    assert Archiver(source).round(partial(archive_ranges, source)).records == WARM_UP_RECORDS
    place = ("--redis-url", source.redis_url, "--lake", source.lake.path)
    command = [sys.executable, "-m", "korvet", "lake", "archive", "--once", "--json", *place]
    times = []
    for _ in range(5):
        before, began = _children_seconds(), time.perf_counter()
        done = subprocess.run(command, capture_output=True, check=True)
        times.append((time.perf_counter() - began, _children_seconds() - before))
        assert json.loads(done.stdout)["records"] == 0
    seconds, cpu = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"archive --once with nothing to do: {seconds:.1f} s, {cpu:.2f} s of CPU", flush=True)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
