"""What a pipeline costs beside a program with Spark's own Kafka source, start included.

A topic of two partitions in format `batch` has records of 100 bytes. Both are processes of their own with two cores, as
users start them. They bring the columns of Spark's Kafka source into a new Delta table and end (availableNow): all of a
topic in one batch (`large`), or little more than nothing in each of many (`small`). The program reads a broker with one
worker, the pipeline reads Redis. CPU is that of all processes, Redis, broker, Java and Python included, from the start
of the process to the end of the last one that it has started. As a program this module is the pipeline's peer.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from korvet.lake.source import LakeSource
from korvet.lake.table import Lake
from loadtest import harness
from loadtest.lake.fill import RECORDS_MIN, fill
from tests.jvm.spark import jars
from tests.support import processes, redis_servers
from tests.support.broker import korvet_broker

MASTER = "local[2]"
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
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


def measure(records: int, batches: int, rounds: int) -> None:
    """Print the medians of all rounds, and those of the ratios in each round to Spark's own source."""
    works = (Work("large", records, 0), Work("small", RECORDS_MIN, -(-RECORDS_MIN // batches)))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(redis_servers.embedded_server())
        source = LakeSource(redis_url=url, lake=Lake(str(directory / "lake")), timeout_ms=60_000)
        Path(source.lake.path).mkdir()
        broker = stack.enter_context(korvet_broker(directory / "broker", "--redis-url", url, workers=1))
        with source.opened() as stores:
            for work in works:
                fill(stores, work.name, "batch", work.records)
        rows: list[list[str | float]] = []
        for work in works:
            rows += _compare(work, source, broker.bootstrap, directory, rounds)
    print(harness.table(("batches", "peer", "s", "s CPU", "CPU ratio of each round"), rows), flush=True)


def _compare(
    work: Work, source: LakeSource, bootstrap: str, directory: Path, rounds: int
) -> list[list[str | float]]:
    figures: dict[str, list[tuple[float, float]]] = {"pipeline": [], "kafka": []}
    for number in range(rounds):
        for name in sorted(figures, reverse=bool(number % 2)):
            table = directory / f"{name}-{work.name}-{number}"
            command = _pipeline(work, source, table) if name == "pipeline" else _kafka(work, bootstrap, table)
            figures[name].append(run(command))
            rows = DeltaTable(table).to_pyarrow_dataset().count_rows()
            assert rows == work.records, (name, rows)
            print(f"{work.name} {name}: {figures[name][-1]}", file=sys.stderr, flush=True)
    ratios = [one[1] / other[1] for one, other in zip(figures["pipeline"], figures["kafka"], strict=True)]
    texts = {"pipeline": " ".join(f"{ratio:.2f}" for ratio in ratios), "kafka": ""}
    return [
        [work.name, name, *(statistics.median(column) for column in zip(*values, strict=True)), texts[name]]
        for name, values in figures.items()
    ]


def _pipeline(work: Work, source: LakeSource, table: Path) -> list[str]:
    """Return the command of a pipeline."""
    file = table.with_suffix(".toml")
    text = PIPELINE.format(
        name=table.name,
        topic=work.name,
        limit=f"max_records_per_trigger = {work.limit}" if work.limit else "",
        columns=", ".join(COLUMNS),
        table=table,
        master=MASTER,
        jars=_jars(),
    )
    file.write_text(text)
    place = ("--redis-url", source.redis_url, "--lake", source.lake.path)
    return [sys.executable, "-m", "korvet", "lake", "pipeline", "run", str(file), *place]


def _kafka(work: Work, bootstrap: str, table: Path) -> list[str]:
    """Return the command of a program with Spark's own source."""
    arguments = (bootstrap, work.name, str(table), str(work.limit), _jars())
    return [sys.executable, "-m", "loadtest.lake.streams", *arguments]


def _jars() -> str:
    return ",".join(map(str, jars.prepare()))


def run(command: Sequence[str]) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of a command and of all that it has started, as long as that may last."""
    # Java outlives the process that has started it: this process becomes its parent, and is charged with its time.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    before, cpu = harness.tree(os.getpid()), harness.cpu(os.getpid())
    began = time.perf_counter()
    subprocess.run(command, check=True)
    seconds = time.perf_counter() - began
    processes.wait_until(
        lambda: harness.tree(os.getpid()).keys() <= before.keys(), "all that was started has ended"
    )
    # The time of an ended process is its parent's once it was waited for. Java's threads may take a while longer.
    for pid in _children() - before.keys():
        os.waitpid(pid, 0)
    return seconds, harness.cpu(os.getpid()).since(cpu).total


def _children() -> set[int]:
    """Return the children of this process, ended ones too."""
    lists = (file.read_text() for file in Path("/proc/self/task").glob("*/children"))
    return {int(pid) for text in lists for pid in text.split()}


def stream_by_kafka(bootstrap: str, topic: str, table: str, limit: str, jar_files: str) -> None:
    """Bring a topic to a table as a program without Korvet does."""
    builder = SparkSession.builder.master(MASTER).config("spark.jars", jar_files)
    for name, value in DELTA.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    if limit != "0":
        options["maxOffsetsPerTrigger"] = limit
    rows = spark.readStream.format("kafka").options(**options).load().select(*COLUMNS)
    writer = rows.writeStream.format("delta").option("checkpointLocation", f"{table}-checkpoint")
    writer.trigger(availableNow=True).start(table).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    stream_by_kafka(*sys.argv[1:])
