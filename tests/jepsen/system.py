"""What is tested: Redis servers of one set-up, a proxy as their name, and brokers with workers.

The first Redis server and the first broker may have a clock each that can be set: they are machines of their own.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

import redis

from korvet.topics.entry_ids import BATCH, DENSE
from tests.support.broker import KORVET, Broker, started
from tests.support.clock import Clock
from tests.support.processes import free_port, wait_until
from tests.support.proxy_process import Proxy
from tests.support.redis_cluster import redis_cluster
from tests.support.redis_servers import DurableServer
from tests.support.sentinels import MASTER, Sentinel

Setup: TypeAlias = Literal["one", "always", "replicas", "sentinel", "cluster"]
"""The Redis servers: one, whose file is synced each second or always; a master and a replica, also led by Sentinels; a
Redis Cluster of three masters with a replica each."""

Layout: TypeAlias = Literal["time", "dense", "batch"]
"""The layouts of a log (docs/records.md): entries are records whose ids are times, or dense; or batches."""
CONFIGS: Mapping[Layout, dict[str, str]] = {
    "time": {"storage.format": "record", "offset.encoding": "time"},
    "dense": {"storage.format": "record", "offset.encoding": "dense"},
    "batch": {"storage.format": "batch"},
}
BITS: Mapping[Layout, int] = {"time": 10, "dense": DENSE, "batch": BATCH}

LEASE_MS = 3000
_SENTINELS = 3
_LOOK_SECONDS = 0.1
_NODE_TIMEOUT_MS = 2000
_SWITCH_SECONDS_MAX = 60.0
_SETTLE_SECONDS_MAX = 90.0


class Node(DurableServer):
    """A Redis server with an append-only file."""

    def __init__(
        self,
        log: Path,
        clock: Clock | None = None,
        *,
        fsync: Literal["everysec", "always"] = "everysec",
    ) -> None:
        self._fsync = fsync
        flags = ("--repl-diskless-sync-delay", "0", "--repl-backlog-size", "64mb", "--repl-timeout", "5")
        super().__init__(
            *("--appendfsync", fsync, "--logfile", str(log), *flags),
            listens=True,
            before=clock.command if clock else (),
            seconds_max=10.0,
        )
        self._looking = self.connected(1.0)

    def write_at_once(self) -> None:
        """Write before each answer from now on, also while its file is synced: until it starts again."""
        if self._fsync == "everysec":
            self.client.config_set("appendfsync", "no")

    def has_rewritten(self) -> bool:
        """Whether no rewrite of its file is under way or to come."""
        result = self.client.info("persistence")
        return not (result["aof_rewrite_in_progress"] or result["aof_rewrite_scheduled"])

    def role(self) -> str:
        """Return `master` or `slave`, or nothing if it does not answer."""
        try:
            return str(self._looking.role()[0].decode())
        except redis.RedisError:
            return ""

    def close(self) -> None:
        """Kill it, and remove its files."""
        self._looking.close()
        super().close()


class System:
    """Everything that runs; a context manager.

    `master` and `other` are the Redis servers (`other`: its replica), or `cluster` is what there is instead.
    """

    def __init__(
        self,
        directory: Path,
        setup: Setup,
        *flags: str,
        clocks: bool = False,
        brokers: int = 2,
        workers: int = 2,
        program: Sequence[str] = KORVET,
    ) -> None:
        """Take the flags of `korvet serve` besides those that it must have; `program` starts each broker."""
        self.setup = setup
        self.replicas = int(setup in ("replicas", "sentinel", "cluster"))
        self.brokers: list[Broker] = []
        self.redis_clock = Clock(directory / "clock-redis") if clocks else None
        self.broker_clock = Clock(directory / "clock-broker") if clocks else None
        fsync: Literal["everysec", "always"] = "always" if setup == "always" else "everysec"
        self.master = Node(directory / "redis-0.log", self.redis_clock, fsync=fsync)
        self.other = Node(directory / "redis-1.log")
        self.directory = directory
        self._flags = flags
        self._running = contextlib.ExitStack()
        self.programs, self.workers = [program] * brokers, workers
        self._ports = [free_port() for _ in range(brokers)]
        self._sentinels: list[Sentinel] = []
        self._ending = threading.Event()
        self._number = 0

    def __enter__(self) -> Self:
        running = self._running.__enter__()
        if self.setup == "cluster":
            self.cluster = running.enter_context(
                redis_cluster(3, 1, node_timeout_ms=_NODE_TIMEOUT_MS, append_only=True)
            )
        else:
            self._start_servers(running)
        for number in range(len(self.programs)):
            self.brokers.append(self.start_broker(number))
            self.brokers[number].wait_until_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._running.__exit__(kind, error, trace)

    def _start_servers(self, running: contextlib.ExitStack) -> None:
        running.enter_context(self.master)
        if self.replicas:
            self.follow(self.other, self.master)
            running.callback(self.other.close)
        self.proxy = running.enter_context(Proxy(self.master.port))
        if self.setup == "sentinel":
            self._start_sentinels()

    def is_redis_well(self) -> bool:
        """Whether Redis answers, all of it."""
        with contextlib.suppress(redis.RedisError):
            return self.cluster.is_ok() if self.setup == "cluster" else bool(self.master.client.ping())
        return False

    def redis_ports(self) -> list[int]:
        """Return the ports at which a Redis client begins: each node of a cluster names the master of a key."""
        return [node.port for node in self.cluster.nodes] if self.setup == "cluster" else [self.proxy.port]

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
        wait_until(replica.in_step, "a replica is in step", 60.0)

    def restart_broker(self, number: int) -> None:
        """Start a broker again that has ended, on its port and under its id; `programs` has its build."""
        self.brokers[number] = self.start_broker(number)
        self.brokers[number].wait_until_ready()

    def logs(self) -> str:
        """Return what the brokers wrote."""
        return "\n".join(path.read_text() for path in sorted(self.directory.glob("broker-*/broker.err")))

    def start_broker(self, number: int) -> Broker:
        """Start a broker, and wait for nothing."""
        self._number += 1
        directory = self.directory / f"broker-{number}-{self._number}"
        clock = self.broker_clock.command if self.broker_clock and number == 0 else []
        command = [
            *clock,
            *self.programs[number],
            "--listen",
            f"127.0.0.1:{self._ports[number]}",
            "--ops-listen",
            "127.0.0.1:0",
        ]
        url = self.cluster.url if self.setup == "cluster" else f"redis://127.0.0.1:{self.proxy.port}"
        if self._sentinels and number % 2:
            # The others follow by name, so connections can be cut and held up.
            url = f"redis+sentinel://{','.join(sentinel.address for sentinel in self._sentinels)}/{MASTER}"
        command += ["--workers", str(self.workers), "--redis-url", url]
        command += ["--broker-id", str(number), "--data-dir", str(directory / "data")]
        settings = {
            "log.retention.ms": "-1",
            "broker.lease.ms": str(LEASE_MS),
            "redis.timeout.ms": "3000",
            "group.initial.rebalance.delay.ms": "0",
        }
        if self.replicas:
            settings["replicas"] = str(self.replicas)
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        return self._running.enter_context(started([*command, *self._flags], directory, directory / "data"))

    def _start_sentinels(self) -> None:
        for _ in range(_SENTINELS):
            self._sentinels.append(Sentinel(self.master.port, quorum=2))
            self._running.callback(self._sentinels[-1].close)
        wait_until(
            lambda: all(sentinel.knows(_SENTINELS - 1, 1) for sentinel in self._sentinels),
            "the Sentinels know each other and the replica",
        )
        threading.Thread(target=self._lead, daemon=True).start()

    def _lead(self) -> None:
        """Let the proxy lead to the server that most Sentinels call the master."""
        led_to = self.master.port
        while not self._ending.wait(_LOOK_SECONDS):
            port = self._named()
            if port not in (None, led_to):
                led_to = port
                self.proxy.say(f"lead {port}")

    def _named(self) -> int | None:
        """Return the port of the server that most Sentinels call the master; None if they do not agree."""
        named = Counter[int]()
        for sentinel in self._sentinels:
            with contextlib.suppress(redis.RedisError):
                named[sentinel.master_port()] += 1
        [(port, votes)] = named.most_common(1) or [(0, 0)]
        return port if votes > _SENTINELS // 2 else None

    def fail_over_by_sentinel(self) -> None:
        """Have a Sentinel promote the replica; it refuses while it is still busy with the last time."""

        def promoted() -> bool:
            if self.other.role() == "master":
                return True
            with contextlib.suppress(redis.RedisError):
                self._sentinels[0].client.execute_command("SENTINEL", "FAILOVER", MASTER)
            return False

        wait_until(promoted, "a Sentinel fails over", _SWITCH_SECONDS_MAX)

    def wait_promoted(self) -> None:
        """Wait until the replica is a master."""
        wait_until(lambda: self.other.role() == "master", "the replica is promoted", _SWITCH_SECONDS_MAX)

    def settle(self) -> None:
        """Wait until the server that most Sentinels name is the master and the other its replica, and note which.

        A Sentinel gives a failover up that takes too long, and makes a promoted replica a replica again.
        """

        def settled() -> bool:
            for master, other in ((self.master, self.other), (self.other, self.master)):
                if self._named() == master.port and (master.role(), other.role()) == ("master", "slave"):
                    self.master, self.other = master, other
                    return True
            return False

        wait_until(settled, "one server follows the other, which most Sentinels name", _SETTLE_SECONDS_MAX)
        self.wait_for_replica(self.other)

    def swap(self) -> None:
        """Note that the replica is the master now."""
        self.master, self.other = self.other, self.master
