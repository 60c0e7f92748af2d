"""What the lake costs: records into Arrow and Parquet, and back to a consumer from an archive of many files.

Run as `python loadtest/micro/lake.py [--files 240] [--rows 20000] [--bytes 100]` from the repository. Prints CPU time
per record (of this process), and the distribution of cold fetches of 1 MiB at random offsets (wall time), the table
opened beforehand.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from korvet.lake.decoding import to_arrow
from korvet.lake.files import filesystem, write_files
from korvet.lake.reader import LakeReader, ReadLimits, ReadPosition
from korvet.lake.table import Advance, ArchiveTable, Lake, LakeTopic
from tests.lake.rows import records_to_arrow
from tests.support.appends import entry_of
from tests.support.log_replies import read, read_batches

BATCH_RECORDS = 1000
BATCHES_AT_ONCE = 20
DECOMPRESSED_MAX = 1 << 30
OF = LakeTopic("micro", "AAAAAAAAAAAAAAAAAAAAAA")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=240)
    parser.add_argument("--rows", type=int, default=20_000, help="of each file")
    parser.add_argument("--bytes", type=int, default=100, help="of a value")
    args = parser.parse_args()
    batches = [_batch(args.bytes) for _ in range(BATCHES_AT_ONCE)]
    count = BATCHES_AT_ONCE * BATCH_RECORDS
    found = read_batches([(at * BATCH_RECORDS, each) for at, each in enumerate(batches)], DECOMPRESSED_MAX)
    records = found.records()
    entries = [(b"0-%d" % (each[0] + 1), entry_of(each)) for each in records]
    _print("batches to Arrow", count, lambda: to_arrow(0, found))
    _print("batches to records", count, found.records)
    single = read(entries, 0)
    _print("records to Arrow", count, lambda: to_arrow(0, single))
    with tempfile.TemporaryDirectory() as directory:
        lake = Lake(directory)
        table = lake.create(OF)
        files = filesystem(table.uri)
        rows = to_arrow(0, found)
        _print("Arrow to Parquet", count, lambda: write_files(files, 0, [rows], 0))
        again = [(at, *each[1:]) for at, each in enumerate(records[:BATCH_RECORDS] * BATCHES_AT_ONCE)]
        repeated = records_to_arrow(0, again)
        _print("  values that repeat", count, lambda: write_files(files, 0, [repeated], 0))
        parts = [rows.slice(at, 2000) for at in range(0, count, 2000)]
        _print("  as read from Redis", count, lambda: write_files(files, 0, parts, 0))
        archived = _fill(table, args.files, args.rows, args.bytes)
        _cold_fetches(lake, archived)


def _batch(value_bytes: int) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for at in range(BATCH_RECORDS):
        builder.append(at, 1_700_000_000_000 + at, b"key-%d" % at, _value(value_bytes), [])
    return bytes(builder.build())


def _value(size: int) -> bytes:
    """Return bytes of which zstd saves about half."""
    return random.randbytes(size // 2).hex().encode()


def _print(what: str, count: int, work: Callable[[], object]) -> None:
    times = []
    for _ in range(9):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    print(f"{what:24} {statistics.median(times) / count * 1e6:6.2f} us a record")


def _fill(table: ArchiveTable, files: int, rows: int, value_bytes: int) -> int:
    """Archive many files by one commit; returns how far."""
    written = []
    for at in range(files):
        batches = [(at * rows + first, _batch(value_bytes)) for first in range(0, rows, BATCH_RECORDS)]
        found = to_arrow(0, read_batches(batches, DECOMPRESSED_MAX))
        written += write_files(filesystem(table.uri), 0, [found], 0)
    table.append(written, [Advance(0, 0, files * rows)])
    return files * rows


def _cold_fetches(lake: Lake, archived: int) -> None:
    reader = LakeReader(lake)
    start = time.perf_counter()
    reader.read(ReadPosition(*OF, 0, 0, archived), ReadLimits(1 << 20))
    print(f"{'first fetch':24} {(time.perf_counter() - start) * 1e3:6.1f} ms, opening the table")
    for name, known in (("fetch, new footer", False), ("fetch, known footer", True)):
        times = []
        for _ in range(100):
            offset = random.randrange(archived - 20_000)
            if not known:
                reader = _opened(lake, archived)
            start = time.perf_counter()
            reader.read(ReadPosition(*OF, 0, offset, archived), ReadLimits(1 << 20))
            times.append((time.perf_counter() - start) * 1e3)
        times.sort()
        print(f"{name:24} p50 {times[50]:6.1f} ms, p99 {times[98]:6.1f} ms for 1 MiB")
        if not known:
            for offset in range(0, archived, 10_000):
                reader.read(ReadPosition(*OF, 0, offset, archived), ReadLimits(1))


def _opened(lake: Lake, archived: int) -> LakeReader:
    reader = LakeReader(lake)
    reader.read(ReadPosition(*OF, 0, archived, archived), ReadLimits(1))
    return reader


if __name__ == "__main__":
    main()
