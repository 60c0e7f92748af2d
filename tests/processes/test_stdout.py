"""A broker whose standard output nobody takes: it serves, replaces its children and ends as any other."""

from __future__ import annotations

import os
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
