"""What goes wrong, by name: each fault comes and is healed within one call.

`FAULTS` is the table of durability too: per set-up what a fault may cost, in the words of the checker. All else is a
violation.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, get_args

import redis
from redis.crc import key_slot

from tests.jepsen.system import LEASE_MS, Setup, System
from tests.support import processes
from tests.support.clock import Clock
from tests.support.processes import wait_until
from tests.support.redis_cluster import ClusterNode

Break: TypeAlias = Callable[[System, random.Random], None]

Losses: TypeAlias = Mapping[Setup, frozenset[str]]

# The locks of a share group's member end with its connection, and with Redis' clock.
NOTHING = frozenset({"taken"})
LAST_SECOND = frozenset({"lost", "moved", "two values", "skipped", "went back", "commit went back"})
LAST_SECOND |= {"aborted read", "lost commit", "torn commit", "two ends", "not copied", "copied twice"}
LAST_SECOND |= {"accepted again", "same count", "taken"}
# A rebalance of the last second is lost: the group's next one has its generation again.
LAST_SECOND |= {"same generation"}
CALM: Losses = MappingProxyType({arg: frozenset[str]() for arg in get_args(Setup)})
ANYWHERE: Losses = MappingProxyType(dict.fromkeys(get_args(Setup), NOTHING))
NOT_WATCHED: Losses = MappingProxyType({"one": NOTHING, "always": NOTHING, "replicas": NOTHING})
# With appendfsync always Redis ends with the first write that fails.
GOES_ON_WITHOUT_DISK: Losses = MappingProxyType({"one": NOTHING, "replicas": NOTHING})
# A master that lost its last second and starts again makes its replicas lose it too.
LOSES_LAST_SECOND: Losses = MappingProxyType({"one": LAST_SECOND, "replicas": LAST_SECOND})
REPLICAS: Losses = MappingProxyType({"replicas": NOTHING})
SENTINEL: Losses = MappingProxyType({"sentinel": NOTHING})
CLUSTER: Losses = MappingProxyType({"cluster": NOTHING})
# A cluster is reached without a proxy.
PROXIED: Losses = MappingProxyType({arg: NOTHING for arg in get_args(Setup) if arg != "cluster"})

_HEAL_SECONDS_MAX = 90.0
_HOUR = 3600


class Fault(NamedTuple):
    """A fault; `losses` are the kinds of violations that are allowed after it, for each set-up that it is for."""

    run: Break
    losses: Losses = ANYWHERE


def _calm(_system: System, rng: random.Random) -> None:
    """Let nothing go wrong for a while."""
    time.sleep(rng.uniform(2, 10))


def _worker(system: System, rng: random.Random) -> int:
    return rng.choice([pid for broker in system.brokers for pid in broker.worker_pids()])


def _kill_worker(system: System, rng: random.Random) -> None:
    processes.kill(_worker(system, rng))


def _stop_worker(system: System, rng: random.Random) -> None:
    """Stop it for longer than a lease at times: what it has read is old when it goes on."""
    pid = _worker(system, rng)
    with processes.stopped(pid):
        time.sleep(rng.uniform(0.5, 3 * LEASE_MS / 1000))


def _kill_broker(system: System, rng: random.Random) -> None:
    number = rng.randrange(len(system.brokers))
    broker = system.brokers[number]
    children = processes.children(broker.pid)
    broker.kill()
    wait_until(lambda: not any(map(processes.alive, children)), "its processes are gone")
    time.sleep(rng.uniform(0, 5))
    system.restart_broker(number)


def _stop_broker(system: System, rng: random.Random) -> None:
    broker = rng.choice(system.brokers)
    with processes.stopped(broker.pid, *processes.descendants(broker.pid)):
        time.sleep(rng.uniform(0.5, 4 * LEASE_MS / 1000))


def _kill_child(name: str) -> Break:
    def kill(system: System, rng: random.Random) -> None:
        for pid in rng.choice(system.brokers).child_pids(name):
            processes.kill(pid)

    return kill


def _kill_redis(system: System, rng: random.Random) -> None:
    """Kill the process alone, as if its disk were never busy: all that it has answered is in its file."""
    system.master.write_at_once()
    system.master.kill()
    time.sleep(rng.uniform(0, 2))
    system.master.start()


def _stop_redis(system: System, rng: random.Random) -> None:
    system.master.freeze()
    time.sleep(rng.uniform(0.2, 6))
    system.master.thaw()


def _crash_machine(system: System, rng: random.Random) -> None:
    """End the append-only file at any byte of the last second."""
    file = system.master.append_only_file()
    synced = file.stat().st_size
    time.sleep(1.0)
    system.master.kill()
    size = file.stat().st_size
    with file.open("r+b") as end:
        end.truncate(rng.randint(min(synced, size), size))
    system.master.start()


def _kill_replica(system: System, rng: random.Random) -> None:
    system.other.kill()
    time.sleep(rng.uniform(0, 3))
    system.follow(system.other, system.master)


def _stop_replica(system: System, rng: random.Random) -> None:
    system.other.freeze()
    time.sleep(rng.uniform(0.2, 4))
    system.other.thaw()
    system.wait_for_replica(system.other)


def _promote(system: System, rng: random.Random) -> None:
    """Cut the replica from its master, promote it some time later, lead the name there; the old master follows it."""
    old, new = system.master, system.other
    new.client.config_set("masterauth", "wrong")  # a broken link is not made again
    new.client.execute_command("CLIENT", "KILL", "TYPE", "master")
    time.sleep(rng.uniform(0, 1))
    new.client.replicaof("NO", "ONE")
    new.client.config_set("masterauth", "")
    system.swap()
    system.proxy.say(f"lead {new.port}")
    if rng.random() < 0.5:
        system.proxy.say("cut 0")
    time.sleep(rng.uniform(0, 1))
    old.client.replicaof("127.0.0.1", new.port)
    system.wait_for_replica(old)


def _fail_over(system: System, rng: random.Random) -> None:
    """Redis' own planned failover."""
    old, new = system.master, system.other
    old.client.execute_command("FAILOVER", "TO", "127.0.0.1", new.port, "TIMEOUT", 10_000)
    wait_until(lambda: new.role() == "master" and old.role() == "slave", "the failover is done", 30.0)
    system.swap()
    time.sleep(rng.uniform(0, 0.5))
    system.proxy.say(f"lead {new.port}")
    system.wait_for_replica(old)


