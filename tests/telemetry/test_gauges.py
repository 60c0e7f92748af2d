"""The snapshots of keeper and archiver as /metrics shows them."""

from __future__ import annotations

from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from korvet.telemetry.gauges import SnapshotCollector
from korvet.telemetry.snapshot import (
    ArchiverTotals,
    LakeLagSnapshot,
    LogStatsSnapshot,
    PipelinesSnapshot,
    Snapshot,
    TablesSnapshot,
    publish,
)
from korvet.telemetry.stats import (
    GroupLag,
    GroupStats,
    LakeLag,
    LogStats,
    PipelineLoss,
    PipelineStats,
    TableSize,
    limited,
)


def shown(directory: Path, *snapshots: Snapshot) -> list[str]:
    """Return the lines with values, except those of groups by state without a group."""
    for snapshot in snapshots:
        publish(directory / snapshot.FILE, snapshot)
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(directory))
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#") and not line.endswith('"} 0.0')]


def log(partition: int | None, age_ms: int | None = 1500, compacted_bytes: int | None = None) -> LogStats:
    return LogStats(
        topic="orders",
        partition=partition,
        records=7,
        size_bytes=900,
        index_rows=3,
        start_offset=None if partition is None else 2,
        end_offset=None if partition is None else 9,
        oldest_age_ms=age_ms,
        compacted_bytes=compacted_bytes,
    )


def test_without_snapshots_nothing_is_shown(tmp_path: Path) -> None:
    assert shown(tmp_path) == []


def test_a_partition_has_every_gauge(tmp_path: Path) -> None:
    labels = '{partition="4",topic="orders"}'
    assert shown(tmp_path, LogStatsSnapshot(taken_at=1.5, logs=[log(4, compacted_bytes=225)])) == [
        "korvet_log_figures_timestamp_seconds 1.5",
        f"korvet_log_size_bytes{labels} 900.0",
        f"korvet_log_records{labels} 7.0",
        f"korvet_log_index_rows{labels} 3.0",
        f"korvet_log_compacted_bytes{labels} 225.0",
        f"korvet_log_dirty_ratio{labels} 0.75",
        f"korvet_log_start_offset{labels} 2.0",
        f"korvet_log_end_offset{labels} 9.0",
        f"korvet_log_oldest_record_age_seconds{labels} 1.5",
    ]


def test_open_transactions_are_counted_and_the_oldest_has_an_age(tmp_path: Path) -> None:
    lagging = msgspec.structs.replace(log(4), stable_lag=3)
    snapshot = LogStatsSnapshot(
        taken_at=1.5, logs=[lagging], transactions={"Ongoing": 2, "Empty": 1}, transaction_age_ms=2500
    )
    lines = shown(tmp_path, snapshot)
    assert 'korvet_log_last_stable_offset_lag{partition="4",topic="orders"} 3.0' in lines
    assert lines[-3:] == [
        'korvet_transactional_ids{state="Ongoing"} 2.0',
        'korvet_transactional_ids{state="Empty"} 1.0',
        "korvet_transaction_oldest_age_seconds 2.5",
    ]


def test_a_sum_has_no_offsets_and_an_empty_log_no_age(tmp_path: Path) -> None:
    lines = shown(tmp_path, LogStatsSnapshot(taken_at=1.0, logs=[log(None, age_ms=None)]))
    names = [line.partition("{")[0] for line in lines[1:]]
    assert names == ["korvet_log_size_bytes", "korvet_log_records", "korvet_log_index_rows"]


def test_the_lag_of_a_group_is_shown_by_partition_or_topic(tmp_path: Path) -> None:
    lags = [
        GroupLag(group='a "group"', topic="orders", partition=4, records=7, age_ms=1500, offset=9),
        GroupLag(group="b", topic="orders", partition=None, records=2**53, age_ms=1),
    ]
    assert shown(tmp_path, LogStatsSnapshot(taken_at=1.0, logs=[], lags=lags))[1:] == [
        'korvet_consumer_group_lag_records{group="a \\"group\\"",partition="4",topic="orders"} 7.0',
        'korvet_consumer_group_lag_records{group="b",partition="",topic="orders"} 9.007199254740992e+15',
        'korvet_consumer_group_lag_seconds{group="a \\"group\\"",partition="4",topic="orders"} 1.5',
        'korvet_consumer_group_lag_seconds{group="b",partition="",topic="orders"} 0.001',
        'korvet_consumer_group_offset{group="a \\"group\\"",partition="4",topic="orders"} 9.0',
    ]


