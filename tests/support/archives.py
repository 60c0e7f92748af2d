"""Topics with a cold tier and a lake beside them: what was produced, and what their tables hold.

Knows the stores that a broker writes through, and deltalake's own reader: contents are compared with what went in,
record by record. Nothing of Spark; `Topics.run` does an archiver's tasks in this process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import pytest
from deltalake import DeltaTable

from korvet.cluster.data_format import OWN
from korvet.errors import KafkaError
from korvet.lake.archiver import Archiver, ArchiveRound, EndOffsets
from korvet.lake.files import StorageOptions
from korvet.lake.source import LakeSource, LakeStores, SourceTopic
from korvet.lake.table import Lake
from korvet.lake.tasks import ArchiveTask, TaskOutcome, archive_ranges
from korvet.log.store import LogStore
from korvet.log.trim import Trim, TrimStore
from korvet.log.types import Bounds
from korvet.protocol.records.batch import LOG_APPEND_TIME_BIT
from korvet.protocol.records.record import StoredRecord
from korvet.redis.client import Redis
from korvet.redis.keys import Keys
from korvet.topics.config import TopicConfig
from korvet.topics.deletion import TopicDeletion
from korvet.topics.types import Partition, TopicRow
from tests.lake.rows import records_of
from tests.support import batches
from tests.support.appends import append_of, logs_of, put_batch
from tests.support.batches import Record
from tests.support.log_bench import Layout, configs_of

Format = Literal["record", "batch"]
FORMATS: tuple[Format, ...] = ("record", "batch")


def topic_id(number: int) -> str:
    """Return an id of 22 characters."""
    return f"{number:A>22}"


class Topics:
    """Topics of one Redis, archived to one directory or object store; everything produced is remembered."""

    def __init__(self, stores: LakeStores, logs: LogStore) -> None:
        """Produce to `logs`."""
        self.logs = logs
        self.source = stores.source
        self.lake = stores.lake.path
        self.stores = stores
        self.produced: dict[tuple[str, int], list[StoredRecord]] = defaultdict(list)

    def make(
        self, name: str, layout: Layout, *, partitions: int = 1, number: int = 0, **configs: str
    ) -> SourceTopic:
        """Make a topic with a cold tier, on which a broker may start; `configs` have `_` for `.`."""
        written = msgspec.structs.asdict(OWN).items()
        data_format = Keys(self.source.namespace).data_format
        self.stores.redis.call("HSET", data_format, *(word for field in written for word in field))
        row = TopicRow(
            name=name,
            id=topic_id(number),
            partitions=partitions,
            configs={"remote.storage.enable": "true"}
            | configs_of(layout)
            | {key.replace("_", "."): value for key, value in configs.items()},
        )
        self.stores.topics.create(row)
        return self.stores.topic(name)

    def delete(self, name: str) -> None:
        """Delete a topic, and not its table."""
        deletion = TopicDeletion(self.stores.redis, Keys(self.source.namespace))
        for _ in deletion.delete({name: self.stores.topic(name).id})[1]:
            pass

    def produce(
        self,
        partition: Partition,
        *records: Record | bytes | None,
        codec: int = batches.NONE,
        timestamp: int | None = None,
        config: TopicConfig | None = None,
    ) -> None:
        """Append a batch; `timestamp` replaces those of its records, as with LogAppendTime."""
        made = [record if isinstance(record, Record) else Record(record) for record in records]
        base_offset = self._append(partition, made, codec, timestamp, config)
        self.produced[partition.topic_id, partition.index] += [
            (
                base_offset + at,
                item.timestamp if timestamp is None else timestamp,
                item.key,
                item.value,
                list(item.headers),
            )
            for at, item in enumerate(made)
        ]

    def _append(
        self,
        partition: Partition,
        records: Sequence[Record],
        codec: int,
        timestamp: int | None,
        config: TopicConfig | None,
    ) -> int:
        if timestamp is not None and partition.format == "batch":
            data = batches.batch(*records, codec=codec)
            dated = batches.forged(data, attributes=codec | LOG_APPEND_TIME_BIT, max_timestamp=timestamp)
            return put_batch(self.stores.redis, partition, dated)
        if timestamp is not None:
            records = [record._replace(timestamp=timestamp) for record in records]
        [appended] = self.logs.append([append_of(partition, *records, codec=codec, config=config)])
        assert not isinstance(appended, KafkaError), appended
        return appended.base_offset

    def put(self, partition: Partition, *sent: bytes) -> list[tuple[int, int]]:
        """Append batches as they are, also such as do not decode; returns the first offset of each and its end."""
        result = []
        for data in sent:
            offset = put_batch(self.stores.redis, partition, data)
            result.append((offset, offset + batches.headers_of(data)[0].record_count))
        return result

    def archiver(self, *, names: Sequence[str] = (), cores: int = 1, lake: Lake | None = None) -> Archiver:
        """Return an archiver of these topics, into another lake if one is given."""
        source = msgspec.structs.replace(self.source, lake=lake or self.source.lake)
        return Archiver(source, names=names, cores=cores)

    def run(self, tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        """Do the tasks of an archiver here."""
        return archive_ranges(self.source, tasks)

    def rounds(self, archives: Archiver) -> ArchiveRound:
        """Archive what is there, to the end."""
        total, ends = ArchiveRound(), EndOffsets()
        while True:
            done = archives.round(self.run, ends)
            total.add(done)
            if not (done.more and done.moved):
                return total

    def trim(self, partition: Partition, start: int) -> None:
        """Let a log start in Redis at an offset, independent of what is archived."""
        redis = Redis(self.source.redis_url, timeout_ms=60_000, connect_timeout_ms=10_000)
        more = True
        while more:
            [outcome] = TrimStore(redis).trim([Trim(partition, start, start)])
            assert not isinstance(outcome, KafkaError), outcome
            more = outcome.more
        redis.close()

    def archived(self, topic: SourceTopic, partition: int = 0) -> list[StoredRecord]:
        """Return what the topic's table holds of a partition, in the order of offsets; repeated rows are repeated."""
        lake = self.source.lake
        table = DeltaTable(lake.uri(topic.of), storage_options=lake.storage_options).to_pyarrow_table()
        table = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
        rows = [
            record
            for part in table.to_batches()
            for record in zip(part.column(0).to_pylist(), records_of(part), strict=True)
        ]
        return [record for of, record in rows if of == partition]

    def files(self, topic: SourceTopic) -> set[str]:
        """Return the data files that lie in the topic's directory, whether the table names them or not."""
        directory = Path(self.source.lake.uri(topic.of))
        return {str(item.relative_to(directory)) for item in directory.glob("partition=*/*")}

    def files_named(self, topic: SourceTopic) -> set[str]:
        """Return the data files that the topic's table names."""
        table = self.source.lake.open(topic.of)
        return set() if table is None else {file.path for file in table.files()}

    def check(self, topic: SourceTopic) -> None:
        """Hold that each record is in the table once, as it was produced, and that Redis knows."""
        for partition in topic.partitions:
            produced = self.produced[topic.id, partition.index]
            assert self.archived(topic, partition.index) == produced
            assert self.bounds(partition).archived == (produced[-1][0] + 1 if produced else 0)

    def bounds(self, partition: Partition) -> Bounds:
        """Return where a log begins and ends, in Redis and in the lake."""
        [bounds] = self.stores.logs.bounds([partition])
        assert isinstance(bounds, Bounds), bounds
        return bounds


