"""A real `korvet serve` as a subprocess, on free ports and a data directory of its own.

`korvet_broker` waits until the broker says that it is ready, and leaves no process, also if the test fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import redis

from tests.support import processes, redis_servers

START_SECONDS_MAX = 120.0
"""A start takes 1.5 s of CPU in six processes, which may be half a minute where other tests use every core."""

_STOP_SECONDS_MAX = 30.0
_BOOTSTRAP = re.compile(r"^  bootstrap +(\S+)", re.MULTILINE)
_LISTENING = re.compile(r"^  bootstrap .*, listening on (\S+)\)", re.MULTILINE)
_NAMED = re.compile(
    r"^  (?:bootstrap| {9}) +(?P<advertised>\S+) "
    r"\((?P<name>[A-Z0-9_-]+)(?:, [A-Z_]+)?(?:, \d+ workers?)?(?:, listening on (?P<bound>\S+))?\)$",
    re.MULTILINE,
)
_OPS = re.compile(r"^  ops +https?://(\S+)", re.MULTILINE)
_REPLACED = "the workers are replaced"
_STARTED = re.compile(r"supervisor started child=(\S+) pid=(\d+)")

KORVET = (sys.executable, "-m", "korvet", "serve")
_LATER_START = """
import korvet, sys
korvet.__version__, korvet.FORMAT = "9.9.0", 3
from korvet.cluster import data_format
data_format.OWN = data_format.DataFormat("9.9.0", 3, 3, 3)
from korvet.cli.main import main
sys.exit(main())
"""
LATER_BUILD = (*KORVET[:1], "-c", _LATER_START, "serve")
"""`korvet serve` of this tree, with the version 9.9.0 and format 3."""
_REPOSITORY = Path(__file__).parents[2]


_running: list[Broker] = []
_ended: list[tuple[str, str]] = []


def forget_logs() -> None:
    """Begin a test: what brokers have logged until now is not shown if it fails."""
    _ended.clear()
    for broker in _running:
        broker.shown_from = broker.log_size()


def logs_of_test() -> list[tuple[str, str]]:
    """Return the name of each broker that ran during this test, and what it logged meanwhile."""
    return [*_ended, *((broker.name, broker.log_of_test()) for broker in _running)]


class Broker:
    """One started broker. `bootstrap` and `ops_address` are HOST:PORT."""

    def __init__(self, command: Sequence[str], directory: Path, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.redis_url = f"unix://{data_dir}/server.sock"
        if "--redis-url" in command:
            self.redis_url = command[command.index("--redis-url") + 1]
        self.bootstrap = ""
        self.ops_address = ""
        self.name = f"broker in {directory.name}"
        self.shown_from = 0
        self._paths = [directory / name for name in ("broker.out", "broker.err")]
        with self._paths[0].open("wb") as out, self._paths[1].open("wb") as err:
            self.process = subprocess.Popen(
                processes.dying_with_tests(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=_REPOSITORY,
            )
        self.pid = self.process.pid

    def wait_until_ready(self) -> None:
        """Wait for the announcement; fails with what the broker printed when it ended instead."""
        processes.wait_until(
            lambda: self.process.poll() is not None or "is ready" in self.output(), "ready", START_SECONDS_MAX
        )
        assert self.process.poll() is None, f"the broker ended at its start:\n{self.log()}"
        self.bootstrap = self._printed(_BOOTSTRAP)
        with contextlib.suppress(AssertionError):
            self.ops_address = self._printed(_OPS)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, as sockets take it."""
        listening = _LISTENING.search(self.output())
        host, _, port = (listening[1] if listening else self.bootstrap).rpartition(":")
        return host.strip("[]"), int(port)

    def at(self, listener: str) -> tuple[str, int]:
        """Where it listens by a name, as sockets take it; one of several listeners."""
        result = {
            item["name"]: item["bound"] or item["advertised"] for item in _NAMED.finditer(self.output())
        }
        host, _, port = result[listener].rpartition(":")
        return host.strip("[]"), int(port)

    def bootstrap_of(self, listener: str) -> str:
        """Return HOST:PORT of a listener by its name."""
        return "{}:{}".format(*self.at(listener))

    def ask(self, line: str) -> str:
        """Return the answer of a worker that echoes lines."""
        with socket.create_connection(self.address, 10) as connection:
            connection.sendall(f"{line}\n".encode())
            return connection.makefile().readline().strip()

    def output(self) -> str:
        """Return what it printed on stdout."""
        return self._paths[0].read_text()

    def log(self) -> str:
        """Return what it wrote to stderr."""
        return self._paths[1].read_text()

    def log_size(self) -> int:
        """Return how many bytes it wrote to stderr."""
        return self._paths[1].stat().st_size

    def log_of_test(self) -> str:
        """Return what it wrote to stderr since the test began."""
        with self._paths[1].open("rb") as log:
            log.seek(self.shown_from)
            return log.read().decode(errors="replace")

    def child_pids(self, name: str) -> list[int]:
        """Return the living children whose names begin with `name`: worker, ops, keeper."""
        started = _STARTED.findall(self.log())
        pids = [int(pid) for child, pid in started if child.startswith(name)]
        return [pid for pid in pids if processes.alive(pid) and processes.parent(pid) == self.pid]

    def worker_pids(self) -> list[int]:
        """Return the living workers, oldest first."""
        return self.child_pids("worker")

    def server_pid(self) -> int:
        """Return the embedded server."""
        return int((self.data_dir / "server.lock").read_text())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor."""
        self.process.send_signal(number)

    def reload(self) -> None:
        """Let it replace its workers, and wait until the former ones have ended: they accept connections till then."""
        former, reloads = self.worker_pids(), self.log().count(_REPLACED)
        self.signal(signal.SIGHUP)
        processes.wait_until(
            lambda: self.log().count(_REPLACED) > reloads, "the reload ends", START_SECONDS_MAX
        )
        processes.wait_until(lambda: not any(map(processes.alive, former)), "the former workers have ended")

    def wait_until_written(self) -> None:
        """Wait until the server has handed all it acknowledged to the system: it puts writes off during an fsync."""
        with redis.Redis(unix_socket_path=str(self.data_dir / "server.sock")) as client:
            processes.wait_until(
                lambda: client.info("persistence")["aof_buffer_length"] == 0,
                "the append-only file is written",
            )

    def kill(self) -> None:
        """Kill the supervisor as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Drain it and return its exit code."""
        self.process.terminate()
        return self.process.wait(_STOP_SECONDS_MAX)

    def _printed(self, pattern: re.Pattern[str]) -> str:
        match = pattern.search(self.output())
        assert match, f"{pattern.pattern} is not in:\n{self.output()}"
        return match[1]

    def _leave_nothing(self) -> None:
        """End what is left, also where the test failed half-way or the broker is broken."""
        if self.process.poll() is None:
            left = processes.children(self.pid)
            self.process.terminate()
            try:
                self.process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
            for pid in left:
                processes.kill(pid)
        # A killed broker cannot remove its directory of metrics; the next one on its port would.
        host, port = self.address if self.bootstrap else ("", 0)
        shutil.rmtree(Path(tempfile.gettempdir()) / f"korvet-{os.getuid()}-{host}-{port}", ignore_errors=True)


@contextlib.contextmanager
def started(command: Sequence[str], directory: Path, data_dir: Path) -> Iterator[Broker]:
    """Run any command that behaves like `korvet serve`, ready or not; ends it at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    broker = Broker(command, directory, data_dir)
    _running.append(broker)
    try:
        yield broker
    finally:
        broker._leave_nothing()
        _running.remove(broker)
        _ended.append((broker.name, broker.log_of_test()))


