"""Small runs of tests/lake_kills: processes of the lake's command killed at random moments while a client produces."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake_kills.archiving import archive
from tests.lake_kills.killing import Run
from tests.lake_kills.system import System


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(Run(1, ("driver", "java", "worker", "compact"), seed=1), id="interval"),
        pytest.param(Run(2, ("driver",), seed=1, rate=2000, once=True), id="once"),
    ],
)
def test_kills_at_random_lose_and_repeat_nothing(tmp_path: Path, run: Run) -> None:
    with System.started(tmp_path, "local", "directory") as system:
        found = archive(system, run, with_spark=False)
    assert found.violations == []
    assert found.counts["records"] > 0
