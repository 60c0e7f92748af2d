"""What a broker writes to its standard output: nobody has to take it, and JSON is not mixed with text."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

from tests.support import processes
from tests.support.broker import KORVET, START_SECONDS_MAX


def test_a_dead_worker_is_replaced_also_where_nobody_reads_stdout(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    flags = ("--listen", "127.0.0.1:0", "--ops-listen", "", "--workers", "1")
    log = tmp_path / "log"
    with log.open("wb") as err:
        process = subprocess.Popen(
            [*KORVET, *flags, "--data-dir", str(tmp_path / "data")],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            # Python's own buffer keeps what could not be written.
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            stderr=err,
            preexec_fn=processes.die_with_tests,
        )
    os.close(writing)
    try:
        processes.wait_until(
            lambda: process.poll() is not None or "cannot write to stdout" in log.read_text(),
            "an announcement",
            START_SECONDS_MAX,
        )
        assert process.poll() is None, log.read_text()
        worker = int(log.read_text().partition("child=worker-0 pid=")[2].split(maxsplit=1)[0])
        processes.kill(worker, signal.SIGKILL)
        processes.wait_until(
            lambda: process.poll() is not None or log.read_text().count("started child=worker-") > 1,
            "another worker",
        )
    finally:
        process.terminate()
        code = process.wait(processes.WAIT_SECONDS_MAX)
    assert code == 0, log.read_text()


def test_where_lines_are_json_the_announcement_is_one_of_them(tmp_path: Path) -> None:
    flags = ("--listen", "127.0.0.1:0", "--ops-listen", "", "--workers", "1", "--set", "log.format=json")
    log = tmp_path / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*KORVET, *flags, "--data-dir", str(tmp_path / "data")],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            preexec_fn=processes.die_with_tests,
        )
    try:
        processes.wait_until(
            lambda: process.poll() is not None or "the broker is ready" in log.read_text(),
            "an announcement",
            START_SECONDS_MAX,
        )
    finally:
        process.terminate()
        code = process.wait(processes.WAIT_SECONDS_MAX)
    assert code == 0, log.read_text()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    [ready] = [line for line in lines if line["event"] == "the broker is ready"]
    assert re.fullmatch(r"127\.0\.0\.1:\d+ \(1 worker\)", ready["bootstrap"])
    assert str(tmp_path / "data") in ready["data"]
