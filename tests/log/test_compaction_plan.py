"""When a log is compacted and up to where, and the index rows of what a pass retains. Pure: no Redis."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from korvet.config.settings import Settings
from korvet.log import compaction as compaction_plan
from korvet.log.compaction import HISTORY_MAX, ROWS_MAX, Ages, RetainedRows, Tombstones
from korvet.log.compaction_store import CompactionState, Period
from korvet.log.index import BYTES_PER_ROW, RECORDS_PER_ROW, Row
from korvet.topics import config as topic_config
from korvet.topics.config import TopicConfig

NOW = 1_000_000
DAY_MS = 86_400_000
CONFIG = topic_config.effective({"cleanup.policy": "compact"}, Settings())

# A hundred records of ten bytes, compacted up to the fiftieth, where 300 of 500 bytes are left; a tail of ten.
LOOK = CompactionState(
    now_ms=NOW,
    end=100,
    start=0,
    bytes=1000,
    interval=NOW - 5,
    start_bytes=200,
    compacted_end=50,
    segment=0,
    history=(),
    token="",
    compacted_bytes=500,
    newest=Row(90, 90, 900, -1, NOW - 60),
    stable=100,
)
FRESH = LOOK._replace(compacted_end=0, segment=None, start_bytes=0, compacted_bytes=0)
AT_CLEAN_END = Row(50, 50, 500, -1, -1)
ROWS = [Row(60, 60, 600, -1, NOW - 100), Row(70, 70, 700, -1, NOW - 200), Row(90, 90, 900, -1, NOW - 60)]


def config(**values: float) -> TopicConfig:
    return msgspec.structs.replace(CONFIG, **values)


def end(look: CompactionState, ages: Ages = Ages(), **values: float) -> int | None:  # noqa: B008 - a value
    due = compaction_plan.due(look, config(**values), ages, ROWS)
    return None if due is None else due.compacted_end


def ratio(state: CompactionState) -> float | None:
    due = compaction_plan.due(state, config(min_cleanable_dirty_ratio=0.0), Ages(), ())
    return None if due is None else due.ratio


def test_the_ratio_is_what_could_be_compacted_of_all_but_the_tail() -> None:
    assert ratio(LOOK) == 400 / 700
    assert ratio(FRESH) == 1
    assert ratio(FRESH._replace(newest=None)) is None
    # What retention or DeleteRecords took away counts for nothing.
    assert ratio(LOOK._replace(start=60, start_bytes=600)) == 1
    assert ratio(LOOK._replace(newest=AT_CLEAN_END)) is None


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 90), (0.57, 90), (400 / 700, None), (1.0, None)])
def test_a_log_is_due_when_its_ratio_is_above_the_one_wanted(ratio: float, expected: int | None) -> None:
    assert end(LOOK, min_cleanable_dirty_ratio=ratio) == expected


def test_the_ratio_of_a_pass_is_that_of_all_it_takes() -> None:
    old_tail = Ages(None, NOW - 8 * DAY_MS)
    assert compaction_plan.due(LOOK, CONFIG, Ages(), ()) == (90, 400 / 700)
    assert compaction_plan.due(LOOK, CONFIG, old_tail, ()) == (100, 500 / 800)


def test_a_log_without_anything_to_compact_is_not_due() -> None:
    empty = FRESH._replace(end=0, bytes=0, newest=None, interval=-1)
    assert end(empty, min_cleanable_dirty_ratio=0.0) is None
    done = LOOK._replace(compacted_end=90, compacted_bytes=900)
    assert end(done, min_cleanable_dirty_ratio=0.0) is None


def test_the_tail_counts_when_its_oldest_record_is_as_old_as_a_segment_may_get() -> None:
    values: Any = {"segment_ms": 1000}
    assert end(FRESH, Ages(None, NOW - 999), **values) == 90
    assert end(FRESH, Ages(None, NOW - 1000), **values) == 100
    assert end(FRESH, Ages(None, NOW - 700), max_compaction_lag_ms=700) == 100
    assert end(FRESH._replace(newest=None), Ages(None, NOW - 1000), **values) == 100
    assert end(FRESH._replace(newest=None), Ages(None, NOW - 999), **values) is None


def test_a_record_that_waited_too_long_makes_a_log_due_whatever_the_ratio() -> None:
    values: Any = {"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 500}
    assert end(LOOK, Ages(NOW - 499), **values) is None
    assert end(LOOK, Ages(NOW - 500), **values) == 90


@pytest.mark.parametrize("timestamp", [-1, 0])
def test_a_record_without_a_time_makes_no_log_due(timestamp: int) -> None:
    values: Any = {"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 500}
    assert end(LOOK, Ages(timestamp), **values) is None


def test_records_that_are_too_young_stay_and_all_after_them() -> None:
    values: Any = {"min_cleanable_dirty_ratio": 0.0}
    assert end(LOOK, min_compaction_lag_ms=50, **values) == 90
    assert end(LOOK, min_compaction_lag_ms=61, **values) == 70
    assert end(LOOK, min_compaction_lag_ms=101, **values) is None
    # The tail may be as old as it wants: some of it is not.
    old_tail = Ages(None, NOW - 8 * DAY_MS)
    assert end(LOOK, old_tail, min_compaction_lag_ms=5, **values) == 100
    assert end(LOOK, old_tail, min_compaction_lag_ms=6, **values) == 90


def test_what_a_transaction_has_not_decided_is_not_compacted() -> None:
    values: Any = {"min_cleanable_dirty_ratio": 0.0}
    assert end(LOOK._replace(stable=90), **values) == 90
    assert end(LOOK._replace(stable=89), **values) == 70
    assert end(LOOK._replace(stable=55), **values) is None
    old_tail = Ages(None, NOW - 8 * DAY_MS)
    assert end(LOOK._replace(stable=95), old_tail, **values) == 90
    assert compaction_plan.needs_rows(LOOK._replace(stable=95), CONFIG)


def test_the_ratio_counts_only_what_is_old_enough() -> None:
    # Of 300 bytes that are left and 200 that are old enough.
    assert end(LOOK, min_compaction_lag_ms=61, min_cleanable_dirty_ratio=0.39) == 70
    assert end(LOOK, min_compaction_lag_ms=61, min_cleanable_dirty_ratio=0.41) is None


def test_tombstones_that_are_due_make_a_log_due() -> None:
    values: Any = {"min_cleanable_dirty_ratio": 1.0, "delete_retention_ms": 300}
    look = LOOK._replace(history=(Period(30, NOW - 299),))
    assert end(look, **values) is None
    look = LOOK._replace(history=(Period(30, NOW - 300),))
    assert end(look, **values) == 90
    assert end(look._replace(newest=AT_CLEAN_END, end=50), **values) == 50
    # Nothing of the compacted part is left.
    assert end(look._replace(start=60, start_bytes=600), **values) is None


def test_ages_are_asked_for_only_where_something_hangs_on_them() -> None:
    assert not compaction_plan.needs_oldest(LOOK, CONFIG)
    assert compaction_plan.needs_oldest(LOOK, config(max_compaction_lag_ms=5))
    assert not compaction_plan.needs_oldest(LOOK._replace(compacted_end=100), config(max_compaction_lag_ms=5))
    assert compaction_plan.needs_tail(LOOK, CONFIG)
    assert not compaction_plan.needs_tail(LOOK, config(min_cleanable_dirty_ratio=0.7))
    assert compaction_plan.needs_tail(LOOK, config(min_cleanable_dirty_ratio=0.7, max_compaction_lag_ms=5))
    assert not compaction_plan.needs_tail(LOOK._replace(end=90, bytes=900), CONFIG)
    assert not compaction_plan.needs_rows(LOOK, CONFIG)
    assert compaction_plan.needs_rows(LOOK, config(min_compaction_lag_ms=1))


def test_a_tombstone_is_due_by_the_period_in_which_it_was_compacted_first() -> None:
    history = [Period(10, NOW - 900), Period(20, NOW - 500), Period(30, NOW - 100)]
    tombstones = Tombstones(history, NOW, 500)
    assert tombstones.periods == [(10, True), (20, True), (30, False)]
    assert tombstones.history == [Period(30, NOW - 100)]


def test_a_long_history_is_kept_short_and_lets_no_tombstone_go_earlier() -> None:
    history = [Period(n, n) for n in range(1, 3 * HISTORY_MAX)]
    kept = Tombstones(history, NOW, NOW).history
    assert len(kept) == HISTORY_MAX - 1
    assert kept[-1] == history[-1]
    assert kept[0].ms == kept[0].end == 2 * HISTORY_MAX + 1


def test_a_row_comes_every_2048_records_and_counts_what_follows_it() -> None:
    rows = RetainedRows(0)
    kept = RECORDS_PER_ROW * 5 // 2
    for offset in range(0, kept * 10, 10):  # each tenth record was kept
        rows.add(offset + 1, 1, 100, offset)
    result, interval = rows.finish()
    ends = (RECORDS_PER_ROW, RECORDS_PER_ROW * 2)
    assert result == [
        Row(end * 10 - 9, kept - end, (kept - end) * 100, end * 10 - 10, end * 10 - 10) for end in ends
    ]
    assert interval == kept * 10 - 10


def test_a_row_comes_every_512_kib() -> None:
    rows = RetainedRows(0)
    for offset in range(5):
        rows.add(offset + 1, 1, BYTES_PER_ROW // 2, offset)
    result, interval = rows.finish()
    assert [(row.offset, row.bytes) for row in result] == [
        (2, 3 * BYTES_PER_ROW // 2),
        (4, BYTES_PER_ROW // 2),
    ]
    assert interval == 4


def test_largest_timestamps_are_those_below_a_row_and_those_since_the_one_before() -> None:
    rows = RetainedRows(0)
    for at, timestamp in enumerate([9, 50, 20, 10, 3]):
        rows.add(at + 1, 1, BYTES_PER_ROW, timestamp)
    result, interval = rows.finish()
    assert [(row.largest, row.interval) for row in result] == [(9, 9), (50, 50), (50, 20), (50, 10)]
    assert interval == 3


def test_no_row_stands_at_the_end_for_there_is_one_already() -> None:
    rows = RetainedRows(0)
    rows.add(1, RECORDS_PER_ROW, 1, 70)
    assert rows.finish() == ([], 70)


def test_where_the_log_does_not_begin_at_zero_there_is_a_row_at_its_start() -> None:
    rows = RetainedRows(30)
    assert rows.finish() == ([], -1)
    rows.add(35, 2, 10, 70)
    assert rows.finish() == ([Row(30, 2, 10, -1, -1)], 70)


def test_there_are_no_more_rows_than_one_script_may_write_and_none_of_their_timestamps_is_lost() -> None:
    rows = RetainedRows(0)
    count = ROWS_MAX * 3
    for at in range(count):
        rows.add(at + 1, 1, BYTES_PER_ROW, (at * 7919) % count)
    result, interval = rows.finish()
    assert len(result) <= ROWS_MAX
    after = 0
    for row in result:
        assert row.interval == max((at * 7919) % count for at in range(after, row.offset))
        after = row.offset
    # Of what is left out at the end the row there speaks.
    assert interval >= max((at * 7919) % count for at in range(after, count))
