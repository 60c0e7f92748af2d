"""The registry of /metrics, with empty files and without a Redis."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import generate_latest

from korvet.config.settings import Settings
from korvet.telemetry import page as metrics_page
from korvet.telemetry.process_table import ProcessTable


def test_a_file_that_is_just_being_created_does_not_break_the_page(tmp_path: Path) -> None:
    """A worker creates its files in two steps; a page between them once failed."""
    (tmp_path / "counter_worker0.db").touch()
    (tmp_path / "gauge_livesum_worker0.db").symlink_to(tmp_path / "gone")
    settings = Settings(redis_url="redis://127.0.0.1:1/0")
    page = generate_latest(metrics_page.registry(settings, ProcessTable(), tmp_path)).decode()
    assert "\nkorvet_child_restarts_total 0.0\n" in page
    # Nor does an unreachable Redis.
    assert "\nkorvet_redis_up 0.0\n" in page
