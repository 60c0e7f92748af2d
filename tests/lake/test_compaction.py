"""korvet/lake/compaction.py: which files become one, and the same rows in fewer files, exactly once."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from hypothesis import given
from hypothesis import strategies as st

from korvet.errors import LakeError
from korvet.lake import compaction
from korvet.lake.compaction import Merge, MergeTask, commit, compact, is_own, plan_merges, rewrite
from korvet.lake.files import TableFile, filesystem
from korvet.lake.reader import LakeReader
from korvet.lake.table import Advance, ArchiveTable, CommitConflictError, Lake
from korvet.protocol.records.record import StoredRecord
from tests.lake.archives import (
    OF,
    append,
    archive,
    files,
    offsets_in_files,
    opened,
    path_of,
    record,
    request,
    write_file,
)
from tests.lake.rows import records_of, records_to_arrow
from tests.support.batches import read

BYTES_MAX = 128
PER_FILE = 10


def merges(files: list[TableFile], bytes_max: int = BYTES_MAX) -> list[Merge]:
    """Plan with files that stay as they are from half of `bytes_max` on."""
    with pytest.MonkeyPatch.context() as patch:
        limit(patch, bytes_max)
        return compaction.merges(files)


def limit(patch: pytest.MonkeyPatch, bytes_max: int) -> None:
    patch.setattr(compaction, "FILE_BYTES_MIN", bytes_max // 2)
    patch.setattr(compaction, "FILE_BYTES_MAX", bytes_max)


def file(
    number: int, size: int, partition: int = 0, *, own: bool = True, last: int = PER_FILE - 1
) -> TableFile:
    first = number * PER_FILE
    name = f"part-{uuid.uuid4()}.parquet" if own else f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
    path = f"partition={partition}/{name}"
    return TableFile(path, partition, size, PER_FILE, first, first + last, 0, 1, 0, 0)


def sizes_of(result: list[Merge]) -> list[list[int]]:
    return [[item.size_bytes for item in merge.files] for merge in result]


def planned(*sizes: int) -> list[list[int]]:
    return sizes_of(merges([file(number, size) for number, size in enumerate(sizes)]))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([5], []),
        ([5, 5], [[5, 5]]),
        # Large ones stay, and part those around them.
        ([5, 5, 64, 5, 5], [[5, 5], [5, 5]]),
        ([5, 200, 5], []),
        # What would become too large is cut.
        ([40, 40, 40, 40, 40], [[40, 40, 40], [40, 40]]),
        # At the end newer ones wait until they are as large as the one before.
        ([50, 5, 5], [[5, 5]]),
        ([45, 10, 5], []),
        ([10, 5, 5], [[10, 5, 5]]),
        # A file that is large enough comes of it: nothing to wait for.
        ([50, 20], [[50, 20]]),
        # Before a large one none is waited for.
        ([50, 5, 64], [[50, 5]]),
    ],
)
def test_neighbours_that_are_small_become_one(sizes: list[int], expected: list[list[int]]) -> None:
    assert planned(*sizes) == expected


def test_partitions_are_kept_apart() -> None:
    results = merges([file(0, 5), file(1, 5), file(0, 6, 1), file(1, 6, 1), file(0, 7, 2)])
    assert [(result.partition, result.size_bytes, result.rows, result.into) for result in results] == [
        (0, 10, 20, 1),
        (1, 12, 20, 1),
    ]


def test_files_of_others_are_rewritten_however_large_they_are() -> None:
    results = merges([file(0, 64), file(1, 300, own=False), file(2, 64)])
    assert [(result.size_bytes, result.into) for result in results] == [(300, 3)]


def test_files_whose_offsets_overlap_are_taken_together() -> None:
    results = merges([file(0, 70, last=25), file(1, 70), file(2, 70), file(3, 70)])
    assert [(result.size_bytes, result.into) for result in results] == [(210, 2)]


def test_names_say_whose_a_file_is() -> None:
    assert is_own(file(0, 1, 12).path)
    assert not is_own(file(0, 1, own=False).path)


@given(st.lists(st.integers(1, 200), max_size=30))
def test_no_file_is_in_two_merges_and_none_between_two_is_left_out(sizes: list[int]) -> None:
    every = [file(number, size) for number, size in enumerate(sizes)]
    taken = [item for merge in merges(every) for item in merge.files]
    assert len(taken) == len(set(taken))
    for merge in merges(every):
        assert len(merge.files) > 1
        assert merge.size_bytes <= BYTES_MAX
        first = every.index(merge.files[0])
        assert list(merge.files) == every[first : first + len(merge.files)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=300))
def test_a_row_is_written_again_only_as_its_file_doubles(sizes: list[int]) -> None:
    """Let files come one at a time, with a compaction after each."""
    held: list[TableFile] = []
    written = 0
    for number, size in enumerate(sizes):
        held.append(file(number, size))
        for merge in merges(held, 8192):
            at = held.index(merge.files[0])
            written += merge.size_bytes
            held[at : at + len(merge.files)] = [
                merge.files[0]._replace(size_bytes=merge.size_bytes, last_offset=merge.files[-1].last_offset)
            ]
    total = sum(sizes)
    assert sum(item.size_bytes for item in held) == total
    # At each pass a row's file becomes at least half as large again.
    assert written <= total * (total.bit_length() * 2)
    assert len(held) <= 2 * total.bit_length() + 1


ROWS = 100


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Give a lake with a table of ten files of ten records."""
    made = Lake(str(tmp_path))
    archive(made, ROWS)
    return made


