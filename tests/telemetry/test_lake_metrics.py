"""The lake as /metrics tells of it: what keeper and archiver left in files, as long as it holds."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from korvet.telemetry import lake_metrics
from korvet.telemetry import lake_metrics as lake_figures
from korvet.telemetry import process_files as metrics_files
from korvet.telemetry.lake_metrics import Lags, LakeCollector, LakeLag, Tables, TableSize, Totals


def told(directory: Path, now: float = 0.0) -> list[str]:
    """Return the lines with values."""
    registry = CollectorRegistry()
    registry.register(LakeCollector(directory, lambda: now))
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#")]


def of(partition: int | None, archived_offset: int | None, age_ms: int | None = 1500) -> LakeLag:
    return LakeLag(
        topic="orders", partition=partition, archived_offset=archived_offset, records=3, age_ms=age_ms
    )


def test_without_a_lake_nothing_is_told(tmp_path: Path) -> None:
    assert told(tmp_path) == []


def test_a_partition_has_every_gauge_and_a_sum_no_offset(tmp_path: Path) -> None:
    lake_metrics.publish_lake_lags(tmp_path, Lags(9.0, [of(4, 7), of(None, None, None)]))
    labels = '{partition="4",topic="orders"}'
    assert told(tmp_path) == [
        f"korvet_lake_archived_offset{labels} 7.0",
        f"korvet_lake_lag_records{labels} 3.0",
        'korvet_lake_lag_records{partition="",topic="orders"} 3.0',
        f"korvet_lake_lag_seconds{labels} 1.5",
    ]


def test_what_is_old_or_withdrawn_is_told_no_more(tmp_path: Path) -> None:
    lake_metrics.publish_lake_lags(tmp_path, Lags(9.0, [of(4, 7)]))
    lake_figures.publish_tables(tmp_path, Tables(9.0, [TableSize("orders", 1, 2, 3)]))
    assert told(tmp_path, now=9.0)
    assert told(tmp_path, now=9.1) == []
    lake_metrics.withdraw_lake_lags(tmp_path)
    assert not any("lag" in line for line in told(tmp_path))


def test_the_archiver_tells_of_tables_while_it_acts_and_of_what_it_counted_for_ever(tmp_path: Path) -> None:
    lake_figures.publish_tables(tmp_path, Tables(9.0, [TableSize("orders", 2, 30, 400)]))
    lake_figures.publish_totals(tmp_path, Totals(rounds={"archived": 5}, upkeeps={"failed": 1}, records=30))
    lines = told(tmp_path)
    assert "korvet_lake_archiver_leader 1.0" in lines
    assert 'korvet_lake_table_files{topic="orders"} 2.0' in lines
    assert 'korvet_lake_table_records{topic="orders"} 30.0' in lines
    assert 'korvet_lake_table_bytes{topic="orders"} 400.0' in lines
    metrics_files.forget_live(tmp_path, "archiver")
    left = told(tmp_path)
    assert [line for line in lines if line not in left] == [
        "korvet_lake_archiver_leader 1.0",
        'korvet_lake_table_files{topic="orders"} 2.0',
        'korvet_lake_table_records{topic="orders"} 30.0',
        'korvet_lake_table_bytes{topic="orders"} 400.0',
    ]
    assert 'korvet_lake_rounds_total{outcome="archived"} 5.0' in left
    assert 'korvet_lake_upkeeps_total{outcome="failed"} 1.0' in left
    assert "korvet_lake_archived_records_total 30.0" in left


def test_what_another_version_has_left_is_as_good_as_none(tmp_path: Path) -> None:
    lake_metrics.publish_lake_lags(tmp_path, Lags(10.0, [of(0, 7)]))
    lake_figures.publish_totals(tmp_path, Totals(records=17))
    lake_figures.publish_tables(tmp_path, Tables(10.0, [TableSize("orders", 2, 17, 900)]))
    assert len(told(tmp_path)) > 0
    for path in tmp_path.glob("*.json"):
        path.write_text('{"valid_until": "soon", "records": "many", "tables": {}}')
    assert told(tmp_path) == []
    assert (lake_figures.totals(tmp_path), lake_figures.tables(tmp_path)) == (None, None)


def test_many_tables_become_few() -> None:
    sizes = [TableSize(name, 1, 10, size) for name, size in (("a", 5), ("b", 9), ("c", 7))]
    assert lake_figures.summed_tables(sizes, 3) == [sizes[1], sizes[2], sizes[0]]
    assert lake_figures.summed_tables(sizes, 1) == [sizes[1], TableSize(lake_figures.OTHER_TOPICS, 2, 20, 12)]
