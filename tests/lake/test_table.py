"""korvet/lake/files.py and table.py: files that come into a topic's table exactly once, on a real file system."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from korvet.cluster.data_format import OWN, DataFormat
from korvet.errors import LakeError
from korvet.lake import data_format, table
from korvet.lake.files import ROW_GROUP_ROWS, TableFile, filesystem
from korvet.lake.schema import SCHEMA
from korvet.lake.table import Advance, ArchiveTable, CommitConflictError, Lake, LakeTopic
from korvet.protocol.records.record import StoredRecord
from tests.lake.archives import OF, opened, path_of, record, write_file
from tests.lake.rows import records_to_arrow


def rows(first: int, stop: int, partition: int = 0) -> pa.RecordBatch:
    return records_to_arrow(partition, [record(at) for at in range(first, stop)])


def written(table: ArchiveTable, first: int, stop: int, partition: int = 0) -> TableFile:
    file = write_file(filesystem(table.uri), partition, [rows(first, stop, partition)], now_ms=7)
    assert file is not None
    return file


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path))


def contents(table: ArchiveTable) -> list[tuple[int, int]]:
    """Read the whole table with deltalake's own reader."""
    result = DeltaTable(table.uri).to_pyarrow_table().select(["partition", "offset"])
    return sorted(zip(*(column.to_pylist() for column in result.columns), strict=True))


def test_rows_are_in_the_table_once_they_are_committed(lake: Lake) -> None:
    table = lake.create(OF)
    assert table.next_offset(0) is None
    file = written(table, 5, 8)
    assert contents(table) == []
    table.append([file], [Advance(0, 5, 10)])
    table = opened(lake)
    assert contents(table) == [(0, 5), (0, 6), (0, 7)]
    assert [field.type for field in DeltaTable(table.uri).to_pyarrow_table().schema] == list(SCHEMA.types)
    assert (table.next_offset(0), table.next_offset(1)) == (10, None)
    (result,) = table.files()
    assert (result.path, result.partition, result.rows) == (file.path, 0, 3)
    assert (result.first_offset, result.last_offset) == (5, 7)
    assert (result.first_timestamp, result.last_timestamp) == (1_005_000, 1_007_000)
    assert result.size_bytes == path_of(lake, file.path).stat().st_size


def test_of_two_commits_from_one_offset_the_second_is_refused(lake: Lake) -> None:
    lake.create(OF)
    first, second = opened(lake), opened(lake)
    first.append([written(first, 0, 3)], [Advance(0, 0, 3)])
    with pytest.raises(CommitConflictError):
        second.append([written(second, 0, 5)], [Advance(0, 0, 5)])
    with pytest.raises(CommitConflictError, match="archived up to 3, not 0"):
        opened(lake).append([written(second, 0, 5)], [Advance(0, 0, 5)])
    assert contents(opened(lake)) == [(0, 0), (0, 1), (0, 2)]


def test_commits_for_different_partitions_do_not_hinder_each_other(lake: Lake) -> None:
    lake.create(OF)
    first, second = opened(lake), opened(lake)
    first.append([written(first, 0, 2)], [Advance(0, 0, 2)])
    second.append([written(second, 0, 2, partition=1)], [Advance(1, 0, 2)])
    table = opened(lake)
    assert contents(table) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [table.next_offset(item) for item in (0, 1)] == [2, 2]


def test_a_table_is_made_once(lake: Lake) -> None:
    assert lake.open(OF) is None
    table = lake.create(OF)
    table.append([written(table, 0, 2)], [Advance(0, 0, 2)])
    assert lake.create(OF).next_offset(0) == 2


def test_a_lake_says_who_wrote_it_and_is_left_alone_by_a_version_that_would_misread_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, file = Lake(str(tmp_path / "lake")), tmp_path / "lake" / data_format.FILE
    lake.create(OF)
    own = msgspec.json.decode(file.read_bytes(), type=DataFormat)
    assert own == OWN
    assert lake.tables() == [OF]
    file.unlink()  # as of a version that wrote none
    monkeypatch.setattr(table, "_CHECKED", set())
    assert lake.open(OF) is not None
    lake.claim()
    assert file.exists()
    monkeypatch.setattr(data_format, "OWN", DataFormat("0.9.0", 3, 3, 3))
    for level, version in ((2, OWN.version), (3, "0.9.0")):  # format 3 waits until it is finalized
        lake._replace(level=level).claim()
        assert msgspec.json.decode(file.read_bytes()) == {
            "version": version,
            **dict.fromkeys(("format", "reader", "writer"), level),
        }
    monkeypatch.undo()
    later = msgspec.structs.replace(OWN, version="9.1", format=12, writer=12)
    for content, refused in (
        (later, {"write": "may not write it: take Korvet 9.1 or later"}),
        (msgspec.structs.replace(later, reader=12), {"read": "may not read it", "write": "may not write it"}),
        ({"format": "x"}, {"read": "restore it", "write": "restore it"}),
    ):
        file.write_bytes(msgspec.json.encode(content))
        for use, act in {"read": lambda: lake.open(OF), "write": lake.claim}.items():
            monkeypatch.setattr(table, "_CHECKED", set())
            if use in refused:
                with pytest.raises(LakeError, match=refused[use]):
                    act()
            else:
                act()
        assert file.read_bytes() == msgspec.json.encode(content)


def test_a_lake_that_cannot_be_read_is_one_clear_error(tmp_path: Path, lake: Lake) -> None:
    log = path_of(lake, "_delta_log")
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{not a log")
    with pytest.raises(LakeError, match=OF.topic_id):
        lake.open(OF)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(LakeError, match="file"):
        Lake(str(file)).create(OF)


def test_a_file_has_small_row_groups_with_statistics_of_offsets(lake: Lake) -> None:
    table = lake.create(OF)
    file = written(table, 0, ROW_GROUP_ROWS + 10)
    metadata = pq.read_metadata(path_of(lake, file.path))
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    assert [group.num_rows for group in groups] == [ROW_GROUP_ROWS, 10]
    statistics = groups[1].column(0).statistics
    assert groups[1].column(0).path_in_schema == "offset"
    assert (statistics.min, statistics.max) == (ROW_GROUP_ROWS, ROW_GROUP_ROWS + 9)


def test_rows_out_of_order_are_refused_and_no_rows_are_no_file(tmp_path: Path, lake: Lake) -> None:
    table = lake.create(OF)
    files = filesystem(table.uri)
    with pytest.raises(ValueError, match="offset 3 follows 4"):
        write_file(files, 0, [rows(0, 5), rows(3, 6)], now_ms=7)
    records: list[StoredRecord] = [(1, 0, None, None, []), (1, 0, None, None, [])]
    with pytest.raises(ValueError, match="offset 1 follows 1"):
        write_file(files, 0, [records_to_arrow(0, records)], now_ms=7)
    assert write_file(files, 0, [rows(0, 0)], now_ms=7) is None
    assert list(tmp_path.rglob("*.parquet")) == []


def test_where_a_table_lies() -> None:
    assert Lake("s3://bucket/lake/").uri(LakeTopic("orders", "id")) == "s3://bucket/lake/orders/id"


def test_a_log_that_is_gone_is_an_error_of_the_lake(lake: Lake) -> None:
    lake.create(OF).append([], [Advance(0, 0, 10)])
    table = opened(lake)
    for entry in path_of(lake, "_delta_log").glob("*.json"):
        entry.unlink()
    for ask in (table.next_offset, table.left_out):
        with pytest.raises(LakeError, match=r"orders/.*_delta_log"):
            ask(0)
