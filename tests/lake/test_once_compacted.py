"""A topic that was compacted before it got a cold tier: what compaction has removed is no gap, and hides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import redis

from korvet.config.settings import Settings
from korvet.errors import KafkaError
from korvet.lake.source import LakeSource, SourceTopic
from korvet.lake.table import Lake
from korvet.lake.verify import verify
from korvet.log.types import Read
from korvet.topics.types import TopicRow
from tests.log.compacting import CompactedLog
from tests.support.archives import FORMATS, Format, Topics
from tests.support.domain import domain


class OnceCompacted(NamedTuple):
    log: CompactedLog
    topics: Topics

    @property
    def topic(self) -> SourceTopic:
        return self.topics.source.topic(self.topics.stores, self.log.partition.topic)


@pytest.fixture(params=FORMATS)
def once(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Iterator[OnceCompacted]:
    """Give an archived topic of which the first and the last records of a compacted part are left, and some more."""
    storage_format: Format = request.param
    settings = Settings(lake_path=str(tmp_path / "lake"))
    source = LakeSource.of(settings, redis_url)
    with (
        domain(redis_url, settings) as worker,
        source.opened() as stores,
        redis.Redis.from_url(redis_url) as raw,
    ):
        log = CompactedLog(worker, raw, storage_format)
        log.append((b"first", b"1"))
        for at in range(30):
            log.append((b"again", b"%d" % at))
        log.append((b"last", b"2"))
        log.compacted()
        worker.topics.alter(log.topic, archived)
        log.append((b"again", b"30"))
        topics = Topics(source, settings.lake_path, stores)
        assert topics.rounds(topics.archiver()).failures == []
        yield OnceCompacted(log, topics)


def archived(row: TopicRow) -> TopicRow:
    configs = row.configs | {"cleanup.policy": "delete", "remote.storage.enable": "true"}
    return msgspec.structs.replace(row, configs=configs)


def test_what_compaction_removed_is_no_finding(once: OnceCompacted) -> None:
    lake = Lake(once.topics.lake)
    [found] = verify(once.topics.stores, lake, once.topic, 1 << 20)
    assert found.findings == ()
    assert (found.rows, found.compared) == (4, 4)
    once.topics.trim(once.log.partition, once.log.field("clean_end"))
    [found] = verify(once.topics.stores, lake, once.topic, 1 << 20)
    assert found.findings == ()
    assert (found.rows, found.compared) == (4, 1)


def test_what_is_in_the_lake_only_is_not_passed_over_for_what_redis_has_after_it(
    once: OnceCompacted,
) -> None:
    partition = once.log.partition
    offsets = [each.offset for each in once.log.model]
    for start in offsets[1:]:
        once.topics.trim(partition, start)
        for offset in [each for each in offsets if each < start]:
            [found] = once.log.logs.read([Read(partition, offset, 10)])
            assert not isinstance(found, KafkaError)
            assert found.remote is not None
            assert (found.holds_any, found.remote.end) == (False, start)
