"""What a broker writes to its standard output: nobody has to take it, and JSON is not mixed with text."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support import processes
from tests.support.broker import KORVET, START_SECONDS_MAX


@contextlib.contextmanager
def serving(
    directory: Path, stdout: int | None, *flags: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a broker with this for its standard output, None for its log; gives its process and the log."""
    flags = ("--listen", "127.0.0.1:0", "--ops-listen", "", "--workers", "1", *flags)
    log = directory / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            processes.dying_with_tests([*KORVET, *flags, "--data-dir", str(directory / "data")]),
            stdin=subprocess.DEVNULL,
            stdout=written if stdout is None else stdout,
            # Python's own buffer keeps what could not be written.
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            stderr=written,
        )
    try:
        yield process, log
    finally:
        process.terminate()
        code = process.wait(processes.WAIT_SECONDS_MAX)
    assert code == 0, log.read_text()


def wait_for(process: subprocess.Popen[bytes], log: Path, words: str) -> None:
    """Wait until the log has these words, of a process that runs."""
    processes.wait_until(
        lambda: process.poll() is not None or words in log.read_text(), words, START_SECONDS_MAX
    )
    assert process.poll() is None, log.read_text()


def test_a_dead_worker_is_replaced_also_where_nobody_reads_stdout(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with serving(tmp_path, writing) as (process, log):
        os.close(writing)
        wait_for(process, log, "cannot write to stdout")
        worker = int(log.read_text().partition("child=worker-0 pid=")[2].split(maxsplit=1)[0])
        processes.kill(worker, signal.SIGKILL)
        processes.wait_until(lambda: log.read_text().count("started child=worker-") > 1, "another worker")


def test_where_lines_are_json_the_announcement_is_one_of_them(tmp_path: Path) -> None:
    with serving(tmp_path, None, "--set", "log.format=json") as (process, log):
        wait_for(process, log, "the broker is ready")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    [ready] = [line for line in lines if line["event"] == "the broker is ready"]
    assert re.fullmatch(r"127\.0\.0\.1:\d+ \(1 worker\)", ready["bootstrap"])
    assert str(tmp_path / "data") in ready["data"]
