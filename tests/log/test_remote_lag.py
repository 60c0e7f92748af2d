"""korvet/log/stats.py: how far logs are archived, as Redis knows it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from korvet.errors import ErrorCode
from korvet.lake.verify import status
from korvet.log.remote.archived import Archived, RemoteOffsetStore
from korvet.log.stats import LakeLagReader
from korvet.telemetry.stats import LakeLag
from tests.lake.both import TOPIC, Both, both
from tests.support.archives import Format

NOW_MS = 10_000


def read(tiers: Both, now_ms: int = NOW_MS, reader: LakeLagReader | None = None) -> LakeLag:
    """Return the lag of the partition that is written to, in the next round of a reader or the first of a new one."""
    reader = reader or LakeLagReader(tiers.stores.logs, tiers.stores.indexes)
    reader.begin_round()
    lags, errors = reader.read(tiers.topic.partitions, now_ms)
    assert errors == []
    [lag] = [item for item in lags if item.partition == 0]
    return lag


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_the_lag_is_what_no_table_holds_yet(redis_url: str, tmp_path: Path, storage_format: Format) -> None:
    with both(redis_url, tmp_path / "lake", storage_format) as tiers:
        assert read(tiers) == LakeLag(topic=TOPIC, partition=0, archived_offset=0, records=0, age_ms=0)
        tiers.append(1000, 2000)
        lag = read(tiers)
        assert (lag.archived_offset, lag.records) == (0, 2)
        tiers.archive()
        end = tiers.bounds.high_watermark
        assert read(tiers) == LakeLag(topic=TOPIC, partition=0, archived_offset=end, records=0, age_ms=0)
        tiers.append(4000, 5000, 6000)
        tiers.trim(end)
        lag = read(tiers)
        assert (lag.archived_offset, lag.records) == (end, 3)


@pytest.mark.parametrize(
    ("storage_format", "configs"), [("record", {}), ("batch", {"message.timestamp.type": "LogAppendTime"})]
)
def test_the_age_counts_from_the_append_whatever_time_a_record_has(
    redis_url: str, tmp_path: Path, storage_format: Format, configs: dict[str, str]
) -> None:
    with both(redis_url, tmp_path / "lake", storage_format, configs) as tiers:
        before_ms = time.time_ns() // 1_000_000
        tiers.append(1000, 2000)
        after_ms = time.time_ns() // 1_000_000
        age_ms = read(tiers, after_ms + 60_000).age_ms
        assert age_ms is not None
        assert 60_000 <= age_ms <= 60_000 + after_ms - before_ms
        [shown, _] = status(tiers.source)
        assert shown.lag_ms is not None
        assert shown.lag_ms <= time.time_ns() // 1_000_000 - before_ms


def test_in_format_batch_the_age_counts_from_when_the_reader_saw_the_record(
    redis_url: str, tmp_path: Path
) -> None:
    with both(redis_url, tmp_path / "lake") as tiers:
        reader = LakeLagReader(tiers.stores.logs, tiers.stores.indexes)
        tiers.append(1)
        assert read(tiers, 1000, reader).age_ms == 0
        assert read(tiers, 3000, reader).age_ms == 2000
        tiers.archive()
        assert read(tiers, 4000, reader).age_ms == 0
        ends = []
        for at in range(300):
            tiers.append(2**40 + at)
            ends.append(tiers.bounds.high_watermark)
            assert read(tiers, 5000 + at * 10, reader).age_ms == at * 10
        # What is archived meanwhile makes the rest younger, and never younger than it is.
        RemoteOffsetStore(tiers.worker.redis).mirror([Archived(tiers.partition, ends[99], 0)])
        age_ms = read(tiers, 9000, reader).age_ms
        assert age_ms is not None
        assert 9000 - 5000 - 1000 <= age_ms <= 9000 - 5000 - 900
        assert [item.lag_ms for item in status(tiers.source)] == [None, 0]


def test_a_record_whose_time_is_still_to_come_lags_since_the_reader_saw_it(
    redis_url: str, tmp_path: Path
) -> None:
    """Else it would have no lag until that time, and all records after it."""
    with both(redis_url, tmp_path / "lake", "record") as tiers:
        reader = LakeLagReader(tiers.stores.logs, tiers.stores.indexes)
        now_ms = time.time_ns() // 1_000_000
        far = now_ms + 365 * 24 * 3_600_000
        tiers.worker.redis.call("XADD", tiers.partition.stream, f"{far}-0", "value", "from another client")
        tiers.append(1000)
        assert read(tiers, now_ms, reader).records == 2
        assert read(tiers, now_ms + 60_000, reader).age_ms == 60_000
        [shown, _] = status(tiers.source)
        assert (shown.lag_records, shown.lag_ms) == (2, None)


def test_a_log_that_is_gone_costs_only_itself(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake") as tiers:
        tiers.append(1000)
        gone = tiers.stores.logs.partition(TOPIC, 0, "gone", 10, "batch")
        reader = LakeLagReader(tiers.stores.logs, tiers.stores.indexes)
        lags, errors = reader.read([gone, tiers.partition], NOW_MS)
        assert [(lag.partition, lag.records) for lag in lags] == [(0, 1)]
        assert [error.code for error in errors] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
