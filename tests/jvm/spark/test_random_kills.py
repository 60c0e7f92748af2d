"""Small runs of tests/lake_kills with Delta Lake and on the cluster: archive on S3, and a pipeline that merges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lake_kills.archiving import archive
from tests.lake_kills.killing import Found, Run
from tests.lake_kills.pipelines import append, merge
from tests.lake_kills.system import System

pytestmark = pytest.mark.timeout(1800)


def test_archive_on_a_cluster_with_an_object_store_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with System.started(tmp_path, "cluster", "s3") as system:
        found = archive(system, Run(1, ("driver", "executor", "worker"), seed=1))
    assert found.violations == []


@pytest.mark.parametrize("work", [append, merge])
def test_a_pipeline_loses_and_repeats_nothing(tmp_path: Path, work: Callable[[System, Run], Found]) -> None:
    with System.started(tmp_path, "local", "directory") as system:
        found = work(system, Run(1, ("driver", "java", "worker"), seed=1, rate=100))
    assert found.violations == []
