"""The keeper's figures as /metrics tells them: published, replaced and withdrawn as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from korvet.telemetry import process_files as metrics_files
from korvet.telemetry.snapshot import (
    GroupLag,
    GroupStats,
    LogCollector,
    LogStats,
    Snapshot,
    publish_log_snapshot,
    withdraw_log_snapshot,
)


def of(
    topic: str, partition: int | None, age_ms: int | None = 1500, compacted_bytes: int | None = None
) -> LogStats:
    return LogStats(
        topic=topic,
        partition=partition,
        records=7,
        size_bytes=900,
        index_rows=3,
        start_offset=None if partition is None else 2,
        end_offset=None if partition is None else 9,
        oldest_age_ms=age_ms,
        compacted_bytes=compacted_bytes,
    )


def page(directory: Path, now: float = 0.0) -> list[str]:
    registry = CollectorRegistry()
    registry.register(LogCollector(directory, lambda: now))
    return generate_latest(registry).decode().splitlines()


def told(directory: Path, now: float = 0.0) -> list[str]:
    """Return the lines with values, but for those of groups by state, which are always there."""
    lines = page(directory, now)
    return [line for line in lines if not line.startswith(("#", "korvet_consumer_groups{"))]


def test_a_partition_has_every_gauge(tmp_path: Path) -> None:
    publish_log_snapshot(tmp_path, Snapshot(1.5, 9.0, [of("orders", 4)]))
    labels = '{partition="4",topic="orders"}'
    assert told(tmp_path) == [
        "korvet_log_figures_timestamp_seconds 1.5",
        f"korvet_log_size_bytes{labels} 900.0",
        f"korvet_log_records{labels} 7.0",
        f"korvet_log_index_rows{labels} 3.0",
        f"korvet_log_start_offset{labels} 2.0",
        f"korvet_log_end_offset{labels} 9.0",
        f"korvet_log_oldest_record_age_seconds{labels} 1.5",
    ]


def test_a_log_that_is_compacted_tells_how_much_of_it_is(tmp_path: Path) -> None:
    publish_log_snapshot(tmp_path, Snapshot(1.5, 9.0, [of("orders", 4, compacted_bytes=225)]))
    labels = '{partition="4",topic="orders"}'
    assert set(told(tmp_path)) >= {
        f"korvet_log_compacted_bytes{labels} 225.0",
        f"korvet_log_dirty_ratio{labels} 0.75",
    }


def test_a_sum_has_no_offsets_and_an_empty_log_no_age(tmp_path: Path) -> None:
    publish_log_snapshot(tmp_path, Snapshot(1.0, 9.0, [of("orders", None, age_ms=None)]))
    names = [line.partition("{")[0] for line in told(tmp_path)[1:]]
    assert names == ["korvet_log_size_bytes", "korvet_log_records", "korvet_log_index_rows"]


def test_a_new_snapshot_tells_nothing_of_the_one_before(tmp_path: Path) -> None:
    publish_log_snapshot(tmp_path, Snapshot(1.0, 9.0, [of("deleted", 0)]))
    publish_log_snapshot(tmp_path, Snapshot(2.0, 9.0, [of("orders", 0)]))
    assert not [line for line in told(tmp_path) if "deleted" in line]
    assert [path.name for path in tmp_path.iterdir()] == ["log_figures_keeper.json"]


def test_what_was_withdrawn_is_not_told(tmp_path: Path) -> None:
    withdraw_log_snapshot(tmp_path)
    assert told(tmp_path) == []
    publish_log_snapshot(tmp_path, Snapshot(1.0, 9.0, [of("orders", 0)]))
    withdraw_log_snapshot(tmp_path)
    assert told(tmp_path) == []


def test_a_snapshot_that_nobody_renewed_is_not_told(tmp_path: Path) -> None:
    publish_log_snapshot(tmp_path, Snapshot(1.0, 9.0, [of("orders", 0)]))
    assert told(tmp_path, now=9.0) != []
    assert told(tmp_path, now=9.1) == []


@pytest.mark.parametrize("text", ["", "{", '{"taken_at": 1}', '{"taken_at": 1, "valid_until": 9, "logs": 5}'])
def test_figures_of_another_version_are_not_told(tmp_path: Path, text: str) -> None:
    """After an upgrade in place the keeper of the version before may have left them."""
    publish_log_snapshot(tmp_path, Snapshot(1.0, 9.0, [of("orders", 0)]))
    (tmp_path / "log_figures_keeper.json").write_text(text)
    assert told(tmp_path) == []


def test_what_a_keeper_told_goes_with_it_and_with_no_other_process(tmp_path: Path) -> None:
    publish_log_snapshot(tmp_path, Snapshot(1.0, 9.0, [of("orders", 0)]))
    metrics_files.forget_live(tmp_path, "worker0")
    assert told(tmp_path) != []
    metrics_files.forget_live(tmp_path, "keeper")
    assert told(tmp_path) == []


def test_the_lag_of_a_group_is_told_by_partition_or_topic(tmp_path: Path) -> None:
    lags = [
        GroupLag(group='a "group"', topic="orders", partition=4, records=7, age_ms=1500),
        GroupLag(group="b", topic="orders", partition=None, records=2**53),
    ]
    publish_log_snapshot(tmp_path, Snapshot(1.0, 9.0, [], lags))
    assert told(tmp_path)[1:] == [
        'korvet_consumer_group_lag_records{group="a \\"group\\"",partition="4",topic="orders"} 7.0',
        'korvet_consumer_group_lag_records{group="b",partition="",topic="orders"} 9.007199254740992e+15',
        'korvet_consumer_group_lag_seconds{group="a \\"group\\"",partition="4",topic="orders"} 1.5',
        'korvet_consumer_group_lag_seconds{group="b",partition="",topic="orders"} 0.0',
    ]


def test_groups_are_told_with_members_and_generation_and_by_state(tmp_path: Path) -> None:
    groups = [
        GroupStats(group="a", members=3, generation=8),
        GroupStats(group="(other)", members=5, generation=None),
    ]
    publish_log_snapshot(tmp_path, Snapshot(1.0, 9.0, [], [], groups, {"Stable": 2, "Empty": 4}))
    assert told(tmp_path)[1:] == [
        'korvet_consumer_group_members{group="a"} 3.0',
        'korvet_consumer_group_members{group="(other)"} 5.0',
        'korvet_consumer_group_generation{group="a"} 8.0',
        'korvet_consumer_group_rebalances_total{group="a"} 8.0',
    ]
    assert [line for line in page(tmp_path) if line.startswith("korvet_consumer_groups{")] == [
        'korvet_consumer_groups{state="PreparingRebalance"} 0.0',
        'korvet_consumer_groups{state="CompletingRebalance"} 0.0',
        'korvet_consumer_groups{state="Stable"} 2.0',
        'korvet_consumer_groups{state="Empty"} 4.0',
    ]
