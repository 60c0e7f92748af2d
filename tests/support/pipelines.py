"""A process that runs a pipeline, as far as Redis and signals can tell."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from korvet.lake.source import LakeSource
from korvet.spark.pipelines.status import PipelineReporter
from tests.support.processes import dying_with_tests

FILE = "f.toml"
"""What it gives as its file."""


@contextlib.contextmanager
def pipeline_process(source: LakeSource, name: str) -> Iterator[subprocess.Popen[str]]:
    """Give one that has started; kill it after the block."""
    with subprocess.Popen(
        dying_with_tests([sys.executable, "-m", "tests.support.pipelines", source.redis_url, name]),
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        yield process
        process.kill()


def main(url: str, name: str) -> None:
    """Report until somebody ends it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with PipelineReporter(LakeSource(redis_url=url), name, file=FILE, stopped=threading.Event()) as reporter:
        reporter.started([])
        sys.stdout.write("\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