def _kill_master(system: System, rng: random.Random) -> None:
    """Let the Sentinels promote the replica; the old master comes back."""
    old = system.master
    old.kill()
    system.wait_promoted()
    time.sleep(rng.uniform(0, 2))
    old.start()
    system.settle()


def _stop_master(system: System, rng: random.Random) -> None:
    """Let the Sentinels promote the replica; the old master wakes as a master until they see it."""
    old = system.master
    old.freeze()
    system.wait_promoted()
    time.sleep(rng.uniform(0, 2))
    old.thaw()
    system.settle()


def _fail_over_by_sentinel(system: System, rng: random.Random) -> None:
    system.fail_over_by_sentinel()
    time.sleep(rng.uniform(0, 1))
    system.settle()


def _kill_cluster_master(system: System, rng: random.Random) -> None:
    """Let the cluster promote its replica; the old master comes back as a replica."""
    cluster = system.cluster
    gone = rng.choice(cluster.masters())
    gone.kill()
    cluster.wait_promoted(gone)
    time.sleep(rng.uniform(0, 2))
    gone.start()
    cluster.wait_ok()


def _stop_cluster_master(system: System, rng: random.Random) -> None:
    """Let the cluster promote its replica; the old master wakes as a master until it hears of that."""
    cluster = system.cluster
    gone = rng.choice(cluster.masters())
    gone.freeze()
    cluster.wait_promoted(gone)
    time.sleep(rng.uniform(0, 2))
    gone.thaw()
    cluster.wait_ok()


def _fail_over_in_cluster(system: System, rng: random.Random) -> None:
    """Fail over as Redis Cluster does when it is asked to."""
    cluster = system.cluster
    old = rng.choice(cluster.masters())
    [new, *_] = cluster.replicas_of(old)
    new.call("CLUSTER", "FAILOVER")
    wait_until(lambda: new.is_master() and not old.is_master(), "the failover is done", 30.0)
    cluster.wait_ok()