@contextlib.contextmanager
def korvet_broker(
    tmp_path: Path,
    *flags: str,
    workers: int = 2,
    data_dir: Path | None = None,
    settings: Mapping[str, object] | None = None,
    listen: Sequence[str] = ("--listen", "127.0.0.1:0"),
    program: Sequence[str] = KORVET,
) -> Iterator[Broker]:
    """Run `korvet serve` with the embedded server (or `--redis-url` in `flags`), ready, on free ports.

    Without a `data_dir` of the test's own it may be a cluster instead (tests/support/redis_servers.py).

    `listen` are the flags that say where it listens, `program` is what to run. Records are kept indefinitely unless
    `flags` say otherwise: those of tests carry any timestamps.
    """
    own = data_dir is None and "--redis-url" not in flags and redis_servers.is_cluster()
    data_dir = data_dir or tmp_path / "data"
    common = ("--ops-listen", "127.0.0.1:0", "--workers", str(workers))
    command = [*program, *listen, *common, "--data-dir", str(data_dir), "--set", "log.retention.ms=-1"]
    command += [*flags, *_flags(settings)]
    with contextlib.ExitStack() as running:
        if own:
            command += ["--redis-url", running.enter_context(redis_servers.server())]
        broker = running.enter_context(started(command, tmp_path, data_dir))
        broker.wait_until_ready()
        yield broker