def one(lake: Lake) -> MergeTask:
    [task] = plan_merges(lake, OF)
    return task


def test_small_files_become_one_with_the_same_rows_in_order(lake: Lake) -> None:
    before = offsets_in_files(lake)
    [done] = compact(lake, OF)
    assert (done.done, done.error, done.rows, done.files_before, done.files_after) == (
        True,
        None,
        ROWS,
        10,
        1,
    )
    [file] = files(lake)
    assert (file.first_offset, file.last_offset, file.rows) == (0, ROWS - 1, ROWS)
    assert (file.first_timestamp, file.last_timestamp) == (1_000_000, 1_099_000)
    assert done.bytes_after == file.size_bytes == path_of(lake, file.path).stat().st_size
    assert offsets_in_files(lake) == before == list(range(ROWS))
    assert opened(lake).next_offset(0) == ROWS
    assert list(compact(lake, OF)) == []


def test_every_column_is_kept(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    records: list[StoredRecord] = [
        (0, -1, None, None, []),
        (3, 5, b"", b"", [("h", None), ("h", b"x")]),
        (9, 2**62, b"\xff", b"v" * 300, []),
        (10, -(2**60), b"k", None, [("", b"")]),
    ]
    for item in records:
        append(lake, [item], item[0] + 1, partition=3)
    [done] = compact(lake, OF)
    assert done.error is None
    [file] = files(lake)
    with pq.ParquetFile(path_of(lake, file.path)) as opened_file:
        assert records_of(opened_file.read(use_threads=False).combine_chunks().to_batches()[0]) == records
    assert file.rows_without_timestamp == 3
    assert (file.partition, file.first_timestamp, file.last_timestamp) == (3, 5000, 5000)


def test_row_groups_are_full_but_never_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(str(tmp_path))
    archive(lake, 95)
    append(lake, [record(at, value_bytes=30_000) for at in range(95, 100)], 100)
    monkeypatch.setattr("korvet.lake.files.ROW_GROUP_ROWS", 40)
    monkeypatch.setattr("korvet.lake.files.ROW_GROUP_BYTES_MAX", 65_000)
    [done] = compact(lake, OF)
    assert done.error is None
    metadata = pq.read_metadata(path_of(lake, files(lake)[0].path))
    assert [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)] == [40, 40, 17, 2, 1]
    assert offsets_in_files(lake) == list(range(100))


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let some ten small files become one."""
    limit(monkeypatch, 12_000)


@pytest.mark.usefixtures("small_files")
def test_large_merges_become_several_files_and_partitions_stay_apart(lake: Lake) -> None:
    archive(lake, ROWS, partition=1)
    outcomes = list(compact(lake, OF))
    assert {outcome.partition for outcome in outcomes} == {0, 1}
    for partition in (0, 1):
        some = [item for item in files(lake) if item.partition == partition]
        assert 1 < len(some) < 10
        assert offsets_in_files(lake, partition) == list(range(ROWS))


def test_what_is_archived_meanwhile_is_neither_refused_nor_lost(lake: Lake) -> None:
    archiver = opened(lake)
    file = write_file(filesystem(archiver.uri), 0, [records_to_arrow(0, [record(ROWS)])], now_ms=1)
    assert file is not None
    merged = rewrite(lake, one(lake))
    append(lake, [record(0)], 1, partition=1)
    assert commit(lake, merged).done
    archiver.append([file], [Advance(0, ROWS, ROWS + 1)])
    assert offsets_in_files(lake) == list(range(ROWS + 1))
    assert offsets_in_files(lake, 1) == [0]
    assert (opened(lake).next_offset(0), opened(lake).next_offset(1)) == (ROWS + 1, 1)


def external_optimize(lake: Lake) -> None:
    DeltaTable(opened(lake).uri).optimize.compact()


def external_delete(lake: Lake) -> None:
    DeltaTable(opened(lake).uri).delete("offset < 25")


def own_compaction(lake: Lake) -> None:
    assert [step.done for step in compact(lake, OF)] == [True]


@pytest.mark.parametrize(
    ("other", "left"),
    [(external_optimize, range(ROWS)), (external_delete, range(25, ROWS)), (own_compaction, range(ROWS))],
)
def test_another_writer_that_rewrites_files_first_wins(
    lake: Lake, other: Callable[[Lake], None], left: range
) -> None:
    merged = rewrite(lake, one(lake))
    other(lake)
    outcome = commit(lake, merged)
    assert (outcome.done, outcome.error) == (False, None)
    # deltalake's compaction does not keep their order.
    assert sorted(offsets_in_files(lake)) == list(left)
    for item in merged.written:
        assert not path_of(lake, item.path).exists()


@pytest.mark.parametrize(
    "other", [lambda stale: stale.optimize.compact(), lambda stale: stale.delete("offset < 25")]
)
def test_an_external_change_that_began_before_is_refused(
    lake: Lake, other: Callable[[DeltaTable], object]
) -> None:
    stale = DeltaTable(opened(lake).uri)
    own_compaction(lake)
    with pytest.raises(CommitFailedError):
        other(stale)
    assert offsets_in_files(lake) == list(range(ROWS))


def test_a_merge_is_undone_if_an_optimize_commits_before_its_seal(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale, seal = DeltaTable(opened(lake).uri), ArchiveTable.seal

    def late(table: ArchiveTable) -> int:
        monkeypatch.setattr(ArchiveTable, "seal", seal)
        # It leaves one partition, and a newer file, alone.
        stale.optimize.compact(partition_filters=[("partition", "=", "0")])
        return seal(table)

    archive(lake, ROWS, partition=1)
    append(lake, [record(ROWS)], ROWS + 1)
    monkeypatch.setattr(ArchiveTable, "seal", late)
    outcomes = [(step.partition, step.done, step.error) for step in compact(lake, OF)]
    assert outcomes == [(0, False, None), (1, True, None)]
    assert sorted(offsets_in_files(lake)) == list(range(ROWS + 1))
    assert offsets_in_files(lake, 1) == list(range(ROWS))
    assert [step.done for step in compact(lake, OF)] == [True]
    assert offsets_in_files(lake) == list(range(ROWS + 1))


def test_a_merge_whose_compactor_was_killed_before_the_seal_is_sealed_or_undone_by_the_next(
    lake: Lake,
) -> None:
    stale = [DeltaTable(opened(lake).uri) for _ in range(2)]
    table = opened(lake)
    table.replace(table.files(), rewrite(lake, one(lake)).written, 1)
    assert opened(lake).unsealed == opened(lake).version
    stale[0].optimize.compact()
    assert len(offsets_in_files(lake)) == 2 * ROWS
    own_compaction(lake)
    assert offsets_in_files(lake) == list(range(ROWS))
    assert opened(lake).unsealed is None
    with pytest.raises(CommitFailedError):
        stale[1].optimize.compact()


def test_a_change_feed_has_each_row_as_inserted_once_whatever_is_compacted(lake: Lake) -> None:
    DeltaTable(opened(lake).uri).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    first = opened(lake).version
    for end in (2 * ROWS, 5 * ROWS):
        archive(lake, end)
        own_compaction(lake)
    table = opened(lake)
    feed = pa.table(DeltaTable(table.uri).load_cdf(starting_version=first + 1))
    assert sorted(feed.column("offset").to_pylist()) == list(range(ROWS, 5 * ROWS))
    assert set(feed.column("_change_type").to_pylist()) == {"insert"}
    # What expires is deleted.
    table.remove(table.files(), 1)
    feed = pa.table(DeltaTable(table.uri).load_cdf(starting_version=opened(lake).version))
    assert feed.column("_change_type").to_pylist() == ["delete"] * 5 * ROWS


def test_of_two_replacements_of_one_version_the_second_is_refused(lake: Lake) -> None:
    first, second = opened(lake), opened(lake)
    merged = [rewrite(lake, one(lake)) for _ in range(2)]
    first.replace(first.files(), merged[0].written, 1)
    with pytest.raises(CommitConflictError):
        second.replace(second.files(), merged[1].written, 1)
    with pytest.raises(CommitConflictError, match="not in the table any more"):
        opened(lake).replace(second.files(), merged[1].written, 1)
    assert offsets_in_files(lake) == list(range(ROWS))


def test_a_commit_whose_answer_was_lost_is_no_failure(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = ArchiveTable.replace

    def lost(table: ArchiveTable, removed: list[TableFile], written: list[TableFile], now_ms: int) -> None:
        replace(table, removed, written, now_ms)
        raise CommitConflictError("the version is there")

    merged = rewrite(lake, one(lake))
    monkeypatch.setattr(ArchiveTable, "replace", lost)
    assert commit(lake, merged).done
    assert offsets_in_files(lake) == list(range(ROWS))


def test_files_that_others_left_in_any_order_are_put_in_order(lake: Lake) -> None:
    table = DeltaTable(opened(lake).uri)
    table.optimize.z_order(["value"])
    assert offsets_in_files(lake) != list(range(ROWS))
    [done] = compact(lake, OF)
    assert (done.done, done.error) == (True, None)
    assert offsets_in_files(lake) == list(range(ROWS))
    assert list(compact(lake, OF)) == []


def test_a_file_that_is_gone_or_damaged_is_an_error_and_changes_nothing(lake: Lake) -> None:
    archive(lake, 30, partition=1)
    gone = files(lake)[3]
    path_of(lake, gone.path).unlink()
    before = files(lake)
    broken, sound = compact(lake, OF)
    assert gone.path in (broken.error or "")
    assert (broken.done, broken.files_after) == (False, 0)
    assert (sound.done, sound.partition) == (True, 1)
    assert [item for item in files(lake) if item.partition == 0] == [
        item for item in before if item.partition == 0
    ]
    assert offsets_in_files(lake, 1) == list(range(30))


def test_rows_that_are_there_twice_are_left_for_somebody_to_look_at(lake: Lake) -> None:
    table = opened(lake)
    file = write_file(filesystem(table.uri), 0, [records_to_arrow(0, [record(5)])], now_ms=1)
    assert file is not None
    table.append([file], [])
    names = {item.name for item in path_of(lake, "partition=0").iterdir()}
    [outcome] = compact(lake, OF)
    assert "offset 5 follows 5" in (outcome.error or "")
    assert len(files(lake)) == 11
    assert names <= {item.name for item in path_of(lake, "partition=0").iterdir()}


def test_a_table_with_features_that_hide_rows_is_not_touched(lake: Lake) -> None:
    DeltaTable(opened(lake).uri).alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    with pytest.raises(LakeError, match="cannot be rewritten"):
        list(compact(lake, OF))


def test_a_topic_without_a_table_has_nothing_to_compact(tmp_path: Path) -> None:
    assert list(compact(Lake(str(tmp_path)), OF)) == []


@pytest.mark.usefixtures("small_files")
def test_a_consumer_is_not_disturbed_by_compaction_and_vacuum_between_any_two_fetches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path))
    archive(lake, 10)
    # What is removed was removed the day before yesterday, so vacuum deletes it at once.
    then = time.time_ns() - 48 * 3600 * 1_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: then)
    reader, end, deleted = LakeReader(lake), 160, 0
    got: list[int] = []
    while len(got) < end:
        archived = opened(lake).next_offset(0) or 0
        if archived < end:
            archive(lake, archived + 20)
        for step in compact(lake, OF):
            assert step.done
        deleted += len(opened(lake).vacuum(24, dry_run=False))
        result = reader.answer(request(len(got), archived, bytes_max=300))
        got += [item.offset for item in read(result.data)]
    assert got == list(range(end))
    assert deleted > 5
    assert len(list(path_of(lake, "partition=0").iterdir())) == len(files(lake))


def test_no_two_files_of_one_name_are_ever_written(lake: Lake) -> None:
    names = [[item.path for item in rewrite(lake, one(lake)).written] for _ in range(3)]
    assert len({*itertools.chain(*names)}) == 3
