"""korvet/telemetry/published_values.py: what becomes of metrics whose files are lost, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import resource, shutil, sys
from pathlib import Path
from korvet.telemetry import snapshot
directory, loss = Path(sys.argv[1]), sys.argv[2]
snapshot.adopt(directory, "worker0")
from korvet.telemetry import metrics
if loss == "directory":
    shutil.rmtree(directory)
elif loss == "room":
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, 65_536))
for number in range(1000):
    metrics.PRODUCE_ERRORS.labels(f"ERROR-{number}").inc()
    metrics.PRODUCE_ERROR_TIME.labels(f"ERROR-{number}").set(1)
if directory.exists():
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    print(generate_latest(registry).decode().count("korvet_produce_errors_total{"))
"""


@pytest.mark.parametrize(
    ("loss", "published", "warnings"),
    [("none", range(1000, 1001), 0), ("room", range(200, 600), 1), ("directory", None, 1)],
)
def test_a_metric_fails_nothing_when_its_file_is_lost(
    tmp_path: Path, loss: str, published: range | None, warnings: int
) -> None:
    directory = tmp_path / "metrics"
    directory.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(directory), loss]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("not published") == warnings
    if published is not None:
        assert int(ran.stdout) in published
