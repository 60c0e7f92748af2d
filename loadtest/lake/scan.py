"""How fast queries read an archived topic, beside Delta Lake's own scan of the same table on the same session.

Run as `python -m loadtest.lake.scan [--cores 2] [--records 2000000] [--rounds 5] [--hot]` from the repository. A topic
of two partitions in format `batch` is filled with records of 100 bytes and archived. Each query is run by
`korvet.spark.query`, as `korvet lake query` does, and over the table with the format `delta`, in turns; the first round
warms up and is not counted. Printed are the medians of each and their ratio. `--hot` leaves the records in Redis: then
there is nothing beside it. Needs the jars of tests/jvm/spark.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

from pyspark.sql import SparkSession

from korvet.lake.archiver import Archiver
from korvet.lake.source import LakeSource
from korvet.lake.table import Lake
from korvet.lake.tasks import archive_ranges
from korvet.spark.jobs import archive_rounds
from korvet.spark.query import frame_of
from korvet.spark.session import session
from loadtest.lake import streams
from loadtest.lake.archive import fill
from tests.jvm.spark import jars
from tests.support import redis_servers

TOPIC = "scanned"
QUERIES = (
    "sum(offset)",
    "sum(length(value))",
    "count(*)",
    "sum(length(key)), max(timestamp), sum(length(value))",
)


def main() -> None:
    """Measure, and print a line for each query."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hot", action="store_true", help="read Redis")
    args = parser.parse_args()
    settings = streams.DELTA | {"spark.driver.extraClassPath": ":".join(map(str, jars.prepare()))}
    with (
        redis_servers.embedded_server() as url,
        tempfile.TemporaryDirectory() as directory,
        session("loadtest", master=f"local[{args.cores}]", configs=settings) as spark,
    ):
        source = LakeSource(redis_url=url, lake=Lake(directory), timeout_ms=60_000)
        with source.opened() as stores:
            fill(stores, TOPIC, "batch", args.records)
            of = stores.topic(TOPIC).of
        if not args.hot:
            archiver = Archiver(source, names=[TOPIC], cores=args.cores)
            for _ in archive_rounds(archiver, partial(archive_ranges, source)):
                pass
            spark.read.format("delta").load(source.lake.uri(of)).createOrReplaceTempView("beside")
        for query in QUERIES:
            _compare(spark, source, query, args)


def _compare(spark: SparkSession, source: LakeSource, query: str, args: argparse.Namespace) -> None:
    ways: dict[str, Callable[[], object]] = {
        "korvet": lambda: frame_of(spark, source, f"SELECT {query} FROM {TOPIC}").collect()  # noqa: S608 - our own
    }
    if not args.hot:
        ways["delta"] = lambda: spark.sql(f"SELECT {query} FROM beside").collect()  # noqa: S608 - our own
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(args.rounds + 1):
        results = set()
        for name, run in ways.items():
            began = time.perf_counter()
            results.add(str(run()))
            if number:
                seconds[name].append(time.perf_counter() - began)
        assert len(results) == 1, results
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    text = ", ".join(f"{name} {each:.2f} s" for name, each in medians.items())
    ratio = f", {medians['korvet'] / medians['delta']:.2f} x" if "delta" in medians else ""
    print(f"{query}: {text}{ratio}", flush=True)


if __name__ == "__main__":
    main()