@contextmanager
def topics_in(url: str, lake: Path | str, storage_options: StorageOptions = None) -> Iterator[Topics]:
    """Give topics in a Redis that holds none, and a lake at `lake`."""
    source = LakeSource(redis_url=url, lake=Lake(str(lake), storage_options))
    with source.opened() as stores, logs_of(source) as logs:
        yield Topics(stores, logs)


@pytest.fixture
def topics(redis_url: str, tmp_path: Path) -> Iterator[Topics]:
    """Give a helper that creates topics and archives them."""
    with topics_in(redis_url, tmp_path / "lake") as result:
        yield result


def archive(topics: Topics) -> None:
    """Archive all there is."""
    done = topics.archiver().round(topics.run)
    assert (done.failures, done.more) == ([], False), done


def trim(topics: Topics, partition: Partition) -> None:
    """Let Redis hold nothing of what is archived any more."""
    start = topics.bounds(partition).archived
    topics.trim(partition, start)
    assert topics.bounds(partition).local_start == start


def all_kinds(topics: Topics, topic: SourceTopic) -> None:
    """Produce records of every shape, in every codec, to every partition."""
    for partition in topic.partitions:
        for codec in batches.CODECS:
            topics.produce(
                partition,
                Record(b"v%d" % codec, b"k", 1_700_000_000_000 + codec),
                Record(None, None, 1_700_000_000_001),
                Record(b"", b"", 0, [("a", b"1"), ("a", None), ("b", b"")]),
                Record(bytes(range(256)) * 20, b"\xff\x00", -1, [("\u00e4", b"\xff")]),
                codec=codec,
            )
        topics.produce(partition, *(b"value %d" % at for at in range(1500)))


def task_of(partition: Partition, end: int) -> ArchiveTask:
    """Return the task to archive a log from its beginning to an offset."""
    return ArchiveTask(partition=partition, first=0, end=end, bytes=0, last=True, log_append_time=False)


def orders(topics: Topics) -> SourceTopic:
    """Make a topic with two partitions, not archived; one of them holds two batches."""
    topic = topics.make("orders", "batch", partitions=2)
    topics.produce(topic.partitions[0], b"1", b"2")
    topics.produce(topic.partitions[0], b"3")
    return topic


class _Sourced(Protocol):
    source: LakeSource


def where(topics: _Sourced) -> tuple[str, ...]:
    """Return the flags that lead commands of the lake to these topics."""
    return "--redis-url", topics.source.redis_url, "--lake", topics.source.lake.path
