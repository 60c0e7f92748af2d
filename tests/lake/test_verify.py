"""korvet/lake/verify.py: a sound lake is found sound, and each kind of damage is found and named."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from korvet.lake.compaction import compact
from korvet.lake.expiry import Expiry
from korvet.lake.files import TableFile, filesystem
from korvet.lake.source import RetentionLimits
from korvet.lake.table import Advance, Lake
from korvet.lake.verify import DiscrepancyError, VerifiedPartition, compare, verify
from tests.lake.archives import write_file
from tests.lake.both import TOPIC, Both, both
from tests.lake.rows import records_to_arrow
from tests.support.batches import Record
from tests.support.log_bench import LAYOUTS

NOW = 10_000


@pytest.fixture(params=LAYOUTS)
def topic(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Iterator[Both]:
    """Give a topic with four archived batches, the first two of which are in the lake only."""
    with both(redis_url, tmp_path / "lake", request.param) as made:
        firsts = made.archive_batches((1000, 1001), (2000, 2001), (3000, 3001), (4000, 4001))
        made.append(5000)
        made.trim(firsts[2])
        yield made


def verified(topic: Both) -> VerifiedPartition:
    results = list(verify(topic.stores, topic.topic))
    assert [result.partition for result in results] == [0, 1]
    assert results[1] == VerifiedPartition(topic=TOPIC, partition=1)
    return results[0]


def kinds(topic: Both) -> list[str]:
    return [finding.kind for finding in verified(topic).findings]


def test_a_sound_lake_is_found_sound(topic: Both) -> None:
    assert verified(topic) == VerifiedPartition(topic=TOPIC, partition=0, files=4, rows=8, compared=4)


def test_so_is_one_that_was_compacted_and_expired(topic: Both) -> None:
    assert [item.done for item in compact(topic.lake, topic.topic.of)] == [True]
    assert verified(topic) == VerifiedPartition(topic=TOPIC, partition=0, files=1, rows=8, compared=4)
    topic.archive()
    Expiry(topic.source).expire(topic.stores, topic.topic, RetentionLimits(ms=NOW - 4500), NOW)
    assert verified(topic) == VerifiedPartition(topic=TOPIC, partition=0, files=1, rows=1, compared=1)


def test_a_topic_that_was_never_archived_is_sound(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake") as made:
        made.append(1)
        assert list(verify(made.stores, made.topic)) == []


def test_a_table_that_is_gone_is_found(topic: Both) -> None:
    source = msgspec.structs.replace(topic.source, lake=Lake(topic.lake.path + "-other"))
    [result] = verify(topic.stores._replace(source=source), topic.topic)
    assert [finding.kind for finding in result.findings] == ["archived"]


def remove(topic: Both, file: TableFile) -> None:
    topic.path_of(file.path).unlink()


def cut(topic: Both, file: TableFile) -> None:
    path = topic.path_of(file.path)
    path.write_bytes(path.read_bytes()[:-10])


def overwrite(topic: Both, file: TableFile) -> None:
    path = topic.path_of(file.path)
    path.write_bytes(b"x" * path.stat().st_size)


@pytest.mark.parametrize("damage", [remove, cut, overwrite])
@pytest.mark.parametrize("place", [0, 3])
def test_a_file_that_is_gone_or_damaged_is_found(
    topic: Both, damage: Callable[[Both, TableFile], None], place: int
) -> None:
    file = topic.files()[place]
    damage(topic, file)
    result = verified(topic)
    assert [(finding.kind, finding.offset) for finding in result.findings] == [
        ("unreadable", file.first_offset)
    ]
    assert file.path in result.findings[0].message
    assert (result.files, result.rows) == (4, 6)


def test_a_bit_that_flipped_in_a_value_is_found(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake") as made:
        value = random.Random(1).randbytes(400)
        made.worker.append(TOPIC, Record(value, b"k", 1), Record(b"v", b"k", 2))
        made.archive()
        made.trim(2)
        [file] = made.files()
        path = made.path_of(file.path)
        data = bytearray(path.read_bytes())
        data[data.index(value[100:200])] ^= 1
        path.write_bytes(data)
        assert kinds(made) == ["unreadable"]


def written(topic: Both, offsets: list[int], timestamp: int = 1, value: bytes = b"other") -> TableFile:
    rows = records_to_arrow(0, [(at, timestamp, b"k", value, []) for at in offsets])
    file = write_file(filesystem(topic.table.uri), 0, [rows], now_ms=1)
    assert file is not None
    return file


def test_a_row_that_is_there_twice_is_found(topic: Both) -> None:
    first = topic.files()[0].first_offset
    topic.table.append([written(topic, [first])], [])
    assert "duplicate" in kinds(topic)


def test_records_that_only_redis_has_are_found(topic: Both) -> None:
    last = topic.files()[3]
    topic.table.remove([last], 1)
    result = verified(topic)
    assert ("gap", last.first_offset) in [(finding.kind, finding.offset) for finding in result.findings]


def test_a_gap_in_the_lake_is_found_where_all_offsets_are_records(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake", "batch") as made:
        firsts = made.archive_batches((1, 2), (3, 4), (5, 6))
        made.trim(firsts[2] + 2)
        made.table.remove([made.files()[1]], 1)
        result = verified(made)
        assert [(finding.kind, finding.message) for finding in result.findings] == [
            ("gap", "offsets 2 to 3 are missing")
        ]
        made.table.remove([made.files()[0]], 1)
        assert [finding.message for finding in verified(made).findings] == ["offsets 0 to 3 are missing"]
        made.table.append([written(made, [1, 3])], [])
        assert {finding.kind for finding in verified(made).findings} == {"gap"}


def test_a_record_that_differs_is_found(topic: Both) -> None:
    last = topic.files()[3]
    offsets = [last.first_offset, last.last_offset]
    topic.table.replace([last], [written(topic, offsets, timestamp=4000, value=b"4000")], 1)
    [finding] = verified(topic).findings
    assert (finding.kind, finding.offset) == ("unequal", last.last_offset)
    assert "another timestamp" in finding.message


def test_a_record_that_only_the_table_has_is_found(topic: Both) -> None:
    topic.worker.redis.call("XTRIM", topic.partition.stream, "MAXLEN", 0)
    assert "unequal" in kinds(topic)


def test_a_comparison_ends_with_the_first_difference_and_reads_nothing_after_it(topic: Both) -> None:
    *_, before, last = topic.files()
    topic.worker.redis.call("XTRIM", topic.partition.stream, "MAXLEN", 0)
    topic.path_of(last.path).write_bytes(b"x" * last.size_bytes)
    offsets = before.first_offset, topic.bounds.high_watermark
    data = topic.lake.data_files(topic.topic.of)
    with pytest.raises(DiscrepancyError, match=f"offset {before.first_offset} is in the table"):
        list(compare(topic.stores, topic.partition, offsets, topic.files(), data))


def test_rows_out_of_order_are_found(topic: Both) -> None:
    topic.table.replace(topic.files(), [], 1)
    file = written(topic, [1, 2, 3])
    path = topic.path_of(file.path)
    with pq.ParquetFile(path) as read:
        rows = read.read(use_threads=False)
    pq.write_table(rows.take([1, 0, 2]), path, store_schema=False)
    file = file._replace(size_bytes=path.stat().st_size)
    topic.table.append([file], [])
    assert "order" in kinds(topic)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 3},
        {"last_offset": 1 << 40},
        {"first_timestamp": 4_000_001_000},
        {"last_timestamp": 3_999_000},
        {"rows_without_timestamp": 1},
    ],
)
def test_statistics_that_are_not_true_are_found(topic: Both, wrong: dict[str, Any]) -> None:
    last = topic.files()[3]
    offsets = [last.first_offset, last.last_offset]
    file = written(topic, offsets, timestamp=4000)._replace(**wrong)
    topic.table.replace([last], [file], 1)
    assert "statistics" in kinds(topic)


def test_more_in_the_table_than_in_the_log_is_found(topic: Both) -> None:
    at = topic.table.next_offset(0)
    assert at is not None
    topic.table.append([], [Advance(0, at, at + (1 << 40))])
    assert "archived" in kinds(topic)


def test_less_in_the_table_than_redis_knows_is_found(topic: Both) -> None:
    end = topic.bounds.high_watermark
    topic.worker.redis.call("HSET", topic.partition.state, "archived", str(end))
    assert "archived" in kinds(topic)


def test_what_retention_takes_meanwhile_is_no_finding(topic: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = topic.stores.logs.bounds([topic.partition])
    topic.trim(topic.files()[3].first_offset)
    other = topic.stores.logs.bounds([topic.topic.partitions[1]])
    monkeypatch.setattr(topic.stores.logs, "bounds", lambda _: bounds + other)
    result = verified(topic)
    assert (result.findings, result.compared) == ((), 2)
