"""The rows of what a pass keeps: how often there is one, what it counts, and how many there may be."""

from __future__ import annotations

from korvet.log.compaction import ROWS_MAX, RetainedRows
from korvet.log.compaction_store import RetainedRow
from korvet.log.index import BYTES_PER_ROW, RECORDS_PER_ROW


def test_a_row_comes_every_2048_records_and_counts_what_follows_it() -> None:
    rows = RetainedRows(0)
    kept = RECORDS_PER_ROW * 5 // 2
    for offset in range(0, kept * 10, 10):  # each tenth record was kept
        rows.add(offset + 1, 1, 100, offset)
    found, interval = rows.finish()
    ends = (RECORDS_PER_ROW, RECORDS_PER_ROW * 2)
    assert found == [
        RetainedRow(end * 10 - 9, kept - end, (kept - end) * 100, end * 10 - 10, end * 10 - 10)
        for end in ends
    ]
    assert interval == kept * 10 - 10


def test_a_row_comes_every_512_kib() -> None:
    rows = RetainedRows(0)
    for offset in range(5):
        rows.add(offset + 1, 1, BYTES_PER_ROW // 2, offset)
    found, interval = rows.finish()
    assert [(row.offset, row.bytes_after) for row in found] == [
        (2, 3 * BYTES_PER_ROW // 2),
        (4, BYTES_PER_ROW // 2),
    ]
    assert interval == 4


def test_largest_timestamps_are_those_below_a_row_and_those_since_the_one_before() -> None:
    rows = RetainedRows(0)
    for at, timestamp in enumerate([9, 50, 20, 10, 3]):
        rows.add(at + 1, 1, BYTES_PER_ROW, timestamp)
    found, interval = rows.finish()
    assert [(row.largest, row.interval) for row in found] == [(9, 9), (50, 50), (50, 20), (50, 10)]
    assert interval == 3


def test_no_row_stands_at_the_end_for_there_is_one_already() -> None:
    rows = RetainedRows(0)
    rows.add(1, RECORDS_PER_ROW, 1, 70)
    assert rows.finish() == ([], 70)


def test_where_the_log_does_not_begin_at_zero_there_is_a_row_at_its_start() -> None:
    rows = RetainedRows(30)
    assert rows.finish() == ([], -1)
    rows.add(35, 2, 10, 70)
    assert rows.finish() == ([RetainedRow(30, 2, 10, -1, -1)], 70)


def test_there_are_no_more_rows_than_one_script_may_write_and_none_of_their_timestamps_is_lost() -> None:
    rows = RetainedRows(0)
    count = ROWS_MAX * 3
    for at in range(count):
        rows.add(at + 1, 1, BYTES_PER_ROW, (at * 7919) % count)
    found, interval = rows.finish()
    assert len(found) <= ROWS_MAX
    after = 0
    for row in found:
        assert row.interval == max((at * 7919) % count for at in range(after, row.offset))
        after = row.offset
    # Of what is left out at the end the row there speaks.
    assert interval >= max((at * 7919) % count for at in range(after, count))
