"""korvet/lake/unreadable.py: batches that do not decode are passed with a hole that is known, and kept as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from korvet.lake.expiry import Expiry
from korvet.lake.scan import PartReader, ScanRange, first_offset_from, scan_parts, snapshots
from korvet.lake.source import RetentionLimits, SourceTopic
from korvet.lake.table import ArchiveTable
from korvet.lake.tasks import ArchiveTask, TaskOutcome
from korvet.lake.unreadable import KeptRange, kept_files
from korvet.lake.verify import verify
from tests.support import iceberg
from tests.support.archives import Topics
from tests.support.batches import LINKED, MALFORMED, TIMESTAMP, Record, headers_of, raw

LIMIT = 16 * 1024 * 1024
BAD = MALFORMED["zeros"]


@pytest.fixture
def topic(topics: Topics) -> SourceTopic:
    topics.source = msgspec.structs.replace(topics.source, decompressed_bytes_max=LIMIT)
    return topics.make("orders", "batch")


def table(topics: Topics, topic: SourceTopic) -> ArchiveTable:
    result = topics.source.lake.open(topic.of)
    assert result is not None
    return result


def kept(topics: Topics, topic: SourceTopic) -> bytes:
    """Return the bytes that are kept of a topic, file after file."""
    files = kept_files(topics.source.lake.filesystem(topic.of))
    return b"".join(Path(topics.source.lake.uri(topic.of), file.path).read_bytes() for file in files)


def verified(topics: Topics, topic: SourceTopic) -> tuple[list[KeptRange], list[str]]:
    with topics.source.opened() as stores:
        [result] = verify(stores, topic)
    return list(result.known_holes), [finding.kind for finding in result.findings]


def scanned(topics: Topics, topic: SourceTopic) -> list[int]:
    """Return the offsets that a scan of both tiers finds."""
    with topics.source.opened() as stores:
        [log] = snapshots(stores, topic)
        parts = scan_parts(stores, log, ScanRange(log.start, log.end))
        return [
            row
            for part in parts
            for rows in PartReader(stores).rows(part)
            for row in rows["offset"].to_pylist()
        ]


def newest(topics: Topics, topic: SourceTopic) -> int | None:
    with topics.source.opened() as stores:
        return first_offset_from(stores, snapshots(stores, topic)[0], TIMESTAMP + 1)


def test_every_malformed_batch_is_passed_and_its_bytes_are_kept(
    topics: Topics, topic: SourceTopic, caplog: pytest.LogCaptureFixture
) -> None:
    [partition] = topic.partitions
    iceberg.beside(topics)
    holes = []
    for data in (data for kind, data in MALFORMED.items() if kind != LINKED):
        topics.produce(partition, b"sound")
        holes += topics.put(partition, data)
    topics.produce(partition, Record(b"last", timestamp=TIMESTAMP + 1))
    sound = [offset for offset, *_ in topics.produced[topic.id, 0]]
    assert (scanned(topics, topic), newest(topics, topic)) == (sound, sound[-1])
    done = topics.rounds(topics.archiver())
    assert (done.failures, done.lost) == ([], [])
    assert [(item.first, item.end) for item in done.unreadable] == holes
    assert all(f"offset {item.first}" in item.reason for item in done.unreadable)
    assert "batches of offsets 1 to 5 do not decode and are left out" in caplog.text
    topics.check(topic)
    iceberg.check(topics.source.lake, topic.of)
    assert table(topics, topic).unreadable == len(holes)
    for _ in range(2):
        assert verified(topics, topic) == ([KeptRange(*hole) for hole in holes], [])
        assert (scanned(topics, topic), newest(topics, topic)) == (sound, sound[-1])
        assert [header.base_offset for header in headers_of(kept(topics, topic))] == [
            first for first, _ in holes
        ]
        # Again with all of it in the lake only, and after a vacuum.
        table(topics, topic).vacuum(0, dry_run=False)
        topics.trim(partition, sound[-1] + 1)
    [file] = kept_files(topics.source.lake.filesystem(topic.of))
    path = Path(topics.source.lake.uri(topic.of), file.path)
    path.write_bytes(path.read_bytes()[:-1])
    assert verified(topics, topic)[1][0] == "unreadable"
    path.unlink()
    assert verified(topics, topic) == ([], ["gap"])


def test_a_kill_before_the_commit_leaves_each_hole_once(topics: Topics, topic: SourceTopic) -> None:
    [partition] = topic.partitions
    first = topics.put(partition, BAD, BAD)
    topics.produce(partition, b"sound")

    def killed(tasks: Sequence[ArchiveTask]) -> list[TaskOutcome]:
        topics.run(tasks)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        topics.archiver().round(killed)
    assert len(kept_files(topics.source.lake.filesystem(topic.of))) == 1
    # The next round reads further, so that it keeps them in another file.
    last = topics.put(partition, BAD)
    done = topics.archiver().round(topics.run)
    expected = [(first[0][0], first[1][1], 2), (*last[0], 1)]
    assert [(item.first, item.end, item.batches) for item in done.unreadable] == expected
    assert table(topics, topic).unreadable == 3
    assert verified(topics, topic) == ([KeptRange(0, 2), KeptRange(3, 4)], [])
    assert topics.archiver().round(topics.run).unreadable == []


@pytest.mark.parametrize("sound", [True, False], ids=["among records", "alone"])
def test_kept_bytes_expire_with_the_records_around_them(
    topics: Topics, topic: SourceTopic, *, sound: bool
) -> None:
    [partition] = topic.partitions
    for at in range(3):
        if sound:
            topics.produce(partition, Record(b"v", timestamp=1000 * at))
        topics.put(partition, raw(bytes(30), base_timestamp=1000 * at, max_timestamp=1000 * at))
        topics.archiver().round(topics.run)
    for now_ms, left in ((2999, 3), (4500, 1), (6000, 0)):
        with topics.source.opened() as stores:
            [done] = Expiry(topics.source).expire(stores, topic, RetentionLimits(ms=3000), now_ms)
        assert done.error is None
        assert len(headers_of(kept(topics, topic))) == left
        assert verified(topics, topic)[1] == []
