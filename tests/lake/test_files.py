"""korvet/lake/files.py through the reader: files in which others have left rows in any order, in types of theirs."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.lake.files import TableFile, filesystem
from korvet.lake.reader import LakeReader, RecordTimestamp
from korvet.lake.table import Advance, ArchiveTable, Lake
from korvet.protocol.records.record import StoredRecord
from tests.lake.archives import (
    OF,
    append,
    by_time,
    opened,
    path_of,
    read_all,
    record,
    request,
    write_file,
)
from tests.lake.rows import records_to_arrow

PARTITION = 0
# How Spark, and others, write timestamps; and as Korvet does.
TYPES: list[dict[str, Any]] = [
    {"use_deprecated_int96_timestamps": True},
    {"coerce_timestamps": "ms"},
    {"coerce_timestamps": "us"},
]


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few records make several windows."""
    monkeypatch.setattr("korvet.lake.files.ROW_GROUP_ROWS", 4)


def external(table: ArchiveTable, name: str, rows: pa.Table, **options: Any) -> TableFile:
    """Write rows as they come."""
    path = f"partition={PARTITION}/{name}.snappy.parquet"
    file = Path(table.uri.removeprefix("file://")) / path
    file.parent.mkdir(exist_ok=True)
    pq.write_table(rows.drop_columns(["partition"]), file, **options)
    offsets = rows.column("offset").to_numpy()
    times = [item for item in rows.column("timestamp").cast(pa.int64()).to_pylist() if item is not None]
    return TableFile(
        path=path,
        partition=PARTITION,
        size_bytes=file.stat().st_size,
        rows=rows.num_rows,
        first_offset=int(offsets.min()),
        last_offset=int(offsets.max()),
        first_timestamp=min(times, default=None),
        last_timestamp=max(times, default=None),
        rows_without_timestamp=rows.num_rows - len(times),
        written_ms=1,
    )


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.sampled_from([-1, 0, 1, 2, 2, 3, 1_700_000_000_000, 2**62]), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(1, 12),
    st.sampled_from(TYPES),
    st.randoms(use_true_random=False),
)
def test_rows_in_any_order_are_read_and_found_as_if_they_were_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    times: list[int],
    files: int,
    group_rows: int,
    options: dict[str, Any],
    chance: random.Random,
) -> None:
    lake = Lake(str(tmp_path_factory.mktemp("lake")))
    records: list[StoredRecord] = [
        (2 * at, time, b"k", b"%d" % at, [("h", b"x")] if at % 3 else []) for at, time in enumerate(times)
    ]
    end = 2 * len(records)
    table = lake.create(OF)
    rows = pa.Table.from_batches([records_to_arrow(PARTITION, records)])
    # Every row anywhere, or whole runs in another order, as an OPTIMIZE leaves them.
    run = chance.choice([1, 5])
    runs = [range(at, min(at + run, len(records))) for at in range(0, len(records), run)]
    chance.shuffle(runs)
    order = [item for one in runs for item in one]
    bounds = [len(order) * number // files for number in range(files + 1)]
    parts = [order[first:stop] for first, stop in pairwise(bounds) if stop > first]
    written = [
        external(table, f"part-{number}", rows.take(part), row_group_size=group_rows, **options)
        for number, part in enumerate(parts)
    ]
    table.append(written, [Advance(PARTITION, 0, end)])
    reader = LakeReader(lake)
    for at in range(end):
        assert read_all(reader, end, at) == records[(at + 1) // 2 :]
    assert read_all(reader, end, bytes_max=150) == records
    stamps = [RecordTimestamp(offset, time) for offset, time, *_ in records]
    whole = request(0, end, PARTITION)
    for time in sorted(set(times)):
        assert by_time(reader, whole, time) == next(stamp for stamp in stamps if stamp.timestamp >= time)
    largest = max(stamps, key=lambda stamp: (stamp.timestamp, -stamp.offset))
    assert by_time(reader, whole) == (None if largest.timestamp < 0 else largest)


def encodings(lake: Lake, name: str) -> list[set[str]]:
    """Return the encodings of a column of the one file, by row group."""
    [file] = opened(lake).files()
    metadata = pq.read_metadata(path_of(lake, file.path))
    at = metadata.schema.names.index(name)
    return [set(metadata.row_group(group).column(at).encodings) for group in range(metadata.num_row_groups)]


def test_only_columns_whose_values_repeat_have_dictionaries(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    times = range(1_700_000_000_000, 1_700_000_000_010)
    records: list[StoredRecord] = [
        (at, time, b"key %d" % (at % 2), b"value %d" % at, []) for at, time in enumerate(times)
    ]
    append(lake, records, 10)
    assert encodings(lake, "key") == [{"PLAIN", "RLE", "RLE_DICTIONARY"}] * 3
    assert encodings(lake, "value") == [{"PLAIN", "RLE"}] * 3
    assert read_all(LakeReader(lake), 10, bytes_max=150) == records


def test_what_is_read_from_redis_in_small_parts_becomes_full_row_groups(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    records = [record(at) for at in range(10)]
    table = lake.create(OF)
    parts = [records_to_arrow(PARTITION, records[at : at + 3]) for at in range(0, 10, 3)]
    [file] = [write_file(filesystem(table.uri), PARTITION, parts, 1)]
    assert file is not None
    metadata = pq.read_metadata(path_of(lake, file.path))
    assert [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)] == [4, 4, 2]
    table.append([file], [Advance(PARTITION, 0, 10)])
    assert read_all(LakeReader(lake), 10, bytes_max=150) == records
