"""Snapshots: published, replaced and withdrawn as a whole."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from korvet.telemetry.snapshot import (
    ArchiverTotals,
    LakeLagSnapshot,
    TablesSnapshot,
    forget_live,
    publish,
    read,
    valid_until,
    withdraw,
)
from korvet.telemetry.stats import TableSize

SIZE = TableSize(topic="orders", files=1, records=2, bytes=3)


def tables(directory: Path) -> TablesSnapshot | None:
    return read(directory / TablesSnapshot.FILE, TablesSnapshot)


def test_a_snapshot_replaces_the_one_before(tmp_path: Path) -> None:
    assert tables(tmp_path) is None
    publish(tmp_path / TablesSnapshot.FILE, TablesSnapshot(tables=[SIZE]))
    publish(tmp_path / TablesSnapshot.FILE, TablesSnapshot(tables=[]))
    assert tables(tmp_path) == TablesSnapshot(tables=[])
    assert [path.name for path in tmp_path.iterdir()] == [TablesSnapshot.FILE]


def test_a_snapshot_is_not_shown_after_its_time(tmp_path: Path) -> None:
    for offset, shown in ((60, True), (-1, False)):
        snapshot = TablesSnapshot(valid_until=time.time() + offset, tables=[])
        publish(tmp_path / TablesSnapshot.FILE, snapshot)
        assert (tables(tmp_path) is not None) == shown


def test_a_snapshot_is_valid_for_three_intervals_and_at_least_half_a_minute() -> None:
    """A publisher with a short interval misses three turns on a busy machine; its gauges must not come and go."""
    now = time.time()
    assert 29 < valid_until(100) - now < 60
    assert 179 < valid_until(60_000) - now < 240


@pytest.mark.parametrize(
    "content", [b"", b"\xc1", msgspec.msgpack.encode({"tables": 5}), msgspec.msgpack.encode({})]
)
def test_a_snapshot_of_another_version_is_not_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / TablesSnapshot.FILE).write_bytes(content)
    assert tables(tmp_path) is None


def test_live_snapshots_end_with_their_process_and_with_no_other(tmp_path: Path) -> None:
    publish(tmp_path / TablesSnapshot.FILE, TablesSnapshot(tables=[SIZE]))
    publish(tmp_path / ArchiverTotals.FILE, ArchiverTotals(records=7))
    (tmp_path / "gauge_livesum_archiver.db").touch()
    (tmp_path / "counter_archiver.db").touch()
    forget_live(tmp_path, "worker0")
    assert len([*tmp_path.iterdir()]) == 4
    forget_live(tmp_path, "archiver")
    assert {path.name for path in tmp_path.iterdir()} == {"counter_archiver.db", ArchiverTotals.FILE}
    assert read(tmp_path / ArchiverTotals.FILE, ArchiverTotals) == ArchiverTotals(records=7)


def test_a_process_withdraws_its_snapshots_and_keeps_its_gauges(tmp_path: Path) -> None:
    withdraw(tmp_path, "keeper")
    publish(tmp_path / LakeLagSnapshot.FILE, LakeLagSnapshot(lags=[]))
    (tmp_path / "gauge_livesum_keeper.db").touch()
    withdraw(tmp_path, "keeper")
    assert [path.name for path in tmp_path.iterdir()] == ["gauge_livesum_keeper.db"]
