"""How fast topics are written to from the lake and from Spark: records of 100 bytes, replayed, and by the sink.

Run as `python -m loadtest.lake.produce [--records 1000000] [--rounds 3] [--cores 2] [--cold] [--no-spark]` from the
repository. A topic of two partitions is filled through the store and replayed into another one, both in format `batch`,
through a broker of one worker; `--cold` archives it first and lets Redis forget it. Then Spark reads it, keeps it, and
writes it with the format `korvet`. All of it is on one machine. CPU time is that of the process that replays, and for
Spark that of all processes but the broker's: it says more than the rate if other processes use the machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from korvet.lake.replay import RecordRate
from korvet.lake.replay_state import ReplaySpec
from korvet.lake.source import SourceTopic
from korvet.spark.session import session
from tests.support.batches import Record
from tests.support.processes import descendants
from tests.support.replaying import Stage, stage_in
from tests.support.trimming import archive, trim

BATCH_RECORDS = 1000
VALUE_BYTES = 100
PARTITIONS = 2


def main() -> None:
    """Measure, and print a line for each round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--cold", action="store_true", help="read from the lake")
    parser.add_argument("--no-spark", action="store_true", help="only replay")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, stage_in(Path(directory)) as stage:
        source = _filled(stage, args.records)
        if args.cold:
            archive(stage.topics)
            for partition in source.partitions:
                trim(stage.topics, partition)
        for sharing in ("keep", "hash"):
            for _ in range(args.rounds):
                target = stage.make("batch", PARTITIONS)
                spec = ReplaySpec(source=source.name, target=target.name, partitioning=sharing)
                replay = stage.replay(spec)
                _measured(
                    f"replay, {sharing}",
                    args.records,
                    partial(replay.run, RecordRate(None), 0, lambda *_: None),
                )
        if not args.no_spark:
            _sink(stage, source, args)


def _filled(stage: Stage, records: int) -> SourceTopic:
    topic = stage.make("batch", PARTITIONS)
    for first in range(0, records, BATCH_RECORDS):
        batch = [
            Record(b"%010d" % at * (VALUE_BYTES // 10), b"key-%d" % at)
            for at in range(first, first + BATCH_RECORDS)
        ]
        stage.topics.produce(topic.partitions[first // BATCH_RECORDS % PARTITIONS], *batch)
        stage.topics.produced.clear()
    return topic


def _sink(stage: Stage, source: SourceTopic, args: argparse.Namespace) -> None:
    with session("loadtest", master=f"local[{args.cores}]") as spark:
        options = {
            "redis.url": stage.topics.source.redis_url,
            "lake": stage.topics.lake,
            "topic": source.name,
        }
        rows = (
            spark.read.format("korvet").options(**options).load().select("key", "value", "partition").cache()
        )
        assert rows.count() == args.records
        for columns in (["key", "value", "partition"], ["key", "value"]):
            for _ in range(args.rounds):
                writer = (
                    rows.select(*columns).write.format("korvet").option("topic", stage.make("batch", 2).name)
                )
                writer = writer.option("bootstrap.servers", stage.broker.bootstrap).mode("append")
                _measured(f"sink, {' '.join(columns)}", args.records, writer.save, without=stage.broker.pid)


def _measured(what: str, records: int, work: Callable[[], None], without: int | None = None) -> None:
    """Do the work and print how long it took, with the CPU time of this process, or of all but one and its children."""
    began, cpu_before = time.perf_counter(), _cpu_seconds(without)
    work()
    seconds, cpu = time.perf_counter() - began, _cpu_seconds(without) - cpu_before
    print(f"{what:28} {records / seconds:12,.0f} records/s {cpu / records * 1e6:8.2f} us CPU a record")


def _cpu_seconds(without: int | None) -> float:
    """Return the CPU time of this process, or with its children's, living or not, but for one and its own."""
    if without is None:
        return time.process_time()
    others = descendants(os.getpid()) - descendants(without) - {without}
    ticks = os.sysconf("SC_CLK_TCK")
    total = time.process_time()
    for pid in others:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, stat[11:15])) / ticks
    return total


if __name__ == "__main__":
    main()
