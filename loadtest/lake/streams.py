"""What a pipeline costs beside a program with Spark's own Kafka source, start included.

Run as `python -m loadtest.lake.streams [--records 500000] [--batches 30] [--rounds 3]` from the repository, with Java
17 and Maven; `make bench-lake` runs it too. A topic of two partitions in format `batch` has records of 100 bytes. Both
are processes of their own with two cores, as users start them. They bring the columns of Spark's Kafka source into a
new Delta table and end (availableNow): all of a topic in one batch (`large`), or little more than nothing in each of
many (`small`). The program reads a broker with one worker, the pipeline reads Redis. CPU is that of all processes,
Redis, broker, Java and Python included, from the start of the process to the end of the last one that it has started.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from korvet.lake.source import LakeSource
from korvet.lake.table import Lake
from loadtest.lake import archive
from tests.jvm.spark import jars
from tests.support import processes, redis_servers
from tests.support.broker import korvet_broker

MASTER = "local[2]"
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
BATCHES = 30
SMALL = 20_000
"""Records of all small batches together: as few as `archive.fill` takes."""
PIPELINE = """
name = "{name}"
[sources.records]
topics = ["{topic}"]
{limit}
[transform]
sql = "SELECT {columns} FROM records"
[target]
type = "delta"
path = "{table}"
[trigger]
available_now = true
[spark]
master = "{master}"
[spark.conf]
"spark.jars" = "{jars}"
"""
_PR_SET_CHILD_SUBREAPER = 36


class Work(NamedTuple):
    """A topic, and how its records are cut: `limit` records a batch at most, 0 for all at once."""

    name: str
    records: int
    limit: int


class Peers:
    """Commands that bring a topic to a table, by name."""

    def __init__(self, source: LakeSource, bootstrap: str, directory: Path) -> None:
        self._source = source
        self._bootstrap = bootstrap
        self._directory = directory
        self._jars = ",".join(map(str, jars.prepare()))

    def pipeline(self, work: Work, table: Path) -> list[str]:
        """Return the command of a pipeline."""
        file = self._directory / f"{table.name}.toml"
        limit = f"max_records_per_trigger = {work.limit}" if work.limit else ""
        file.write_text(
            PIPELINE.format(
                name=table.name,
                topic=work.name,
                limit=limit,
                columns=", ".join(COLUMNS),
                table=table,
                master=MASTER,
                jars=self._jars,
            )
        )
        place = ("--redis-url", self._source.redis_url, "--lake", self._source.lake.path)
        return [sys.executable, "-m", "korvet", "lake", "pipeline", "run", str(file), *place]

    def kafka(self, work: Work, table: Path) -> list[str]:
        """Return the command of a program with Spark's own source."""
        program = [sys.executable, "-m", "loadtest.lake.streams", "--kafka", self._bootstrap]
        return [
            *program,
            "--topic",
            work.name,
            "--table",
            str(table),
            "--limit",
            str(work.limit),
            "--jars",
            self._jars,
        ]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=500_000, help="of the large batch")
    parser.add_argument("--batches", type=int, default=BATCHES, help="small ones")
    parser.add_argument("--rounds", type=int, default=3)
    for name in ("kafka", "topic", "table", "limit", "jars"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kafka:
        stream_by_kafka(args.kafka, args.topic, args.table, int(args.limit), args.jars)
        return
    measure(args.records, args.batches, args.rounds)


def measure(records: int, batches: int, rounds: int) -> None:
    """Print the medians of all rounds, and those of the ratios in each round to Spark's own source."""
    works = (Work("large", records, 0), Work("small", SMALL, -(-SMALL // batches)))
    # Java outlives the process that has started it: what it uses until its end is counted here.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(redis_servers.embedded_server())
        source = LakeSource(redis_url=url, lake=Lake(str(directory / "lake")), timeout_ms=60_000)
        Path(source.lake.path).mkdir()
        broker = stack.enter_context(korvet_broker(directory / "broker", "--redis-url", url, workers=1))
        with source.opened() as stores:
            for work in works:
                archive.fill(stores, work.name, "batch", work.records)
        peers = Peers(source, broker.bootstrap, directory)
        print("batches  peer      s      s CPU  CPU ratio of each round")
        for work in works:
            _compare(work, {"pipeline": peers.pipeline, "kafka": peers.kafka}, directory, rounds)


def _compare(
    work: Work, peers: dict[str, Callable[[Work, Path], list[str]]], directory: Path, rounds: int
) -> None:
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
    for number in range(rounds):
        for name, command in sorted(peers.items(), reverse=bool(number % 2)):
            table = directory / f"{name}-{work.name}-{number}"
            figures[name].append(_run(command(work, table)))
            rows = DeltaTable(table).to_pyarrow_dataset().count_rows()
            assert rows == work.records, (name, rows)
            print(f"{work.name} {name}: {figures[name][-1]}", file=sys.stderr, flush=True)
    ratios = [one[1] / other[1] for one, other in zip(figures["pipeline"], figures["kafka"], strict=True)]
    for name, values in figures.items():
        seconds, cpu = (statistics.median(column) for column in zip(*values, strict=True))
        text = " ".join(f"{ratio:.2f}" for ratio in ratios) if name == "pipeline" else ""
        print(f"{work.name:8} {name:8} {seconds:6.1f} {cpu:6.1f}  {text}", flush=True)


def _run(command: Sequence[str]) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of a command and of all that it has started."""
    before = processes.descendants(os.getpid())
    began, cpu = time.perf_counter(), archive.cpu_seconds()
    subprocess.run(command, check=True)
    seconds = time.perf_counter() - began
    processes.wait_until(
        lambda: processes.descendants(os.getpid()) <= before, "all that was started has ended"
    )
    return seconds, archive.cpu_seconds() - cpu


def stream_by_kafka(bootstrap: str, topic: str, table: str, limit: int, jar_files: str) -> None:
    """Bring a topic to a table as a program without Korvet does."""
    builder = SparkSession.builder.master(MASTER).config("spark.jars", jar_files)
    for name, value in DELTA.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    if limit:
        options["maxOffsetsPerTrigger"] = str(limit)
    rows = spark.readStream.format("kafka").options(**options).load().select(*COLUMNS)
    writer = rows.writeStream.format("delta").option("checkpointLocation", f"{table}-checkpoint")
    writer.trigger(availableNow=True).start(table).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
