"""The registry behind /metrics, over files and a Redis as they may be."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import generate_latest

from korvet.config.settings import Settings
from korvet.telemetry import page as ops_metrics
from korvet.telemetry.process_table import ProcessTable


def test_a_file_that_a_process_is_just_making_keeps_the_page_from_nothing(tmp_path: Path) -> None:
    """A worker that starts makes its files in two steps; a page that came between them had no answer."""
    (tmp_path / "counter_worker0.db").touch()
    (tmp_path / "gauge_livesum_worker0.db").symlink_to(tmp_path / "gone")
    settings = Settings(redis_url="redis://127.0.0.1:1/0")
    page = generate_latest(ops_metrics.registry(settings, ProcessTable(), tmp_path)).decode()
    assert "\nkorvet_child_restarts_total 0.0\n" in page
    # Nor does a Redis that is away.
    assert "\nkorvet_redis_up 0.0\n" in page
