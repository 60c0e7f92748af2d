"""What the archiver counts: published in a file, from which the next archiver continues."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from korvet.config.settings import Settings
from korvet.lake.archiver import ArchiveFailure, ArchiveRound, LostRange
from korvet.lake.expiry import UpkeepRound
from korvet.spark.archiver_loop import ArchiverStats
from korvet.telemetry.snapshot import ArchiverTotals, TablesSnapshot, read
from korvet.telemetry.stats import TableSize
from korvet.topics.registry import TopicSpec
from tests.lake.both import TOPIC, Both, both
from tests.support import processes
from tests.support.batches import MALFORMED


def test_an_archiver_continues_the_counts_of_the_one_before(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake") as tiers:
        for _ in range(2):
            stats = ArchiverStats(tmp_path, Settings(), tiers.source)
            stats.archived(
                ArchiveRound(records=3, bytes=100, files=1, partitions=1, lost=[LostRange("a", 0, 1, 2)])
            )
            stats.archived(ArchiveRound())
            stats.archived(ArchiveRound(partitions=1, conflicts=1, failures=[ArchiveFailure("a", 0, "why")]))
            stats.archived(None)
            stats.maintained(UpkeepRound(compacted=5, expired=2, expired_records=20))
            stats.maintained(UpkeepRound(failures=1))
            stats.maintained(None)
        assert read(tmp_path / ArchiverTotals.FILE, ArchiverTotals) == ArchiverTotals(
            rounds={"archived": 2, "idle": 2, "failed": 4},
            records=6,
            bytes=200,
            files=2,
            conflicts=2,
            lost_ranges=2,
            upkeeps={"done": 2, "failed": 4},
            compacted_files=10,
            expired_files=4,
            expired_records=40,
        )


def test_sizes_of_tables_are_published(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake") as tiers:
        tiers.archive_batches((1000, 2000), (3000,))
        tiers.topics.put(tiers.partition, MALFORMED["zeros"])
        tiers.archive()
        size = sum(file.size_bytes for file in tiers.files())
        take(tiers, tmp_path)

        def published() -> bool:
            result = read(tmp_path / TablesSnapshot.FILE, TablesSnapshot)
            return result is not None and result.tables == [
                TableSize(topic=TOPIC, files=2, records=3, bytes=size, unreadable=1)
            ]

        processes.wait_until(published, "the size is published")


def test_a_table_that_cannot_be_read_does_not_hide_others(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake") as tiers:
        tiers.archive_batches((1000,))
        without_statistics(tiers)
        sound = {"remote.storage.enable": "true"}
        tiers.worker.topics.create(TopicSpec(name="sound", partitions=1, configs=sound))
        take(tiers, tmp_path)

        def published() -> bool:
            result = read(tmp_path / TablesSnapshot.FILE, TablesSnapshot)
            return result is not None and result.tables == [
                TableSize(topic="sound", files=0, records=0, bytes=0)
            ]

        processes.wait_until(published, "the other size is published")


def take(tiers: Both, directory: Path) -> None:
    """Start publishing in a thread that ends with this process."""
    stats = ArchiverStats(directory, Settings(log_figures_interval_ms=600_000), tiers.source)
    threading.Thread(target=stats.publish_sizes, daemon=True).start()


def without_statistics(tiers: Both) -> None:
    """Remove the statistics of offsets from the log of the table, as if another program had written it."""
    [commit] = tiers.path_of("_delta_log").glob("*1.json")
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["stats"] = None
    commit.write_text("\n".join(map(json.dumps, actions)))
