"""The checks after kills find what is lost, doubled, changed and never sent, and nothing in what holds."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.lake_kills.pipelines import differences
from tests.lake_kills.readers import received
from tests.support.records import Sample, check_exactly

ROWS: list[tuple[Any, ...]] = [("a", 0, 1.5), ("a", 1, None), ("b", 0, 2.0)]


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.table(dict(zip(("topic", "offset", "amount"), map(list, zip(*rows, strict=True)), strict=True)))


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (ROWS, []),
        (ROWS[::-1], []),
        (ROWS[1:], ["1 lost or changed, as ('a', 0, 1.5)"]),
        ([*ROWS, ROWS[2]], ["1 doubled, as ('b', 0, 2.0)", "1 not as sent, as ('b', 0, 2.0)"]),
        (
            [*ROWS[:2], ("b", 0, 2.5)],
            ["1 lost or changed, as ('b', 0, 2.0)", "1 not as sent, as ('b', 0, 2.5)"],
        ),
    ],
)
def test_rows_of_a_pipeline(rows: list[tuple[Any, ...]], found: list[str]) -> None:
    assert differences(table(rows), ROWS) == found


def records(*offsets: int) -> pa.Table:
    times = pa.array([offset * 1000 for offset in offsets], pa.timestamp("us", tz="UTC"))
    columns: dict[str, Any] = {
        "partition": pa.array([0] * len(offsets), pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": times,
        "key": pa.nulls(len(offsets), pa.binary()),
        "value": [b"%d" % offset for offset in offsets],
        "headers": pa.array(
            [None] * len(offsets), pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
        ),
        "timestamp_ms": pa.nulls(len(offsets), pa.int64()),
    }
    return pa.table(columns)


def test_records_of_the_archive() -> None:
    sent = [Sample(0, None, b"%d" % offset, (), offset) for offset in range(3)]
    offsets = [(0, offset) for offset in range(3)]
    check_exactly(sent, received(records(2, 0, 1)), offsets)
    for wrong in ((0, 1), (0, 1, 1, 2), (0, 1, 3)):
        with pytest.raises(AssertionError):
            check_exactly(sent, received(records(*wrong)), offsets)
