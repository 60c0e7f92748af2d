"""A real broker with topics to be replayed, and what has come of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from korvet.admin.client import AdminClient
from korvet.admin.topics import NewTopic
from korvet.admin.types import settled
from korvet.lake.replay import RecordRate, Replay
from korvet.lake.replay_state import ReplaySpec
from korvet.lake.scan import PartReader, ScanRange, scan_parts, snapshots
from korvet.lake.source import SourceTopic
from korvet.protocol.records.record import StoredRecord
from korvet.redis.url import socket_of
from tests.lake.rows import records_of
from tests.support.archives import Format, Topics, all_kinds, archive, topics_in, trim
from tests.support.broker import Broker, korvet_broker

Bare = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Timestamp, key, value and headers."""

_NUMBERS = itertools.count(1)


class Stage:
    """A broker and its topics; `admin` is a client of it."""

    def __init__(self, broker: Broker, topics: Topics, admin: AdminClient) -> None:
        self.broker = broker
        self.topics = topics
        self.admin = admin

    def make(self, storage_format: Format = "batch", partitions: int = 1, **configs: str) -> SourceTopic:
        """Make a topic of a name that no other test uses."""
        name = f"topic-{next(_NUMBERS)}"
        given = {key.replace("_", "."): value for key, value in configs.items()}
        wanted = {"remote.storage.enable": "true", "storage.format": storage_format} | given
        settled(self.admin.topics.create([NewTopic(name, partitions, configs=wanted)]))
        return self.topics.stores.topic(name)

    def source(self, storage_format: Format, partitions: int = 2) -> SourceTopic:
        """Make a topic with records in the lake only, in both tiers, and in Redis only."""
        topic = self.make(storage_format, partitions)
        for tiers in ("lake", "both", "redis"):
            all_kinds(self.topics, topic)
            if tiers != "redis":
                archive(self.topics)
            if tiers == "lake":
                for partition in topic.partitions:
                    trim(self.topics, partition)
        return topic

    def replay(self, spec: ReplaySpec, name: str | None = None, *, transactional: bool = False) -> Replay:
        """Plan a replay."""
        return Replay(self.admin, self.topics.stores, spec, name, transactional=transactional)

    def run(
        self, spec: ReplaySpec, name: str | None = None, codec: int = 0, *, transactional: bool = False
    ) -> list[int]:
        """Replay; returns how many records each batch had."""
        seen: list[int] = []
        replay = self.replay(spec, name, transactional=transactional)
        replay.run(RecordRate(None), codec, lambda records, _: seen.append(records))
        return seen

    def produced(self, topic: SourceTopic, partition: int = 0) -> list[Bare]:
        """Return what was produced into a topic directly."""
        return bare(self.topics.produced[topic.id, partition])

    def contents(self, topic: SourceTopic, partition: int = 0) -> list[Bare]:
        """Return what a topic holds, in order."""
        topics = self.topics
        log = snapshots(topics.stores, topic)[partition]
        reading = PartReader(topics.stores)
        return bare(
            [
                record
                for part in scan_parts(topics.stores, log, ScanRange(log.start, log.end))
                for rows in reading.rows(part)
                for record in records_of(rows)
            ]
        )


def bare(records: Sequence[StoredRecord]) -> list[Bare]:
    """Return records without their offsets."""
    return [(timestamp, key, value, list(headers)) for _, timestamp, key, value, headers in records]


@contextmanager
def stage_in(
    directory: Path, *flags: str, listen: Sequence[str] = ("--listen", "127.0.0.1:0")
) -> Iterator[Stage]:
    """Run a broker on its embedded server; topics have their lake beside it, and tests alone archive."""
    lake = ("--set", f"lake.path={directory / 'lake'}", "--set", "lake.interval.ms=0")
    with korvet_broker(directory, *lake, *flags, workers=1, listen=listen) as broker:
        url = f"unix://{quote(str(socket_of(broker.data_dir)))}"
        with topics_in(url, directory / "lake") as topics, AdminClient(broker.bootstrap) as admin:
            yield Stage(broker, topics, admin)
