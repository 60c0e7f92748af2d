"""The CPU that `make bench-lake` counts for a pipeline and its peer."""

from __future__ import annotations

import subprocess
import sys

COUNT = """
import sys
from loadtest.lake.streams import run
print(run(["sh", "-c", f"{sys.executable} -c 'sum(range(20_000_000))' & exit"])[1])
"""


def test_processes_that_outlive_the_command_are_counted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, text=True, timeout=120, check=True
    )
    assert float(done.stdout) > 0.05
