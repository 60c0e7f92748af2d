"""Redis itself, without a broker before it: the ceiling of what a broker on Redis can reach.

Knows redis-benchmark and, where that is not on PATH, a pipelined loader of its own; the server is the embedded one's
program with the same durability, on a unix socket.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

import redis
from korvet_core import RespReader, pack_command

from korvet.server.embedded import find_program
from loadtest.bench import processes
from loadtest.bench.processes import NotAvailableError

_MORE = object()
_PIPELINE = 100
_STREAM = "korvet:bench:0"
_READ_COUNT = 1000
_START_SECONDS_MAX = 30.0
_BENCHMARK_SECONDS_MAX = 300.0


class Redis:
    """One Redis server; `produce` and `consume` return records and seconds as the load generator does."""

    name = "redis"

    def __init__(self, directory: Path) -> None:
        self.directory = directory / self.name
        self._tool = shutil.which("redis-benchmark")
        self._process: subprocess.Popen[str] | None = None
        how = "redis-benchmark" if self._tool else "a pipelined loader in Python (no redis-benchmark on PATH)"
        self.note = f"no broker: XADD of single records and XRANGE of {_READ_COUNT} by {how}, {_PIPELINE} in a pipeline"

    @property
    def pid(self) -> int:
        """Root of its tree of processes."""
        assert self._process is not None
        return self._process.pid

    @property
    def _socket(self) -> Path:
        return self.directory / "server.sock"

    def prepare(self) -> None:
        """Empty its directory."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)

    def launch(self) -> None:
        """Start it as Korvet starts its embedded server, and wait until it answers."""
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "dir": str(self.directory),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        flags = [part for name, value in options.items() for part in (f"--{name}", value)]
        log = self.directory / "log"
        self._process = processes.spawn([str(find_program()), *flags], log)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                self._client().ping()
            except redis.RedisError:
                time.sleep(0.01)
            else:
                return
        last_words = processes.tail(log)
        self.stop()
        raise NotAvailableError(f"it did not start: {last_words}")

    def start(self) -> None:
        """Prepare and launch."""
        self.prepare()
        self.launch()

    def check(self, load: object) -> None:
        """Nothing to check: it runs."""

    def stop(self) -> None:
        """End it and remove its data."""
        processes.stop(self._process)
        self._process = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def _client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self._socket), protocol=2)

    def clear(self) -> None:
        """Remove all records."""
        self._client().flushall()

    def produce(self, value: bytes, records: int, clients: int) -> tuple[int, float]:
        """XADD single records in the fields that Korvet uses; returns how many, and the seconds."""
        command = ["XADD", _STREAM, "*", "value", value.decode(), "timestamp", str(int(time.time() * 1000))]
        return self._run(command, records, clients, _PIPELINE)

    def consume(self, records: int) -> tuple[int, float]:
        """XRANGE the first records of the stream again and again; returns records and seconds."""
        command = ["XRANGE", _STREAM, "-", "+", "COUNT", str(_READ_COUNT)]
        commands, seconds = self._run(command, max(records // _READ_COUNT, 10), 1, 2)
        return commands * _READ_COUNT, seconds

    def single(self, value: bytes, records: int, clients: int) -> int:
        """XADD single records, one under way on each connection; returns how many."""
        command = ["XADD", _STREAM, "*", "value", value.decode()]
        return self._run(command, records, clients, 1)[0]

    def _run(self, command: list[str], count: int, clients: int, pipeline: int) -> tuple[int, float]:
        if self._tool is None:
            return self._run_python(command, count, pipeline)
        flags = ["-s", str(self._socket), "-n", str(count), "-c", str(clients), "-P", str(pipeline), "--csv"]
        began = time.monotonic()
        subprocess.run(
            [self._tool, *flags, *command], check=True, capture_output=True, timeout=_BENCHMARK_SECONDS_MAX
        )
        return count, time.monotonic() - began

    def _run_python(self, command: list[str], count: int, pipeline: int) -> tuple[int, float]:
        burst = pack_command(command) * pipeline
        rounds = max(count // pipeline, 1)
        reader = RespReader(str)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._socket))
            began = time.monotonic()
            for _ in range(rounds):
                connection.sendall(burst)
                answered = 0
                while answered < pipeline:
                    reader.feed(connection.recv(1 << 16))
                    while reader.next_reply(_MORE) is not _MORE:
                        answered += 1
        return rounds * pipeline, time.monotonic() - began
