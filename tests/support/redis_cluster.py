"""A real Redis Cluster on 127.0.0.1: masters with replicas, to be killed, frozen, restarted and given other slots.

The program is that of TEST_KORVET_REDIS (tests/support/redis_servers.py). A cluster is there within 3 s: a master of
Redis takes no writes before 2 s of its life. What waits, waits for a condition.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from korvet.redis.keys import Keys
from korvet.redis.slots import tag_of
from tests.support.processes import free_port, wait_until
from tests.support.redis_servers import RedisServer

SLOTS = 16384
_MIGRATE_TIMEOUT_MS = 60_000
_KEYS_AT_ONCE = 10
_EPOCH, _EPOCHS_APART = 1000, 100
_MIGRATION_SECONDS_MAX = 300.0  # under load, on a busy machine
TLS = Path(__file__).parent / "tls"
_TLS_FILES = {"cert": TLS / "certificate.pem", "key": TLS / "key.pem", "ca-cert": TLS / "certificate.pem"}
_UNANSWERED = (redis.ConnectionError, redis.TimeoutError)


class ClusterNode(RedisServer):
    """One server of a cluster."""

    def __init__(self, *options: str, tls: bool = False) -> None:
        """`options` are server flags, which override its own; `tls` is of clients and other nodes alike."""
        self._bus_port = free_port()
        flags = {
            "cluster-enabled": "yes",
            "cluster-port": str(self._bus_port),
            "cluster-announce-ip": "127.0.0.1",
            "enable-debug-command": "yes",
        }
        super().__init__(*_flags(flags), *options, listens=True)
        if tls:
            flags = {"port": "0", "tls-port": str(self.port), "tls-cluster": "yes", "tls-auth-clients": "no"}
            flags |= {f"tls-{name}-file": str(path) for name, path in _TLS_FILES.items()}
            self._options += tuple(_flags(flags))
        self.start()
        self.id = self.call("CLUSTER", "MYID").decode()

    @property
    def answers(self) -> bool:
        """Whether its process runs and is not frozen."""
        return self._process.poll() is None and not self._frozen

    def call(self, *command: str | bytes | int) -> Any:
        """Send a command, each word by itself, and return the reply: redis-py knows none of that name to parse."""
        return self.client.execute_command(*command)

    def info(self) -> dict[str, str]:
        """Return CLUSTER INFO."""
        lines = self.call("CLUSTER", "INFO").decode().split()
        return dict(line.split(":") for line in lines)

    def known(self) -> dict[str, frozenset[tuple[int, int]]]:
        """Return the slot ranges that each node id has, as this node knows it."""
        result = {}
        for line in self.call("CLUSTER", "NODES").decode().splitlines():
            words = line.split()
            ranges = [word.partition("-") for word in words[8:] if not word.startswith("[")]
            result[words[0]] = frozenset((int(first), int(last or first)) for first, _, last in ranges)
        return result

    def slots(self) -> set[int]:
        """Return the slots that it serves."""
        return set(itertools.chain(*(range(first, last + 1) for first, last in self.known()[self.id])))

    def epochs(self) -> dict[str, str]:
        """Return the config epoch of each node id, as this node knows it."""
        lines = self.call("CLUSTER", "NODES").decode().splitlines()
        return {words[0]: words[6] for words in map(str.split, lines)}

    def is_master(self) -> bool:
        """Whether it answers, and that it is a master."""
        try:
            return self.answers and bool(self.client.role()[0] == b"master")
        except _UNANSWERED:
            return False

    def meet(self, other: ClusterNode) -> None:
        """Make the other one known to it."""
        self.call("CLUSTER", "MEET", "127.0.0.1", other.port, other._bus_port)


def _flags(settings: dict[str, str]) -> Iterator[str]:
    return itertools.chain(*((f"--{name}", value) for name, value in settings.items()))


class RedisCluster:
    """The nodes of a cluster, and what an operator does to them."""

    def __init__(self, nodes: list[ClusterNode]) -> None:
        self.nodes = nodes
        self.first: dict[ClusterNode, set[int]] = {}
        """The slots that each master had first."""

    @property
    def url(self) -> str:
        """What `redis.url` takes."""
        return f"redis+cluster://{','.join(node.address for node in self.nodes)}"

    def living(self) -> list[ClusterNode]:
        """Return the nodes whose processes run and are not frozen."""
        return [node for node in self.nodes if node.answers]

    def masters(self) -> list[ClusterNode]:
        """Return the nodes that are masters now."""
        return [node for node in self.nodes if node.is_master()]

    def replicas_of(self, master: ClusterNode) -> list[ClusterNode]:
        """Return the nodes that replicate this one, and answer."""
        replicas = [node for node in self.living() if not node.is_master()]
        return [node for node in replicas if node.client.role()[2] == master.port]

    def owner(self, slot: int) -> ClusterNode:
        """Return the master that serves a slot, by what it says itself."""
        for node in self.masters():
            if any(first <= slot <= last for first, last in node.known()[node.id]):
                return node
        raise AssertionError(f"no master serves slot {slot}")

    def node_of(self, key: str) -> ClusterNode:
        """Return the master that serves a key."""
        return self.owner(key_slot(key.encode()))

    def is_ok(self) -> bool:
        """Whether each node that answers has found the cluster in order, all agree, and the replicas are in step."""
        living = self.living()
        try:
            if any(node.info()["cluster_state"] != "ok" for node in living):
                return False
            if any(node.known() != living[0].known() for node in living):
                return False
            # One that takes over a slot before it has heard of the last move may give itself the epoch of that: then
            # nodes may not agree about it any more.
            if any(node.epochs() != living[0].epochs() for node in living):
                return False
            replicas = [node.client.info("replication") for node in living if not node.is_master()]
        except _UNANSWERED:
            return False
        except redis.ResponseError as error:
            # A node that was stopped in the middle of a script takes the script for one that runs too long.
            if not str(error).startswith("BUSY"):
                raise
            return False
        return all(result["master_link_status"] == "up" for result in replicas)

    def wait_ok(self) -> None:
        """Wait until `is_ok`: a killed master is replaced then, if it had a replica."""
        wait_until(self.is_ok, "the cluster is in order")

    def wait_promoted(self, *but: ClusterNode) -> list[ClusterNode]:
        """Wait until all slots have a master apart from these, known to all that answer; return the masters."""
        gone = {node.id for node in but}

        def promoted() -> bool:
            slots = [
                sum(last + 1 - first for first, last in ranges)
                for node, ranges in self.masters()[0].known().items()
                if node not in gone
            ]
            return sum(slots) == SLOTS and self.is_ok()

        wait_until(promoted, "a replica is promoted")
        return self.masters()

    def set_epochs_apart(self) -> None:
        """Give each master a leader epoch of its own, as after failovers: else all begin theirs in the same second."""
        for number, node in enumerate(self.masters()):
            key = Keys("korvet").epoch_of(tag_of(min(node.slots())))
            history = node.client.info("replication")["master_replid"]
            node.client.hset(key, mapping={"history": history, "epoch": _EPOCH + number * _EPOCHS_APART})

    def begin_move(self, slot: int, to: ClusterNode) -> ClusterNode:
        """Mark a slot as moving, as redis-cli does first; return the node that it moves from."""
        source = self.owner(slot)
        to.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
        return source

    def move_keys(
        self, source: ClusterNode, to: ClusterNode, keys: Iterable[bytes], *, replace: bool = False
    ) -> None:
        """MIGRATE some keys; `replace`: also keys that the other node has already, as after a failed one."""
        options = ("REPLACE", "KEYS") if replace else ("KEYS",)
        source.call("MIGRATE", "127.0.0.1", to.port, "", 0, _MIGRATE_TIMEOUT_MS, *options, *keys)

    def end_move(self, slot: int, source: ClusterNode, to: ClusterNode, *, replace: bool = False) -> None:
        """Move what keys are left, and give the slot to its new node, which is made known to the others."""
        while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, _KEYS_AT_ONCE):
            self.move_keys(source, to, keys, replace=replace)
        others = [node for node in self.masters() if node not in (source, to)]
        for node in (to, source, *others):
            wait_until(lambda: self._give_slot(node, slot, to), "the slot is given away")  # noqa: B023 - called at once

    def _give_slot(self, node: ClusterNode, slot: int, to: ClusterNode) -> bool:
        try:
            node.call("CLUSTER", "SETSLOT", slot, "NODE", to.id)
        except redis.ResponseError as error:
            # Valkey waits for its replicas, 2 s at most.
            if not str(error).startswith("NOREPLICAS"):
                raise
            return False
        return True

    def move_slot(self, slot: int, to: ClusterNode) -> None:
        """Move a slot with its keys, step by step as `redis-cli --cluster reshard` does."""
        self.end_move(slot, self.begin_move(slot, to), to)

    def can_migrate_slots(self) -> bool:
        """Whether the servers have CLUSTER MIGRATESLOTS: Valkey since 9.0."""
        return any(b"MIGRATESLOTS" in line for line in self.nodes[0].call("CLUSTER", "HELP"))

    def begin_migration(self, slots: Iterable[int], to: ClusterNode) -> ClusterNode:
        """Have the node of these slots stream them to another, which takes over all at once; return the former."""
        ranges = [number for slot in slots for number in (slot, slot)]
        source = self.owner(ranges[0])
        source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", *ranges, "NODE", to.id)
        return source

    def end_migration(self, source: ClusterNode) -> str:
        """Wait for the last migration of a node; return how it ended: success, or failed and for what."""

        def ended() -> bool:
            return self._migration(source)["state"] in ("success", "failed")

        wait_until(ended, "the migration has ended", _MIGRATION_SECONDS_MAX)
        last = self._migration(source)
        return " ".join(filter(None, (last["state"], last["message"])))

    def _migration(self, source: ClusterNode) -> dict[str, str]:
        [last, *_] = source.call("CLUSTER", "GETSLOTMIGRATIONS")
        return {name.decode(): value.decode() for name, value in last.items() if isinstance(value, bytes)}

    @contextlib.contextmanager
    def configured(self, name: str, value: str) -> Iterator[None]:
        """Have another value of a setting on every node within the block."""
        before = self.nodes[0].client.config_get(name)[name]
        for node in self.nodes:
            node.client.config_set(name, value)
        try:
            yield
        finally:
            for node in self.nodes:
                node.client.config_set(name, before)

    def put_back(self) -> None:
        """Let each master have the slots that it had first, and go on; all of them live."""
        for node in self.nodes:
            node.thaw()
        for node, slots in self.first.items():
            for slot in slots - node.slots():
                self.wait_ok()
                self.move_slot(slot, node)
        self.wait_ok()

    def empty(self) -> None:
        """Remove all keys and scripts."""
        for node in self.masters():
            node.client.flushall()
            node.client.script_flush()


@contextlib.contextmanager
def redis_cluster(
    masters: int = 3,
    replicas: int = 0,
    *options: str,
    node_timeout_ms: int = 15_000,
    append_only: bool = False,
    tls: bool = False,
) -> Iterator[RedisCluster]:
    """Run a cluster, in order, whose slots are spread evenly over `masters` with `replicas` each.

    `options` are flags of each server. A master that is dead for `node_timeout_ms` is replaced by its replica. Without
    replicas the rest goes on: `cluster-require-full-coverage` is off, as Korvet asks for. With `tls` all connections
    to its ports are by TLS (the certificate in tests/support/tls), if the program has it: that of the wheel has not.
    """
    flags = (
        *("--cluster-node-timeout", str(node_timeout_ms)),
        *("--cluster-require-full-coverage", "no"),
        *("--appendonly", "yes" if append_only else "no"),
    )
    with contextlib.ExitStack() as stack:
        nodes = []
        for _ in range(masters * (1 + replicas)):
            nodes.append(ClusterNode(*flags, *options, tls=tls))
            stack.callback(nodes[-1].close)
        made = RedisCluster(nodes)
        _form(made, masters)
        yield made


def _form(cluster: RedisCluster, masters: int) -> None:
    for number, node in enumerate(cluster.nodes):
        node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        if number < masters:
            first, end = number * SLOTS // masters, (number + 1) * SLOTS // masters
            node.call("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            cluster.first[node] = set(range(first, end))
    for one, other in itertools.combinations(cluster.nodes, 2):
        one.meet(other)
    ids = {node.id for node in cluster.nodes}
    wait_until(lambda: all(node.known().keys() == ids for node in cluster.nodes), "the nodes know each other")
    for number, node in enumerate(cluster.nodes[masters:]):
        node.call("CLUSTER", "REPLICATE", cluster.nodes[number % masters].id)
    cluster.wait_ok()
