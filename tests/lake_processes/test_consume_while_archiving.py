"""A consumer of a million records, which are archived, trimmed and compacted while it reads them from the first on."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from korvet.lake.table import ArchiveTable, Lake
from tests.support import processes
from tests.support.broker import korvet_broker

TOPIC = "orders"
VALUE = b"v" * 90
WAIT_S = 200.0
PIECES = 5
CONFIGS = {
    "storage.compression": "none",
    "remote.storage.enable": "true",
    # A fraction of what is produced: most of it is soon in the lake only.
    "local.retention.bytes": str(4 << 20),
}


@contextlib.contextmanager
def upkeep(redis_url: str, lake: Lake, directory: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of the lake again and again until the block ends."""
    where = ("--redis-url", redis_url, "--lake", lake.path, "--interval", "0.2")
    line = [sys.executable, "-m", "korvet", "lake", *command, *where]
    with (directory / f"{command[0]}.err").open("wb") as err:
        process = subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=err, preexec_fn=processes.die_with_tests
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(WAIT_S)  # Spark ends the job that it has begun


def produce(bootstrap: str, first: int, stop: int) -> None:
    """Produce records whose values tell their numbers."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.num.messages": 1000,
            "enable.idempotence": True,
        }
    )
    for number in range(first, stop):
        while True:
            try:
                producer.produce(TOPIC, b"%d %b" % (number, VALUE))
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(WAIT_S) == 0


def consume(bootstrap: str, records: int) -> Iterator[tuple[int, int]]:
    """Yield offset and number of every record, from the first one on."""
    configs = {"bootstrap.servers": bootstrap, "group.id": "all", "auto.offset.reset": "error"}
    consumer = Consumer(configs | {"enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    deadline = time.monotonic() + WAIT_S
    count = 0
    while count < records:
        assert time.monotonic() < deadline, f"only {count} records came"
        for message in consumer.consume(10_000, 1.0):
            assert message.error() is None, message.error()
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert value is not None
            yield offset, int(value.split()[0])
            count += 1
    consumer.close()


def state(url: str, field: str) -> int:
    with redis.Redis.from_url(url) as client:
        found = client.hget(f"{{korvet:{TOPIC}:0}}:state", field)
    return int(found or 0)


def table_of(lake: Lake) -> ArchiveTable:
    [of] = lake.tables()
    table = lake.open(of)
    assert table is not None
    return table


def written(lake: Lake) -> list[Path]:
    """Return all data files, with those that were merged: these are deleted hours later."""
    [of] = lake.tables()
    return list(Path(lake.path, *of, "partition=0").iterdir())


@pytest.mark.timeout(2 * WAIT_S)
@pytest.mark.parametrize(("storage_format", "records"), [("batch", 1_000_000), ("record", 200_000)])
def test_a_consumer_gets_every_record_once_while_the_lake_works(
    redis_url: str, tmp_path: Path, storage_format: str, records: int
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    settings = (f"lake.path={lake.path}", "log.retention.check.interval.ms=200")
    alone = ("lake.interval.ms=0", "lake.upkeep.interval.ms=0")
    flags = [word for each in (*settings, *alone) for word in ("--set", each)]
    with (
        korvet_broker(tmp_path, "--redis-url", redis_url, *flags) as broker,
        contextlib.ExitStack() as running,
    ):
        configs = CONFIGS | {"storage.format": storage_format}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        [made] = admin.create_topics([NewTopic(TOPIC, 1, 1, config=configs)]).values()
        made.result()
        commands = [("archive", "--master", "local[2]"), ("compact",), ("expire",)]
        works = [running.enter_context(upkeep(redis_url, lake, tmp_path, *command)) for command in commands]
        produce(broker.bootstrap, 0, records // 2)
        processes.wait_until(lambda: state(redis_url, "start"), "trimming", WAIT_S)
        reading = consume(broker.bootstrap, records)
        got = [next(reading) for _ in range(records // 4)]
        # In pieces that are archived one by one: files of about the same size, which are merged.
        size = records // 2 // PIECES
        for first in range(records // 2, records, size):
            produce(broker.bootstrap, first, first + size)
            ahead = state(redis_url, "next")
            processes.wait_until(lambda: state(redis_url, "archived") >= ahead, "a piece is archived", WAIT_S)  # noqa: B023 - called before the loop goes on
        got += reading
        assert [process.poll() for process in works] == [None, None, None]
        end = state(redis_url, "next")
        processes.wait_until(lambda: table_of(lake).next_offset(0) == end, "the archive's end", WAIT_S)
        processes.wait_until(lambda: len(table_of(lake).files()) < len(written(lake)), "compaction", WAIT_S)
    offsets, numbers = zip(*got, strict=True)
    assert numbers == tuple(range(records))
    assert all(one < other for one, other in pairwise(offsets))
    assert (storage_format, offsets == numbers) in [("batch", True), ("record", False)]
    assert sum(file.rows for file in table_of(lake).files()) == records
