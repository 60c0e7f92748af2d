"""korvet/lake/expiry.py: tables are compacted and expired in one round, and what fails hinders nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from korvet.lake.expiry import Expiry, UpkeepRound, run_upkeep
from tests.lake.both import both


def test_a_round_compacts_and_lets_go_what_is_too_old(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake", configs={"retention.ms": "1000"}) as tiers:
        tiers.archive_batches((1000, 2000), (3000, 4000), (5000, 6000))
        assert run_upkeep(tiers.source, tiers.lake, now_ms=1500) == UpkeepRound(compacted=3)
        assert len(tiers.files()) == 1
        assert run_upkeep(tiers.source, tiers.lake, now_ms=1500) == UpkeepRound()
        assert run_upkeep(tiers.source, tiers.lake, now_ms=9000) == UpkeepRound(expired=1, expired_records=6)
        assert tiers.files() == []


def test_what_cannot_be_merged_is_a_failure_and_retention_goes_on(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with both(redis_url, tmp_path / "lake", configs={"retention.ms": "1000"}) as tiers:
        tiers.archive_batches((1000, 2000), (3000, 4000))
        first, second = tiers.files()
        tiers.path_of(second.path).write_bytes(b"no file of rows")
        done = run_upkeep(tiers.source, tiers.lake, now_ms=3500)
        assert (done.compacted, done.expired, done.failures) == (0, 1, 1)
        assert [file.path for file in tiers.files()] == [second.path]
        assert first.rows == done.expired_records
        assert "could not be compacted" in caplog.text


def test_tables_without_any_topic_are_told_of(redis_url: str, tmp_path: Path) -> None:
    with both(redis_url, tmp_path / "lake") as tiers:
        tiers.archive_batches((1000,))
        elsewhere = tiers.source.__class__(redis_url=redis_url, namespace="another")
        assert Expiry(tiers.source, tiers.lake).round((), 24, 0).gone == []
        with pytest.raises(ValueError, match="is that the Redis and the namespace of this lake"):
            run_upkeep(elsewhere, tiers.lake, now_ms=0)
