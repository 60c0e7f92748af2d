"""A topic with a remote tier in a real Redis, and its lake: appended to, archived, trimmed and read in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from korvet.config.settings import Settings
from korvet.lake.archiver import ArchiveRound
from korvet.lake.files import TableFile
from korvet.lake.scan import PartReader, ScanPart, ScanRange, scan_parts, snapshots
from korvet.lake.schema import OFFSET, VALUE
from korvet.lake.source import LakeSource, SourceTopic
from korvet.lake.table import ArchiveTable
from korvet.log.types import Bounds
from korvet.topics.registry import TopicSpec
from korvet.topics.types import Partition
from tests.support.archives import Topics
from tests.support.batches import Record
from tests.support.domain import Domain, domain
from tests.support.log_bench import Layout, configs_of

TOPIC = "orders"


class Both:
    """The topic `orders` with one partition more than are written to, by a worker's own code."""

    def __init__(self, worker: Domain, topics: Topics) -> None:
        self.worker = worker
        self.source = topics.source
        self.stores = topics.stores
        self.lake = topics.source.lake
        self.archiver = topics.archiver()
        self.topics = topics

    @property
    def topic(self) -> SourceTopic:
        return self.stores.topic(TOPIC)

    @property
    def partition(self) -> Partition:
        return self.topic.partitions[0]

    @property
    def bounds(self) -> Bounds:
        return self.topics.bounds(self.partition)

    def append(self, *timestamps: int) -> int:
        """Append a batch of one record for each time, whose value is that; returns its first offset."""
        records = [Record(b"%d" % at, b"k", at) for at in timestamps]
        return self.worker.append(TOPIC, *records)

    def archive(self) -> None:
        """Archive all there is, as one file."""
        assert self.round().failures == []

    def round(self) -> ArchiveRound:
        """Archive what there is."""
        return self.archiver.round(self.topics.run)

    def archive_batches(self, *batches: tuple[int, ...]) -> list[int]:
        """Append batches and archive each as a file of its own; returns their first offsets."""
        firsts = []
        for batch in batches:
            firsts.append(self.append(*batch))
            self.archive()
        return firsts

    def trim(self, start: int) -> None:
        """Let Redis hold nothing below an offset any more, as local retention does."""
        self.topics.trim(self.partition, start)

    def rows(self, parts: Sequence[ScanPart]) -> list[tuple[int, bytes]]:
        """Return offsets and values, part by part."""
        reader = PartReader(self.stores)
        return [
            row
            for part in parts
            for rows in reader.rows(part)
            for row in zip(rows.column(OFFSET).to_pylist(), rows.column(VALUE).to_pylist(), strict=True)
        ]

    def scanned(self) -> list[tuple[int, bytes]]:
        """Return what a scan of both tiers finds."""
        log = snapshots(self.stores, self.topic)[0]
        return self.rows(scan_parts(self.stores, log, ScanRange(log.start, log.end)))

    @property
    def table(self) -> ArchiveTable:
        result = self.lake.open(self.topic.of)
        assert result is not None
        return result

    def files(self) -> list[TableFile]:
        return self.table.files()

    def path_of(self, file: str) -> Path:
        return Path(self.lake.path) / TOPIC / self.topic.id / file


@contextlib.contextmanager
def both(
    redis_url: str, lake: Path, layout: Layout = "batch", configs: dict[str, str] | None = None
) -> Iterator[Both]:
    """Make the topic; `configs` are more of its own."""
    settings = Settings(lake_path=str(lake))
    source = LakeSource.of(settings, redis_url)
    with domain(redis_url, settings) as worker, source.opened() as stores:
        wanted = {**configs_of(layout), "remote.storage.enable": "true", **(configs or {})}
        worker.topics.create(TopicSpec(name=TOPIC, partitions=2, configs=wanted))
        yield Both(worker, Topics(stores, worker.log))
