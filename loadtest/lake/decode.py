"""How fast records become columns on Spark, beside its own from_json: JSON of five fields, from Parquet.

Run as `python -m loadtest.lake.decode [--records 1000000] [--rounds 3] [--cores 2]` from the repository. Each round
reads the same files by each way in turn, keeps what decodes, and writes its columns nowhere. `from_json` is Spark's
alone, in which wrong types become NULL; `decode` is what a pipeline does. CPU time is that of Java: it says more than
the rate if other processes use the machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from korvet.spark.pipelines.decoding import DecoderState, decode
from korvet.spark.pipelines.spec import Decoding, SourceSpec
from korvet.spark.session import session
from tests.support.processes import descendants

SCHEMA = "id BIGINT, amount DOUBLE, customer STRING, paid BOOLEAN, at TIMESTAMP"
_RECORD = (
    "CAST(to_json(named_struct('id', id, 'amount', id * 0.25D, 'customer', concat('customer-', id % 1000),"
    " 'paid', id % 3 = 0, 'at', '2026-01-01T00:00:00Z')) AS BINARY)"
)


class _NoPins:
    """Nothing is pinned: the schema is given."""

    def read(self, name: str) -> bytes | None:  # noqa: ARG002 - as the others have it
        return None

    def write(self, name: str, data: bytes) -> None:
        raise AssertionError(name, data)


def main() -> None:
    """Measure, and print a line for each way and round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        session("loadtest", master=f"local[{args.cores}]") as spark,
    ):
        files = f"{directory}/records"
        _records(spark, args.records).write.parquet(files)
        ways: Mapping[str, Callable[[DataFrame], DataFrame]] = {
            "from_json": _from_json,
            "decode": _decode,
        }
        for _ in range(args.rounds):
            for name, way in ways.items():
                rows = way(spark.read.parquet(files))
                began, cpu_before = time.perf_counter(), _cpu_seconds()
                rows.write.format("noop").mode("overwrite").save()
                seconds, cpu = time.perf_counter() - began, _cpu_seconds() - cpu_before
                print(
                    f"{name:28} {args.records / seconds:12,.0f} records/s"
                    f" {cpu / args.records * 1e6:8.2f} us CPU a record"
                )


def _records(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 4).selectExpr(
        "CAST(NULL AS BINARY) key",
        f"{_RECORD} value",
        "'orders' topic",
        "0 partition",
        "id offset",
        "CAST('2026-01-01' AS TIMESTAMP) timestamp",
        "0 timestampType",
        "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) headers",
    )


def _from_json(records: DataFrame) -> DataFrame:
    value = f.from_json(f.col("value").cast("string"), SCHEMA).alias("value")
    return records.select("offset", value).select("offset", "value.*")


def _decode(records: DataFrame) -> DataFrame:
    source = SourceSpec(name="orders", value=Decoding(format="json", schema=SCHEMA))
    decoded = decode(records, source, DecoderState(_NoPins(), lambda _: records))
    return decoded.where("_error IS NULL").select("offset", "value.*")


def _cpu_seconds() -> float:
    """Return the CPU time of the processes that this one has started."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in descendants(os.getpid())]
    return sum(sum(map(int, stat.rpartition(")")[2].split()[11:15])) for stat in stats) / ticks


if __name__ == "__main__":
    main()
