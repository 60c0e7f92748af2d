"""How fast topics are archived: records of 100 bytes from Redis to a Delta table, by Spark on this machine.

Run as `python -m loadtest.lake.archive [--cores 2] [--records 2000000] [--rounds 3] [--here]` from the repository. For
each storage format a topic of two partitions is filled through the store, in batches of 1000, and archived by
`archive_rounds`; the first round of each format warms up Spark's workers and is not counted. Redis is the embedded
server and has no core of its own: the numbers are of one machine that does all of it. CPU time is that of all its
processes, and says more than the rate if other processes use the machine. `--here` runs the tasks in this process, one
after the other: what they cost without Spark.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from korvet.lake.archiver import Archiver, ArchiveRound, RunTasks
from korvet.lake.source import LakeSource, LakeStores
from korvet.lake.table import Lake
from korvet.lake.tasks import archive_ranges
from korvet.log.appends import BatchAppend
from korvet.spark.jobs import archive_rounds, archive_runner
from korvet.spark.session import session
from korvet.topics.types import Partition, TopicRow
from tests.support import redis_servers
from tests.support.appends import append_of, logs_of
from tests.support.batches import Record

BATCH_RECORDS = 1000
VALUE_BYTES = 100
PARTITIONS = 2
FORMATS: tuple[Literal["record", "batch"], ...] = ("batch", "record")
WARM_UP_RECORDS = 100_000


def main() -> None:
    """Measure, and print a line for each round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--records", type=int, default=2_000_000, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", action="store_true", help="without Spark")
    parser.add_argument("--formats", default=",".join(FORMATS))
    args = parser.parse_args()
    with redis_servers.embedded_server() as url, tempfile.TemporaryDirectory() as directory:
        lake = Lake(str(Path(directory) / "lake"))
        source = LakeSource(redis_url=url, lake=lake, timeout_ms=60_000)
        with _run(source, args.cores, here=args.here) as run, source.opened() as stores:
            for storage_format in FORMATS:
                if storage_format not in args.formats.split(","):
                    continue
                for number in range(args.rounds + 1):
                    records = args.records if number else WARM_UP_RECORDS
                    name = f"{storage_format}-{number}"
                    fill(stores, name, storage_format, records)
                    archives = Archiver(source, names=[name], cores=args.cores)
                    began, cpu_before = time.perf_counter(), cpu_seconds()
                    done = ArchiveRound()
                    for each in archive_rounds(archives, run):
                        assert each is not None
                        done.add(each)
                    seconds = time.perf_counter() - began
                    cpu = (cpu_seconds() - cpu_before) / records * 1e6
                    assert done.records == records, done
                    if number:
                        rate = round(records / seconds)
                        _print(storage_format, rate, cpu, done.files)
                    for _ in stores.topics.deletion.delete({name: topic_id(name)})[1]:
                        pass
                    shutil.rmtree(lake.path)


@contextlib.contextmanager
def _run(source: LakeSource, cores: int, *, here: bool) -> Iterator[RunTasks]:
    if here:
        yield partial(archive_ranges, source)
        return
    began = time.perf_counter()
    with session("loadtest", master=f"local[{cores},4]", only_schedules=True) as spark:
        print(f"Spark started in {time.perf_counter() - began:.1f} s", flush=True)
        yield archive_runner(spark, source)


def _print(storage_format: str, rate: int, cpu: float, files: int) -> None:
    print(f"{storage_format}: {rate:,} records/s, {cpu:.2f} us of CPU a record, {files} files", flush=True)


def cpu_seconds() -> float:
    """Return what this process and all below it have used: Redis, Spark's JVM and its workers."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
            # With what those used that have ended, as Spark's idle workers do.
            ticks[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    found = {os.getpid()}
    more = found
    while more:
        more = {pid for pid, parent in parents.items() if parent in more}
        found |= more
    return sum(ticks.get(pid, 0) for pid in found) / os.sysconf("SC_CLK_TCK")


def topic_id(name: str) -> str:
    """Return an id that 16 bytes have: the last character has no bits beyond them."""
    return f"{name:A>21}A"


def fill(stores: LakeStores, name: str, storage_format: Literal["record", "batch"], records: int) -> None:
    configs = {"storage.format": storage_format, "remote.storage.enable": "true"}
    stores.topics.create(TopicRow(name=name, id=topic_id(name), partitions=PARTITIONS, configs=configs))
    partitions = [
        stores.logs.partition(name, at, topic_id(name), 10, storage_format) for at in range(PARTITIONS)
    ]
    appends = [[_append(partition) for _ in range(10)] for partition in partitions]
    with logs_of(stores.source) as logs:
        for at in range(records // BATCH_RECORDS // 10 // PARTITIONS):
            for some in appends:
                for outcome in logs.append(some):
                    assert not isinstance(outcome, Exception), (at, outcome)


def _append(partition: Partition) -> BatchAppend:
    """Return a batch with values of which zstd saves about half."""
    values = [random.randbytes(VALUE_BYTES // 2).hex().encode() for _ in range(BATCH_RECORDS)]
    return append_of(
        partition, *(Record(value, b"key-%d" % at, 1_700_000_000_000 + at) for at, value in enumerate(values))
    )


if __name__ == "__main__":
    main()