def _kill_cluster_replica(system: System, rng: random.Random) -> None:
    cluster = system.cluster
    [gone, *_] = cluster.replicas_of(rng.choice(cluster.masters()))
    gone.kill()
    time.sleep(rng.uniform(0, 3))
    gone.start()
    cluster.wait_ok()


def _move_slots(system: System, rng: random.Random) -> None:
    """Move slots that hold keys from one master to another."""
    cluster = system.cluster
    source, to = rng.sample(cluster.masters(), 2)
    for slot in _slots_with_keys(source, rng):
        cluster.move_slot(slot, to)
        time.sleep(rng.uniform(0, 0.2))


def _migrate_slots(system: System, rng: random.Random) -> None:
    """Have one master stream slots that hold keys to another, all at once; one that cannot moves them key by key.

    It is never cancelled: Valkey 9.1 then loses writes that it has acknowledged.
    """
    cluster = system.cluster
    if not cluster.can_migrate_slots():
        _move_slots(system, rng)
        return
    source, to = rng.sample(cluster.masters(), 2)
    if slots := _slots_with_keys(source, rng):
        cluster.begin_migration(slots, to)
        state = cluster.end_migration(source)
        assert not state.startswith("failed"), state


def _rebalance(system: System, rng: random.Random) -> None:
    """Have redis-cli move slots from one master to another, and then even them out."""
    source, to = rng.sample(system.cluster.masters(), 2)
    of = ("--cluster-from", source.id, "--cluster-to", to.id, "--cluster-slots", str(rng.randint(20, 300)))
    _redis_cli("reshard", source, *of, "--cluster-yes")
    _redis_cli("rebalance", source, "--cluster-threshold", "1")


