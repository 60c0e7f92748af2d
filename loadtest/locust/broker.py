"""Korvet on its embedded server, and what its processes and that server take.

Knows how the broker is started and ended, what it logs of its children, and /proc by way of psutil; not what is good.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

import psutil
import redis

from loadtest.bench import frames, processes

_START_SECONDS_MAX = 60.0
_REPOSITORY = Path(__file__).parents[2]
_STARTED = re.compile(r"supervisor started child=(\S+) pid=(\d+)")
_ERROR = re.compile(r"^\S+Z ERROR +(.*)$", re.MULTILINE)
SERVER = "redis"
"""What the embedded server is called among the processes."""


class Usage(NamedTuple):
    """What a process takes: resident memory (bytes), and CPU time so far (seconds)."""

    resident: int
    cpu: float


class Broker:
    """One broker on empty data, with defaults but for what `settings` name; a context manager that ends it."""

    def __init__(self, directory: Path, settings: Iterable[str] = ()) -> None:
        """Take `settings` as NAME=VALUE, as `korvet serve --set` does."""
        self.address = f"127.0.0.1:{processes.free_port()}"
        self.log = directory / "broker.log"
        self._data_dir = directory / "data"
        own = (
            f"listen={self.address}",
            f"ops.listen=127.0.0.1:{processes.free_port()}",
            f"data.dir={self._data_dir}",
        )
        flags = [word for value in (*own, *settings) for word in ("--set", value)]
        self._command = [sys.executable, "-m", "korvet", "serve", *flags]
        self._process: subprocess.Popen[str] | None = None
        self._redis: redis.Redis = redis.Redis(unix_socket_path=str(self._data_dir / "server.sock"))

    def __enter__(self) -> Self:
        self._process = processes.spawn(self._command, self.log, cwd=_REPOSITORY)
        try:
            frames.await_metadata(self.address, _START_SECONDS_MAX)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._redis.close()
        processes.stop(self._process)

    def children_started(self) -> int:
        """Return how many children there have been so far; more than at first means that some were replaced."""
        return len(_STARTED.findall(self._said()))

    def errors(self) -> list[str]:
        """Return what it has logged as errors so far, a line each."""
        return _ERROR.findall(self._said())

    def _said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def usage(self) -> dict[str, Usage]:
        """Return what each living process takes, by name: supervisor, worker-1, redis; empty once it has ended."""
        assert self._process is not None
        names = {int(pid): name for name, pid in _STARTED.findall(self._said())}
        found = {}
        try:
            supervisor = psutil.Process(self._process.pid)
            for process in (supervisor, *supervisor.children(recursive=True)):
                name = names.get(process.pid, SERVER)
                if process == supervisor:
                    name = "supervisor"
                elif name == SERVER and process.parent() != supervisor:
                    continue  # The server's own child, which rewrites its log.
                times = process.cpu_times()
                found[name] = Usage(process.memory_info().rss, times.user + times.system)
        except psutil.NoSuchProcess:
            return {}
        return found

    def redis_bytes(self) -> int:
        """Return what Redis says that it uses (bytes), 0 where it does not answer."""
        try:
            return int(self._redis.info("memory")["used_memory"])
        except redis.RedisError:
            return 0

    def await_redis_bytes(self, most: int, seconds_max: float) -> int:
        """Wait until Redis uses no more than that; returns what it uses then, or after `seconds_max`."""
        deadline = time.monotonic() + seconds_max
        while (used := self.redis_bytes()) > most and time.monotonic() < deadline:
            time.sleep(0.2)
        return used
