"""Two brokers with two workers each on one Redis, the embedded server of the first; a client of that Redis.

Knows how they are started and ended, and Korvet's documented keys; nothing of what is measured.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import redis

from loadtest.bench import frames, processes
from loadtest.bench.processes import Cpu, NotAvailableError

BROKERS, WORKERS = 2, 2
_START_SECONDS_MAX = 60.0
_WAIT_SECONDS_MAX = 60.0
_REPOSITORY = Path(__file__).parents[2]
_OWN_NAME = "loadtest"


class Cluster:
    """The brokers, on empty data; a context manager that ends them."""

    def __init__(self, directory: Path) -> None:
        self.addresses = [("127.0.0.1", processes.free_port()) for _ in range(BROKERS)]
        self._directory = directory
        self._processes: list[subprocess.Popen[str]] = []
        self.socket = directory / "data" / "server.sock"
        self.redis: redis.Redis = redis.Redis(unix_socket_path=str(self.socket))

    def __enter__(self) -> Self:
        try:
            for number, address in enumerate(self.addresses):
                self._start(number, address, f"unix://{self.socket}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # The last first: the first one has the server.
        for process in reversed(self._processes):
            processes.stop(process)

    @contextlib.contextmanager
    def hard_of_hearing(self) -> Iterator[tuple[tuple[str, int], Callable[[str], None]]]:
        """Run one more broker, which can be made to hear no announcements: gives its address, and what does that.

        It takes "deaf" or "hear".
        """
        log = self._directory / "relay.log"
        arguments = [sys.executable, "-m", "loadtest.groups.relay", self.socket]
        relay = processes.spawn([str(word) for word in arguments], log, pipes=True, cwd=_REPOSITORY)
        assert relay.stdin is not None
        assert relay.stdout is not None
        says, commands = relay.stdout, relay.stdin

        def command(word: str) -> None:
            print(word, file=commands, flush=True)
            says.readline()

        address = ("127.0.0.1", processes.free_port())
        try:
            self._start(BROKERS, address, f"redis://127.0.0.1:{int(says.readline())}")
            yield address, command
        finally:
            if len(self._processes) > BROKERS:
                processes.stop(self._processes.pop())
            processes.stop(relay)
            says.close()
            commands.close()

    def _start(self, number: int, address: tuple[str, int], redis_url: str) -> None:
        host, port = address
        values = {
            "listen": f"{host}:{port}",
            "ops.listen": f"127.0.0.1:{processes.free_port()}",
            "broker.id": str(number),
            "workers": str(WORKERS),
            "group.initial.rebalance.delay.ms": "0",
        }
        if number == 0:
            values["data.dir"] = str(self._directory / "data")
        else:
            values["redis.url"] = redis_url
        flags = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        log = self._directory / f"broker-{number}.log"
        command = [sys.executable, "-m", "korvet", "serve", *flags]
        self._processes.append(processes.spawn(command, log, cwd=_REPOSITORY))
        frames.await_metadata(f"{host}:{port}", _START_SECONDS_MAX)

    def cpu(self) -> Cpu:
        """Return the CPU time that both brokers and their Redis have used so far."""
        each = [processes.cpu(process.pid) for process in self._processes]
        return Cpu(sum(one.broker for one in each), sum(one.redis for one in each))

    def connections(self) -> list[int]:
        """Return how many connections of clients each worker holds, those with none left out."""
        held: list[int] = []
        for process, (_, port) in zip(self._processes, self.addresses, strict=True):
            held += processes.connections(process.pid, port).values()
        return sorted(held)

    def await_parked(self, group: str, members: int) -> None:
        """Wait until the requests of `members` members of a group are parked; raises NotAvailableError."""
        deadlines = f"{{korvet:group:{group}:offsets}}:deadlines"
        self._await(lambda: self.redis.zcount(deadlines, "+inf", "+inf") == members, f"{members} wait")

    def await_listeners(self, group: str, count: int) -> None:
        """Wait until `count` connections to Redis listen to a group; raises NotAvailableError."""
        channel = channel_of(group)
        self._await(
            lambda: dict(self.redis.pubsub_shardnumsub(channel)).get(channel.encode(), 0) >= count,
            "listeners",
        )

    def cut_subscriptions(self) -> None:
        """Cut the connections on which the workers hear of transitions."""
        for client in self.redis.client_list(_type="pubsub"):
            if client["name"] != _OWN_NAME:
                self.redis.client_kill_filter(_id=client["id"])

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS_MAX
        while not holds():
            if time.monotonic() > deadline:
                raise NotAvailableError(f"waited {_WAIT_SECONDS_MAX:.0f} s without success: {what}")
            time.sleep(0.002)


def channel_of(group: str) -> str:
    """Return the channel of a group's transitions."""
    return f"korvet:group:{group}:offsets"