def _flags(settings: Mapping[str, object] | None) -> list[str]:
    return [word for name, value in (settings or {}).items() for word in ("--set", f"{name}={value}")]


@contextlib.contextmanager
def steady_broker(
    tmp_path: Path,
    *flags: str,
    settings: Mapping[str, object] | None = None,
    workers: int = 2,
    listen: Sequence[str] = ("--listen", "127.0.0.1:0"),
) -> Iterator[Broker]:
    """Run `korvet serve` as `korvet_broker`; in the end the same workers live and nothing was a fault of theirs."""
    with korvet_broker(tmp_path, *flags, workers=workers, settings=settings, listen=listen) as running:
        pids = running.worker_pids()
        yield running
        assert running.worker_pids() == pids
        assert "Traceback" not in running.log()
        assert "request failed" not in running.log()


@contextlib.contextmanager
def korvet_cluster(
    directory: Path,
    redis_url: str,
    *flags: str,
    brokers: int = 2,
    workers: int = 1,
    settings: Mapping[str, object] | None = None,
) -> Iterator[list[Broker]]:
    """Run several brokers on one Redis, with the ids 0, 1, ...; all are ready, and each knows of the others.

    By default no port is one that the kernel gives away: a test beside this one would get the port of a killed broker,
    and its broker, which may have a topic of the same name, would answer in this cluster's place.
    """
    with contextlib.ExitStack() as running:
        started = [
            running.enter_context(
                korvet_broker(
                    directory / f"broker-{number}",
                    *("--redis-url", redis_url, "--broker-id", str(number)),
                    *flags,
                    workers=workers,
                    settings=settings,
                    listen=("--listen", f"127.0.0.1:{processes.free_port()}"),
                )
            )
            for number in range(brokers)
        ]
        yield started
        assert all("Traceback" not in broker.log() for broker in started)


@contextlib.contextmanager
def echo_broker(
    directory: Path, *values: str, workers: int = 2, data_dir: Path | None = None, ready: bool = True
) -> Iterator[Broker]:
    """Run tests/support/echo_broker.py: the processes of a broker with workers that echo lines.

    `values` are settings as `name=value`; a `--config FILE` goes first. With `ready=False` nothing is waited for.
    """
    data_dir = data_dir or directory / "data"
    config, values = (values[:2], values[2:]) if values[:1] == ("--config",) else ((), values)
    common = ("listen=127.0.0.1:0", "ops.listen=127.0.0.1:0", f"workers={workers}", f"data.dir={data_dir}")
    command = [sys.executable, "-m", "tests.support.echo_broker", *config, *common, *values]
    with started(command, directory, data_dir) as broker:
        if ready:
            broker.wait_until_ready()
        yield broker
