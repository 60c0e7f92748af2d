"""korvet/log/stats.py: how far logs are archived, as Redis knows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from korvet.errors import ErrorCode, KafkaError
from korvet.log.stats import read_lake_lags
from korvet.telemetry.stats import LakeLag
from tests.lake.both import TOPIC, Both, both
from tests.support.archives import Format

NOW_MS = 10_000


def read(tiers: Both) -> tuple[LakeLag, list[KafkaError]]:
    """Return the lag of the partition that is written to, and what is wrong with others."""
    lags, errors = read_lake_lags(tiers.stores.logs, tiers.stores.indexes, tiers.topic.partitions, NOW_MS)
    [lag] = [each for each in lags if each.partition == 0]
    return lag, errors


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_the_lag_is_what_no_table_holds_yet(redis_url: str, tmp_path: Path, storage_format: Format) -> None:
    with both(redis_url, tmp_path / "lake", storage_format) as tiers:
        assert read(tiers) == (LakeLag(topic=TOPIC, partition=0, archived_offset=0, records=0, age_ms=0), [])
        tiers.append(1000, 2000)
        lag, _ = read(tiers)
        assert (lag.archived_offset, lag.records, lag.age_ms) == (0, 2, 9000)
        tiers.archive()
        end = tiers.bounds.high_watermark
        assert read(tiers)[0] == LakeLag(topic=TOPIC, partition=0, archived_offset=end, records=0, age_ms=0)
        tiers.append(4000, 5000, 6000)
        tiers.trim(end)
        lag, _ = read(tiers)
        assert (lag.archived_offset, lag.records, lag.age_ms) == (end, 3, 6000)


def test_a_log_that_is_gone_costs_only_itself(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake") as tiers:
        tiers.append(1000)
        gone = tiers.stores.logs.partition(TOPIC, 0, "gone", 10, "batch")
        lags, errors = read_lake_lags(
            tiers.stores.logs, tiers.stores.indexes, [gone, tiers.partition], NOW_MS
        )
        assert [(lag.partition, lag.records) for lag in lags] == [(0, 1)]
        assert [error.code for error in errors] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
