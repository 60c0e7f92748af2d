"""A master and replicas under real Sentinels on 127.0.0.1, to be killed, frozen, and failed over.

The program is that of TEST_KORVET_REDIS (tests/support/redis_servers.py). Sentinels look for each other and for
replicas ten times as often as by default, so all know each other within a second. One that got no CPU for 2 s trusts
nothing for 1 s (TILT), not for the 30 s that a test waits at most.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from tests.support.processes import dying_with_tests, free_port, wait_until
from tests.support.redis_servers import RedisServer, ServerProcess, program, wait_until_ready

MASTER = "mymaster"
_UNANSWERED = (redis.ConnectionError, redis.TimeoutError)


class Sentinel(ServerProcess):
    """A Sentinel that watches one master, and a client of it."""

    def __init__(
        self, port: int, *lines: str, quorum: int = 1, password: str = "", down_ms: int = 2000
    ) -> None:
        """Watch the server at a port; `lines` of its configuration come last, `password` is its own."""
        self.port, self._password = free_port(), password
        self._directory = tempfile.TemporaryDirectory(prefix="korvet-test-")
        options = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self._directory.name}",
            f"sentinel monitor {MASTER} 127.0.0.1 {port} {quorum}",
            f"sentinel down-after-milliseconds {MASTER} {down_ms}",
            f"sentinel failover-timeout {MASTER} 6000",
            *([f"requirepass {password}", f"sentinel sentinel-pass {password}"] if password else []),
            *lines,
        ]
        file = Path(self._directory.name) / "sentinel.conf"
        file.write_text("".join(f"{line}\n" for line in options))
        self._process = subprocess.Popen(
            dying_with_tests([program(), str(file), "--sentinel"]), stdout=subprocess.DEVNULL
        )
        wait_until_ready(f"redis://:{password}@{self.address}")
        self.client: Any = redis.Redis(port=self.port, password=password or None, decode_responses=True)
        debug: Any = self.client
        debug.execute_command(
            "SENTINEL DEBUG", "PUBLISH-PERIOD", 200, "INFO-PERIOD", 1000, "TILT-PERIOD", 1000
        )

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    def master_port(self) -> int:
        """Return the port of the master that it names."""
        return int(self.client.sentinel_get_master_addr_by_name(MASTER)[1])

    def knows(self, sentinels: int, replicas: int) -> bool:
        """Whether it knows these numbers of other Sentinels and replicas, and finds all of them well."""
        try:
            result = self.client.sentinel_master(MASTER)
            slaves = self.client.sentinel_slaves(MASTER)
        except _UNANSWERED:
            return False
        counts = (result["num-other-sentinels"], len(slaves))
        well = [slave["flags"] for slave in slaves] == ["slave"] * replicas
        return counts == (sentinels, replicas) and result["flags"] == "master" and well

    def close(self) -> None:
        """Kill it, and remove its files."""
        self.client.close()
        self.kill()
        self._directory.cleanup()


class Watched:
    """A master with replicas, and the Sentinels that watch it."""

    def __init__(self, servers: list[RedisServer], sentinels: list[Sentinel], password: str = "") -> None:
        self.servers, self.sentinels, self._password = servers, sentinels, password

    @property
    def url(self) -> str:
        """What `redis.url` takes."""
        return self.url_by(*(sentinel.address for sentinel in self.sentinels))

    def url_by(self, *addresses: str, query: str = "") -> str:
        """Return what `redis.url` takes, with these Sentinels only."""
        login = f":{self._password}@" if self._password else ""
        return f"redis+sentinel://{login}{','.join(addresses)}/{MASTER}{query}"

    def master(self) -> RedisServer:
        """Return the server that the first Sentinel names."""
        port = self.sentinels[0].master_port()
        return next(server for server in self.servers if server.port == port)

    def replicas(self) -> list[RedisServer]:
        """Return the others."""
        master = self.master()
        return [server for server in self.servers if server is not master]

    def fail_over(self) -> RedisServer:
        """Have a Sentinel promote a replica, and return the master; all others are its replicas in step then.

        A new master that got no CPU for `down_ms` is replaced again, perhaps by the old one.
        """
        old = self.master()

        def accepted() -> bool:
            # It refuses while it is busy with the last one, and knows no replica that it could take.
            try:
                return bool(self.sentinels[0].client.execute_command("SENTINEL", "FAILOVER", MASTER))
            except redis.ResponseError:
                return False

        wait_until(accepted, "a Sentinel fails over")
        self.wait_switched(old)
        wait_until(
            lambda: all(replica.in_step() for replica in self.replicas()), "the others are replicas in step"
        )
        return self.master()

    def wait_switched(self, old: RedisServer) -> None:
        """Wait until all living Sentinels name another master than this one."""
        living = [sentinel for sentinel in self.sentinels if sentinel._process.poll() is None]
        wait_until(lambda: all(item.master_port() != old.port for item in living), "Sentinels name another")

    def wait_well(self) -> None:
        """Wait until each Sentinel knows the others and the replicas."""
        count = (len(self.sentinels) - 1, len(self.servers) - 1)
        wait_until(
            lambda: all(sentinel.knows(*count) for sentinel in self.sentinels), "Sentinels know each other"
        )


@contextlib.contextmanager
def watched(
    *options: str,
    replicas: int = 2,
    sentinels: int = 3,
    password: str = "",
    sentinel_password: str = "",
    down_ms: int = 2000,
) -> Iterator[Watched]:
    """Run a master with replicas in step, and Sentinels that know each other; `options` are flags of each server."""
    lines = (f"sentinel auth-pass {MASTER} {password}",) if password else ()
    login = ("--requirepass", password, "--masterauth", password) if password else ()
    with contextlib.ExitStack() as stack:
        servers: list[RedisServer] = []
        for number in range(1 + replicas):
            of = ("--replicaof", "127.0.0.1", str(servers[0].port)) if number else ()
            server = RedisServer("--appendonly", "no", *login, *of, *options, listens=True, password=password)
            servers.append(stack.enter_context(server))
        for replica in servers[1:]:
            wait_until(replica.in_step, "a replica in step")
        made = Watched(servers, [], password)
        for _ in range(sentinels):
            made.sentinels.append(
                Sentinel(
                    servers[0].port,
                    *lines,
                    quorum=sentinels // 2 + 1,
                    password=sentinel_password,
                    down_ms=down_ms,
                )
            )
            stack.callback(made.sentinels[-1].close)
        made.wait_well()
        yield made
