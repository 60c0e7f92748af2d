"""A topic with records in Redis, in the lake, or in both, for tests of tiers: what an archiver and retention do.

Records are archived as they are read from the log, into a real table; the lake is read by the process that reads it
for a broker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from korvet.config.settings import Settings
from korvet.lake.decoding import to_arrow
from korvet.lake.files import filesystem
from korvet.lake.table import Advance, Lake, LakeTopic
from korvet.log.remote.archived import Archived, Mirrored, RemoteOffsetStore
from korvet.log.remote.client import RemoteClient
from korvet.log.remote.tier import RemoteTier
from korvet.log.store import LogStore
from korvet.log.trim import Trim, TrimStore
from korvet.log.types import Read
from korvet.redis.keys import Keys
from korvet.topics.registry import TopicSpec, id_text
from korvet.topics.types import Partition
from tests.lake.archives import write_file
from tests.lake.rows import records_to_arrow
from tests.support.domain import Domain, domain
from tests.support.lake_service import LakeService

TOPIC = "orders"
ENTRIES_MAX = 10_000


def archived_lake(path: Path, topic_id: str, records: int) -> Path:
    """Make a lake with one archived partition of the topic."""
    table = Lake(str(path)).create(LakeTopic(TOPIC, topic_id))
    rows = records_to_arrow(0, [(at, 1000 + at, None, b"value %d" % at, []) for at in range(records)])
    file = write_file(filesystem(table.uri), 0, [rows], now_ms=0)
    assert file is not None
    table.append([file], [Advance(0, 0, records)])
    return path


class Tiers:
    """One worker's view of a topic, and the lake that it is in."""

    def __init__(self, worker: Domain, lake: Path, topic: str = TOPIC) -> None:
        self.worker, self.lake, self.topic = worker, lake, topic
        self.log = LogStore(worker.redis, worker.redis, Keys("korvet"))

    @property
    def partition(self) -> Partition:
        return self.worker.topics.get(self.topic).partition(0)

    @property
    def topic_id(self) -> str:
        return id_text(self.worker.topics.get(self.topic).id)

    @property
    def table(self) -> Path:
        """Where its table lies, a directory of its own."""
        return self.lake / self.topic / self.topic_id

    def archive(self, end: int, *, mirror: bool = True) -> Path:
        """Archive the log up to an offset, which lies between two entries; returns the file."""
        table = Lake(str(self.lake)).create(LakeTopic(self.topic, self.topic_id))
        at = table.next_offset(0) or 0
        [read] = self.log.read([Read(self.partition, at, ENTRIES_MAX, end)])
        assert not isinstance(read, Exception)
        file = write_file(filesystem(table.uri), 0, [to_arrow(0, read)], now_ms=0)
        assert file is not None
        table.append([file], [Advance(0, at, end)])
        if mirror:
            [mirrored] = RemoteOffsetStore(self.worker.redis).mirror(
                [Archived(self.partition, end, file.first_offset)]
            )
            assert isinstance(mirrored, Mirrored)
        return self.table / file.path

    def trim(self, start: int) -> None:
        """Let Redis hold nothing below an offset any more, as local retention does."""
        store, more = TrimStore(self.worker.redis), True
        while more:
            [trimmed] = store.trim([Trim(self.partition, start, start)])
            assert not isinstance(trimmed, Exception)
            more = trimmed.more


@contextlib.contextmanager
def tiers(
    redis_url: str, reader: LakeService, storage_format: Literal["record", "batch"], wait_ms: int = 20_000
) -> Iterator[Tiers]:
    """Make the topic, with a table of its own, and a worker, whose fetches wait for the lake up to `wait_ms`."""
    store = RemoteClient(reader.socket)
    cold = RemoteTier(store, Settings(remote_fetch_max_wait_ms=wait_ms))
    with domain(redis_url, Settings(lake_path=str(reader.lake)), cold) as worker:
        configs = {"storage.format": storage_format}
        worker.topics.create(TopicSpec(name=TOPIC, partitions=1, configs=configs))
        yield Tiers(worker, reader.lake)
    store.close()