def _redis_cli(action: str, node: ClusterNode, *flags: str) -> None:
    """Run a command of `redis-cli --cluster`; where it fails, redis-cli fixes the cluster first, as it asks for."""

    def is_done() -> bool:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        said.append(done.stdout.decode(errors="replace"))
        if done.returncode:
            fix = ["redis-cli", "--cluster", "fix", address]
            subprocess.run(fix, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        return not done.returncode

    assert shutil.which("redis-cli"), (
        "redis-cli is not there (on Debian or Ubuntu: apt-get install redis-tools)"
    )
    address = f"127.0.0.1:{node.port}"
    command = ["redis-cli", "--cluster", action, address, *flags]
    said: list[str] = []
    try:
        wait_until(is_done, f"redis-cli does {action}", 60.0)
    except AssertionError as error:
        raise AssertionError(f"{error}: {said[0]}\n...\n{said[-1]}") from error


def _slots_with_keys(source: ClusterNode, rng: random.Random) -> set[int]:
    """Return up to 20 slots of a master that hold keys."""
    keys = list(source.client.scan_iter(count=1000))
    return {key_slot(key) for key in rng.sample(keys, min(len(keys), 20))}


def _cut(system: System, rng: random.Random) -> None:
    system.proxy.say(f"cut {rng.choice((0, rng.randint(1, 100), rng.randint(1, 20_000)))}")


def _cut_often(system: System, rng: random.Random) -> None:
    for _ in range(10):
        _cut(system, rng)
        time.sleep(rng.uniform(0.2, 1.5))


def _hold(system: System, rng: random.Random) -> None:
    """Lose everything on the network for a while, at times longer than Redis' timeout."""
    system.proxy.say("hold")
    time.sleep(rng.uniform(0.2, 6))
    system.proxy.say("flow")


def _fill_memory(system: System, rng: random.Random) -> None:
    full = rng.choice(system.cluster.masters()) if system.setup == "cluster" else system.master
    used = int(full.client.info("memory")["used_memory"])
    full.client.config_set("maxmemory", used)
    time.sleep(rng.uniform(1, 4))
    full.client.config_set("maxmemory", 0)


def _fill_disk(system: System, rng: random.Random) -> None:
    """Let the append-only file grow no further for a while, and rewrite it then, as the runbook says.

    Redis could leave zeros in it, and would not start again with such a file.
    """
    node = system.master
    node.limit_files(node.append_only_file().stat().st_size + rng.randint(0, 10_000))
    time.sleep(rng.uniform(1, 4))
    node.limit_files()
    wait_until(
        lambda: node.client.info("persistence")["aof_last_write_status"] == "ok", "its file takes writes"
    )
    with contextlib.suppress(redis.ResponseError):  # a rewrite is under way
        node.client.bgrewriteaof()
    wait_until(node.has_rewritten, "its file is rewritten", 60.0)


def _fill_disk_and_kill(system: System, rng: random.Random) -> None:
    """Kill Redis before there is room again: what it answered before its first write failed may be in no file."""
    system.master.limit_files(system.master.append_only_file().stat().st_size + rng.randint(0, 10_000))
    time.sleep(rng.uniform(1, 4))
    system.master.kill()
    time.sleep(rng.uniform(0, 2))
    system.master.start()


def _set_clock(clock: Clock | None, rng: random.Random) -> None:
    """Let a clock jump, forward or back, and some time later be right again."""
    assert clock
    clock.set(rng.choice((-1, 1)) * rng.choice((5, 60, _HOUR, 30 * 24 * _HOUR)))
    time.sleep(rng.uniform(2, 5))
    clock.set(0)
    time.sleep(1.0)


def _set_redis_clock(system: System, rng: random.Random) -> None:
    _set_clock(system.redis_clock, rng)


def _set_broker_clock(system: System, rng: random.Random) -> None:
    _set_clock(system.broker_clock, rng)


FAULTS: dict[str, Fault] = {
    "calm": Fault(_calm, CALM),
    "kill-worker": Fault(_kill_worker),
    "stop-worker": Fault(_stop_worker),
    "kill-broker": Fault(_kill_broker),
    "stop-broker": Fault(_stop_broker),
    "kill-keeper": Fault(_kill_child("keeper")),
    "kill-ops": Fault(_kill_child("ops")),
    "broker-clock": Fault(_set_broker_clock),
    "kill-redis": Fault(_kill_redis, NOT_WATCHED),
    "stop-redis": Fault(_stop_redis, NOT_WATCHED),
    "crash-machine": Fault(_crash_machine, LOSES_LAST_SECOND),
    "kill-replica": Fault(_kill_replica, REPLICAS),
    "stop-replica": Fault(_stop_replica, REPLICAS),
    "promote": Fault(_promote, REPLICAS),
    "fail-over": Fault(_fail_over, REPLICAS),
    "kill-master": Fault(_kill_master, SENTINEL),
    "stop-master": Fault(_stop_master, SENTINEL),
    "sentinel-fail-over": Fault(_fail_over_by_sentinel, SENTINEL),
    "cluster-kill-master": Fault(_kill_cluster_master, CLUSTER),
    "cluster-stop-master": Fault(_stop_cluster_master, CLUSTER),
    "cluster-fail-over": Fault(_fail_over_in_cluster, CLUSTER),
    "cluster-kill-replica": Fault(_kill_cluster_replica, CLUSTER),
    "move-slots": Fault(_move_slots, CLUSTER),
    "migrate-slots": Fault(_migrate_slots, CLUSTER),
    "rebalance": Fault(_rebalance, CLUSTER),
    "cut": Fault(_cut, PROXIED),
    "cut-often": Fault(_cut_often, PROXIED),
    "hold": Fault(_hold, PROXIED),
    "fill-memory": Fault(_fill_memory),
    "fill-disk": Fault(_fill_disk, GOES_ON_WITHOUT_DISK),
    "fill-disk-and-kill": Fault(_fill_disk_and_kill, {**LOSES_LAST_SECOND, "always": NOTHING}),
    "redis-clock": Fault(_set_redis_clock, NOT_WATCHED),
}
CLOCKS = {"broker-clock", "redis-clock"}


def heal(system: System) -> None:
    """Wait until Redis and all workers answer after a fault."""

    def well() -> bool:
        return system.is_redis_well() and all(
            len(broker.worker_pids()) == system.workers for broker in system.brokers
        )

    wait_until(well, "Redis and all workers are there", _HEAL_SECONDS_MAX)