def test_groups_are_shown_with_members_and_generation_and_counted_by_state(tmp_path: Path) -> None:
    groups = [
        GroupStats(group="a", members=3, generation=8),
        GroupStats(group="(other)", members=5, generation=None),
    ]
    states = {"Stable": 2, "Empty": 4, "PreparingRebalance": 1, "CompletingRebalance": 3}
    assert shown(tmp_path, LogStatsSnapshot(taken_at=1.0, logs=[], groups=groups, states=states))[1:] == [
        'korvet_consumer_group_members{group="a"} 3.0',
        'korvet_consumer_group_members{group="(other)"} 5.0',
        'korvet_consumer_group_generation{group="a"} 8.0',
        'korvet_consumer_group_rebalances_total{group="a"} 8.0',
        'korvet_consumer_groups{state="PreparingRebalance"} 1.0',
        'korvet_consumer_groups{state="CompletingRebalance"} 3.0',
        'korvet_consumer_groups{state="Stable"} 2.0',
        'korvet_consumer_groups{state="Empty"} 4.0',
    ]


def test_the_lag_of_archiving_has_an_offset_only_by_partition(tmp_path: Path) -> None:
    lags = [
        LakeLag(topic="orders", partition=4, archived_offset=7, records=3, age_ms=1500),
        LakeLag(topic="bills", partition=None, archived_offset=None, records=3, age_ms=None),
    ]
    labels = '{partition="4",topic="orders"}'
    assert shown(tmp_path, LakeLagSnapshot(lags=lags)) == [
        f"korvet_lake_archived_offset{labels} 7.0",
        f"korvet_lake_lag_records{labels} 3.0",
        'korvet_lake_lag_records{partition="",topic="bills"} 3.0',
        f"korvet_lake_lag_seconds{labels} 1.5",
    ]


def test_the_archiver_reports_tables_and_totals(tmp_path: Path) -> None:
    totals = ArchiverTotals(rounds={"archived": 5}, upkeeps={"failed": 1}, records=30)
    tables = TablesSnapshot(tables=[TableSize(topic="orders", files=2, records=30, bytes=400)])
    lines = shown(tmp_path, totals, tables)
    assert lines[:3] == [
        'korvet_lake_rounds_total{outcome="archived"} 5.0',
        'korvet_lake_upkeeps_total{outcome="failed"} 1.0',
        "korvet_lake_archived_records_total 30.0",
    ]
    assert lines[-4:] == [
        "korvet_lake_archiver_leader 1.0",
        'korvet_lake_table_files{topic="orders"} 2.0',
        'korvet_lake_table_records{topic="orders"} 30.0',
        'korvet_lake_table_bytes{topic="orders"} 400.0',
    ]


def test_a_pipeline_is_in_one_state_and_has_no_batch_before_the_first(tmp_path: Path) -> None:
    read = PipelineStats(
        pipeline="sales",
        state="lost",
        records=30,
        dead_letters=2,
        unread_fields=4,
        unmet=6,
        restarts=1,
        lag_records=5,
        lag_ms=1500,
        batch_ended_ms=7000,
        batch_ms=250,
    )
    begun = msgspec.structs.replace(
        read, pipeline="bills", state="starting", lag_records=0, batch_ended_ms=None, batch_ms=None
    )
    lost = PipelineLoss(pipeline="sales", topic="orders", partition=1, offsets=3)
    lines = shown(tmp_path, PipelinesSnapshot(pipelines=[read, begun], losses=[lost]))
    assert [line for line in lines if "_state" in line] == [
        'korvet_pipeline_state{pipeline="sales",state="lost"} 1.0',
        'korvet_pipeline_state{pipeline="bills",state="starting"} 1.0',
    ]
    assert [line for line in lines if "sales" in line and "_state" not in line] == [
        'korvet_pipeline_lag_records{pipeline="sales"} 5.0',
        'korvet_pipeline_lag_seconds{pipeline="sales"} 1.5',
        'korvet_pipeline_records_total{pipeline="sales"} 30.0',
        'korvet_pipeline_dead_letters_total{pipeline="sales"} 2.0',
        'korvet_pipeline_unread_fields_total{pipeline="sales"} 4.0',
        'korvet_pipeline_unmet_expectations_total{pipeline="sales"} 6.0',
        'korvet_pipeline_restarts_total{pipeline="sales"} 1.0',
        'korvet_pipeline_last_batch_timestamp_seconds{pipeline="sales"} 7.0',
        'korvet_pipeline_last_batch_seconds{pipeline="sales"} 0.25',
        'korvet_pipeline_lost_offsets_total{partition="1",pipeline="sales",topic="orders"} 3.0',
    ]
    assert not [line for line in lines if "bills" in line and "last_batch" in line]
    # The sum of several pipelines has no state.
    [both] = shown(tmp_path, PipelinesSnapshot(pipelines=limited([read, begun], 0)))[:1]
    assert both == 'korvet_pipeline_lag_records{pipeline="(other)"} 5.0'
