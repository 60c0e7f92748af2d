"""korvet/lake/reader.py: archived records by offset and by time, against a plain list of them."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.errors import LakeError
from korvet.lake.reader import LakeReader, RecordTimestamp
from korvet.lake.row_groups import DataFiles, RowGroup
from korvet.lake.table import Lake, LakeTopic
from korvet.log.remote.client import RemoteRequest
from korvet.protocol.records.record import StoredRecord
from tests.lake import archives
from tests.lake.archives import OF, by_time, record, request
from tests.support.batches import read

PARTITION = 2

_numbers = itertools.count()


def append(lake: Lake, records: list[StoredRecord], next_offset: int, of: LakeTopic = OF) -> Path:
    """Archive records as one file, up to an offset; returns where it lies."""
    return Path(lake.uri(of)) / archives.append(lake, records, next_offset, PARTITION, of)


def place(offset: int, archived: int, of: LakeTopic = OF, bytes_max: int = 1 << 30) -> RemoteRequest:
    return request(offset, archived, PARTITION, of, bytes_max)


def offsets(data: bytes) -> list[int]:
    return [batch.offset for batch in read(data)]


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few records make several row groups."""
    monkeypatch.setattr("korvet.lake.files.ROW_GROUP_ROWS", 4)


def test_records_are_read_from_any_offset_across_files_and_gaps(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    append(lake, [record(at) for at in range(10)], 10)
    append(lake, [], 20)
    append(lake, [record(at) for at in range(20, 40, 3)], 50)
    reader = LakeReader(lake)
    every = [*range(10), *range(20, 40, 3)]
    for start in range(50):
        result = reader.answer(place(start, 50))
        assert offsets(result.data) == [at for at in every if at >= start]
        assert (result.next_offset, result.more) == (50, False)
    assert reader.answer(place(60, 50)).next_offset == 60


def test_what_is_kept_of_all_topics_together_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.lake.row_groups.GROUPS_BYTES_MAX", 1)
    lake, other = Lake(str(tmp_path)), OF._replace(topic="other")
    reader = LakeReader(lake)
    files = [append(lake, [record(0)], 1, of) for of in (OF, other)]
    for of in (OF, other):
        assert offsets(reader.answer(place(0, 1, of)).data) == [0]
    for file in files:
        file.unlink()
    # The last rows stay, whatever they weigh; the others are read again, where they are still there.
    assert offsets(reader.answer(place(0, 1, other)).data) == [0]
    with pytest.raises(LakeError, match="cannot be read"):
        reader.answer(place(0, 1))


def test_rows_are_read_once_whichever_thread_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[tuple[RowGroup, str]] = []

    def read(data: DataFiles, group: RowGroup, columns: Sequence[str]) -> pa.RecordBatch:
        threads.append((group, threading.current_thread().name))
        return read_of_before(data, group, columns)

    read_of_before = DataFiles._read
    monkeypatch.setattr(DataFiles, "_read", read)
    lake = Lake(str(tmp_path))
    append(lake, [record(at) for at in range(20)], 20)
    result = LakeReader(lake).answer(place(3, 20))
    assert offsets(result.data) == list(range(3, 20))
    assert len({group for group, _ in threads}) == len(threads) == 5
    # The next row group, while the one before it is.
    names = [name.rpartition("_")[0] for group, name in sorted(threads, key=lambda thread: thread[0].index)]
    assert names[1:] == ["lake read ahead"] * 4
    # It is not begun where the first one is enough.
    threads.clear()
    LakeReader(lake).answer(place(0, 20, bytes_max=1))
    assert [group.index for group, _ in threads] == [0]


def test_what_was_archived_since_is_seen(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    append(lake, [record(0)], 1)
    reader = LakeReader(lake)
    assert offsets(reader.answer(place(0, 1)).data) == [0]
    append(lake, [record(1)], 2)
    assert offsets(reader.answer(place(0, 2)).data) == [0, 1]


def test_a_table_is_opened_again_if_its_log_was_cleaned_up(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    append(lake, [record(0)], 1)
    archives.append(lake, [record(0)], 1)
    reader = LakeReader(lake)
    assert offsets(reader.answer(place(0, 1)).data) == [0]
    # Of the other partition the log is read when it is asked for.
    DeltaTable(lake.uri(OF)).create_checkpoint()
    for entry in archives.path_of(lake, "_delta_log").glob("*.json"):
        entry.unlink()
    assert offsets(reader.answer(request(0, 1)).data) == [0]


def test_less_in_the_lake_than_is_said_to_be_archived_is_an_error(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    with pytest.raises(LakeError, match="no such table"):
        LakeReader(lake).answer(place(0, 1))
    append(lake, [record(0)], 1)
    with pytest.raises(LakeError, match="not archived up to 2"):
        LakeReader(lake).answer(place(0, 2))


@pytest.mark.parametrize("damage", ["gone", "cut off", "overwritten"])
def test_a_damaged_file_is_an_error_that_names_it_and_others_are_read(tmp_path: Path, damage: str) -> None:
    lake = Lake(str(tmp_path))
    append(lake, [record(at) for at in range(4)], 4)
    path = append(lake, [record(at) for at in range(4, 10)], 10)
    append(lake, [record(at) for at in range(10, 20)], 20)
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(content[:-20] if damage == "cut off" else b"x" * len(content))
    reader = LakeReader(lake)
    for first in (4, 5):
        result = reader.answer(place(2, 20))
        assert (offsets(result.data), result.next_offset, result.more) == ([2, 3], 4, True)
        with pytest.raises(LakeError, match=path.name):
            reader.answer(place(first, 20))
    assert offsets(reader.answer(place(10, 20)).data) == list(range(10, 20))


def test_a_bit_that_flipped_in_a_value_is_an_error_and_no_record(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    value = random.Random(1).randbytes(400)
    path = append(lake, [(at, 1000, b"k", value, []) for at in range(3)], 3)
    data = bytearray(path.read_bytes())
    # What cannot be compressed stands in the file as it is.
    data[data.index(value[100:200])] ^= 1
    path.write_bytes(data)
    with pytest.raises(LakeError, match=path.name):
        LakeReader(lake).answer(place(0, 3))


TIMES = st.integers(-1, 8) | st.sampled_from([2**62, 253_402_300_800_000])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(TIMES, max_size=11), min_size=1, max_size=4), st.integers(0, 40))
def test_records_are_found_by_time(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], first: int
) -> None:
    lake = Lake(str(tmp_path_factory.mktemp(f"lake{next(_numbers)}")))
    stamps: list[RecordTimestamp] = []
    for times in files:
        start = len(stamps)
        stamps += [RecordTimestamp(start + at, time) for at, time in enumerate(times)]
        append(lake, [record(*stamp) for stamp in stamps[start:]], len(stamps))
    reader = LakeReader(lake)
    wanted = place(first, len(stamps))
    there = [stamp for stamp in stamps if stamp.offset >= first]
    for timestamp in (*range(10), 2**62, 2**62 + 1):
        expected = next((interval for interval in there if interval.timestamp >= timestamp), None)
        assert by_time(reader, wanted, timestamp) == expected
    largest = max((interval.timestamp for interval in there), default=-1)
    first_largest = next((interval for interval in there if interval.timestamp == largest), None)
    assert by_time(reader, wanted) == (None if largest < 0 else first_largest)
