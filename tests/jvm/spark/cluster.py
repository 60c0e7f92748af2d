"""A standalone cluster of Spark on this machine: a master, and two workers whose executors are processes of their own.

Knows pyspark's own distribution. It has cores for two applications; executors are found by what they run.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyspark

from tests.support.processes import alive, descendants, free_port, logged, wait_until

_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_DEPLOY = "org.apache.spark.deploy"
_EXECUTOR = b"CoarseGrainedExecutorBackend"
_SECONDS_MAX = 300.0
_WORKERS = 2

ENVIRONMENT = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
"""Settings of an application: its executors use the Python in which Korvet is installed."""

CONFIGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    # Executors that die are replaced at once, and no test is about giving up.
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
"""Of an application: two executors, each with a core."""


class Cluster:
    """A running one; `url` is its master."""

    def __init__(self, url: str, worker_pids: list[int]) -> None:
        self.url = url
        self._worker_pids = worker_pids

    def executors(self) -> set[int]:
        """Return the executors of all applications."""
        return {
            pid
            for worker in self._worker_pids
            for pid in descendants(worker)
            if alive(pid) and _EXECUTOR in command_line(pid)
        }

    def wait_until_idle(self) -> None:
        """Wait until the executors of applications that have ended are gone."""
        wait_until(lambda: not self.executors(), "no executor is left", _SECONDS_MAX)


def executor_of(pid: int) -> int:
    """Return the executor that has started a Python worker, or its daemon."""
    while _EXECUTOR not in command_line(pid):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def command_line(pid: int) -> bytes:
    """Return what any user of the machine sees of a process, empty once it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    """Start one, with what it writes in `directory`, and end it after the block."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as running:
        master = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        log, _ = running.enter_context(_started("master.Master", master, directory))
        wait_until(partial(_says, log, "New state: ALIVE"), "the master is there", _SECONDS_MAX)
        pids = []
        for number in range(_WORKERS):
            worker = ["--host", "127.0.0.1", "--cores", "2", "--memory", "1536m", "--webui-port", "0"]
            own = directory / f"worker-{number}"
            own.mkdir()
            work = ["--work-dir", str(own / "work"), url]
            log, pid = running.enter_context(_started("worker.Worker", [*worker, *work], own))
            pids.append(pid)
            wait_until(partial(_says, log, "registered with master"), "the worker is there", _SECONDS_MAX)
        yield Cluster(url, pids)


def _says(log: Path, text: str) -> bool:
    return text in log.read_text()


@contextlib.contextmanager
def _started(name: str, arguments: list[str], directory: Path) -> Iterator[tuple[Path, int]]:
    path = directory / f"{name}.log"
    environment = os.environ | ENVIRONMENT | {"SPARK_DAEMON_MEMORY": "256m"}
    with logged([str(_CLASS), f"{_DEPLOY}.{name}", *arguments], path, env=environment) as process:
        yield path, process.pid
