"""Iceberg tables of the lake under Spark, with Iceberg's own runtime and its catalog over JDBC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from korvet.lake.compaction import compact
from korvet.lake.files import filesystem
from korvet.lake.schema import SCHEMA
from korvet.lake.table import Advance, Lake, LakeTopic
from tests.jvm.spark import jars
from tests.lake.archives import OF, append, files, opened, record, wait_for_a_later_time, write_file
from tests.support.iceberg import check, loaded, tables

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
# `make nightly` has installed it.
SPARK = Path(sys.prefix) / "iceberg"
AGAIN = LakeTopic(OF.topic, "BBBBBBBBBBBBBBBBBBBBBB")
TABLE = "korvet.korvet.orders"
SKIPPING = "partition = 1 and offset between 7 and 11 and timestamp > timestamp '2023-11-14 22:13:20.1234'"
COLUMNS = (
    "partition, offset, unix_micros(timestamp), timestamp_type, key, value, headers, timestamp_ms, attributes, "
    "producer_id, producer_epoch"
)


def rows(partition: int, first: int, stop: int) -> list[dict[str, Any]]:
    """Return rows of all kinds, as SCHEMA has them."""
    headers = [{"key": "a", "value": b"1"}, {"key": "\u00e4", "value": None}]
    return [
        {
            "partition": partition,
            "offset": at,
            "timestamp": None if at % 5 == 0 else 1_700_000_000_123_456 + at,
            "timestamp_type": at % 2,
            "key": (None, b"", b"\xff\x00")[at % 3],
            "value": None if at % 4 == 0 else b"value %d" % at,
            "headers": (None, [], headers)[at % 3],
            "timestamp_ms": 2**62 if at % 5 == 0 else None,
            "attributes": -32768 + at if at % 2 else None,
            "producer_id": 2**62 + at if at % 2 else None,
            "producer_epoch": 32767 - at if at % 2 else None,
        }
        for at in range(first, stop)
    ]


def archive(lake: Lake, count: int) -> list[dict[str, Any]]:
    """Archive `count` more rows of both partitions, as one file each; returns them."""
    table = lake.create(OF)
    written = []
    for partition in range(2):
        first = table.next_offset(partition) or 0
        made = rows(partition, first, first + count)
        file = write_file(
            filesystem(table.uri), partition, [pa.RecordBatch.from_pylist(made, SCHEMA)], now_ms=7
        )
        assert file is not None
        table.append([file], [Advance(partition, first, first + count)])
        written += made
    return written


def plain(value: Any) -> Any:
    """Return a value as the program writes it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [[element["key"], plain(element["value"])] for element in value]
    return value


def answers(lake: Lake, queries: list[str]) -> list[Any]:
    result = ",".join(map(str, jars.prepare(HERE)))
    program = [sys.executable, "-m", "tests.jvm.iceberg.queries", result]
    done = subprocess.run(
        [*program, str(Path(lake.path).parent / "catalog.db")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{SPARK}:{ROOT}", "SPARK_HOME": str(SPARK / "pyspark")},
        input=json.dumps(queries),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["version"].startswith("4.1.")
    found_answers: list[Any] = answer["answers"]
    return found_answers


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def test_spark_reads_what_was_archived(lake: Lake) -> None:
    written = archive(lake, 30)
    tables(lake).sync(OF)
    written += archive(lake, 10)
    tables(lake).sync(OF)
    assert all(step.done for step in compact(lake, OF))
    written += archive(lake, 5)
    # The rows of one partition that are above this have expired.
    gone = [file for file in files(lake) if file.first_offset == 40 and file.partition]
    opened(lake).remove(gone, now_ms=time.time_ns() // 1_000_000)
    tables(lake).sync(OF)
    wait_for_a_later_time(lake)
    append(lake, [record(3)], 4, of=AGAIN)
    tables(lake).sync(AGAIN)
    former = f"korvet.korvet.`orders@{OF.topic_id}`"
    first = loaded(lake, f"orders@{OF.topic_id}").snapshots()[0].snapshot_id
    everything, skipped, old, streamed, again, expired, purged, still = answers(
        lake,
        [
            f"select {COLUMNS} from {former} order by partition, offset",
            f"select offset from {former} where {SKIPPING} order by offset",
            f"select count(*) from {former} version as of {first}",
            f"stream {former}",
            f"select offset from {TABLE}",
            "call korvet.system.expire_snapshots('korvet.korvet.orders')",
            f"drop table {former} purge",
            f"select count(*) from {former}",
        ],
    )
    left = [file for file in written if not (file["partition"] and file["offset"] >= 40)]
    left.sort(key=lambda epoch_start: (epoch_start["partition"], epoch_start["offset"]))
    assert everything == [[plain(value) for value in epoch_start.values()] for epoch_start in left]
    assert skipped == [[7], [8], [9], [11]]
    assert old == [[60]]
    # Each row once, whatever was compacted; what has expired a stream has seen.
    assert streamed == sorted([file["partition"], file["offset"]] for file in written)
    assert again == [[3]]
    # Files belong to Delta's table.
    assert "GC is disabled" in expired
    assert "GC is disabled" in purged
    assert still == [[len(left)]]
    check(lake, OF, f"orders@{OF.topic_id}")
