"""What goes wrong, by name: each fault comes and is healed within one call, and says which set-ups it is for.

`LOSSES` is the table of what each set-up may lose by a fault, in the words of the checker: all else is a violation.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import redis

from tests.jepsen.system import LEASE_MS, Setup, System
from tests.support import processes
from tests.support.processes import wait_until

Break: TypeAlias = Callable[[System, random.Random], None]

ALL: tuple[Setup, ...] = ("one", "replicas", "sentinel")
_HEAL_SECONDS_MAX = 90.0


class Fault(NamedTuple):
    """A fault; `losses` are the kinds of violations that the durability table allows after it."""

    run: Break
    setups: tuple[Setup, ...] = ALL
    losses: frozenset[str] = frozenset()


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    processes.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        processes.kill(pid, signal.SIGCONT)


def _worker(system: System, rng: random.Random) -> int:
    return rng.choice([pid for broker in system.brokers for pid in broker.worker_pids()])


def _kill_worker(system: System, rng: random.Random) -> None:
    processes.kill(_worker(system, rng))


def _stop_worker(system: System, rng: random.Random) -> None:
    """Stop it for longer than a lease at times: what it has read is old when it goes on."""
    pid = _worker(system, rng)
    with _stopped(pid):
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
    with contextlib.ExitStack() as stopped:
        for pid in [broker.pid, *processes.descendants(broker.pid)]:
            stopped.enter_context(_stopped(pid))
        time.sleep(rng.uniform(0.5, 4 * LEASE_MS / 1000))


def _kill_keeper(system: System, rng: random.Random) -> None:
    for pid in rng.choice(system.brokers).child_pids("keeper"):
        processes.kill(pid)


def _kill_redis(system: System, rng: random.Random) -> None:
    """Kill the process alone: what it has written to its file is there when it starts again."""
    system.master.kill()
    time.sleep(rng.uniform(0, 2))
    system.master.start()


def _stop_redis(system: System, rng: random.Random) -> None:
    system.master.signal(signal.SIGSTOP)
    time.sleep(rng.uniform(0.2, 6))
    system.master.signal(signal.SIGCONT)


def _crash_machine(system: System, rng: random.Random) -> None:
    """End the append-only file at any byte of the last second."""
    file = max(
        system.master.directory.glob("appendonlydir/*.incr.aof"), key=lambda path: path.stat().st_mtime
    )
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
    system.other.signal(signal.SIGSTOP)
    time.sleep(rng.uniform(0.2, 4))
    system.other.signal(signal.SIGCONT)
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
    """Let the Sentinels promote the replica; the old master comes back as one."""
    old, new = system.master, system.other
    if rng.random() < 0.5:
        old.kill()
    else:
        old.signal(signal.SIGSTOP)
    wait_until(lambda: new.role() == "master", "the Sentinels promote the replica", 60.0)
    system.swap()
    time.sleep(rng.uniform(0, 2))
    if old.role():
        return
    with contextlib.suppress(ProcessLookupError):
        old.signal(signal.SIGCONT)
    if not old.role():
        old.start()
    wait_until(lambda: old.role() == "slave", "the old master follows", 60.0)
    system.wait_for_replica(old)


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
    used = int(system.master.client.info("memory")["used_memory"])
    system.master.client.config_set("maxmemory", used)
    time.sleep(rng.uniform(1, 4))
    system.master.client.config_set("maxmemory", 0)


FAULTS: dict[str, Fault] = {
    "kill-worker": Fault(_kill_worker),
    "stop-worker": Fault(_stop_worker),
    "kill-broker": Fault(_kill_broker),
    "stop-broker": Fault(_stop_broker),
    "kill-keeper": Fault(_kill_keeper),
    "kill-redis": Fault(_kill_redis, ("one", "replicas")),
    "stop-redis": Fault(_stop_redis, ("one", "replicas")),
    "crash-machine": Fault(
        _crash_machine,
        ("one",),
        frozenset({"lost", "moved", "two values", "skipped", "went back", "commit went back"}),
    ),
    "kill-replica": Fault(_kill_replica, ("replicas",)),
    "stop-replica": Fault(_stop_replica, ("replicas",)),
    "promote": Fault(_promote, ("replicas",)),
    "fail-over": Fault(_fail_over, ("replicas",)),
    "kill-master": Fault(_kill_master, ("sentinel",)),
    "cut": Fault(_cut),
    "cut-often": Fault(_cut_often),
    "hold": Fault(_hold),
    "fill-memory": Fault(_fill_memory),
}


def heal(system: System) -> None:
    """Wait until Redis and all workers answer after a fault."""

    def well() -> bool:
        with contextlib.suppress(redis.RedisError):
            return bool(system.master.client.ping()) and all(
                len(each.worker_pids()) == system.workers for each in system.brokers
            )
        return False

    wait_until(well, "Redis and all workers are there", _HEAL_SECONDS_MAX)
