"""Korvet on its embedded server, with a configuration that can be changed while it runs.

Starts it, reloads its configuration, and ends it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from loadtest.bench import frames, processes

_START_SECONDS_MAX = 60.0
_RELOAD_SECONDS_MAX = 60.0
_REPOSITORY = Path(__file__).parents[2]
_REPLACED = "the workers are replaced"
_NEVER_MS = 2**31 - 1


class Broker:
    """One broker on empty data; a context manager that ends it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.address = ("127.0.0.1", processes.free_port())
        self.data_dir = directory / "data"
        self._config = directory / "korvet.toml"
        self._log = directory / "log"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._configure(_NEVER_MS)
        command = [sys.executable, "-m", "korvet", "serve", "--config", self._config]
        self._process = processes.spawn([str(word) for word in command], self._log, cwd=_REPOSITORY)
        host, port = self.address
        frames.await_metadata(f"{host}:{port}", _START_SECONDS_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        processes.stop(self._process)

    def begin_retention(self, interval_ms: int) -> None:
        """Have the keeper look every `interval_ms` from now on; its workers are other ones afterwards."""
        assert self._process is not None
        self._configure(interval_ms)
        before = self._log.read_text().count(_REPLACED)
        self._process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + _RELOAD_SECONDS_MAX
        while self._log.read_text().count(_REPLACED) == before:
            if time.monotonic() > deadline:
                raise processes.NotAvailableError(f"no new workers: {processes.tail(self._log)}")
            time.sleep(0.05)

    def _configure(self, interval_ms: int) -> None:
        settings = {
            "listen": f"{self.address[0]}:{self.address[1]}",
            "ops.listen": f"127.0.0.1:{processes.free_port()}",
            "data.dir": str(self.data_dir),
            "log.retention.check.interval.ms": interval_ms,
        }
        # A JSON text or number is a TOML one too.
        lines = [f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in settings.items()]
        self._config.write_text("".join(lines))
