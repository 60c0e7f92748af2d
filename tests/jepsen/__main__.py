"""One run: clients at work, faults at random from a seed, and a table of what they cost.

`make jepsen ARGS="--minutes 30 --seed 7 --setup replicas --storage-format batch"`; exits with 1 after a violation.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import get_args

from tests.jepsen import faults
from tests.jepsen.checker import Violation, check
from tests.jepsen.clients import (
    COMMIT_TOPIC,
    PARTITIONS,
    TOPIC,
    Client,
    CommitClient,
    MemberClient,
    ProducerClient,
    ReaderClient,
    read_log,
    wait_for_delivery,
)
from tests.jepsen.history import Failed, History, now
from tests.jepsen.system import Setup, System
from tests.support import reading

_GO_ON_SECONDS_MAX = 120.0
_DELIVERY_SECONDS_MAX = 60.0
_SHOWN_MAX = 20


class Row:
    """What one kind of fault cost."""

    def __init__(self) -> None:
        self.times = self.acknowledged = 0
        self.longest_stall = 0.0
        self.violations = Counter[str]()


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.jepsen", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults come")
    parser.add_argument("--seed", type=int, default=None, help="of everything that is random")
    parser.add_argument("--setup", choices=get_args(Setup), default="one", help="the Redis servers")
    parser.add_argument("--storage-format", choices=("record", "batch"), default="batch")
    parser.add_argument(
        "--faults", default="", help="their names, separated by commas; default: all of the set-up"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the brokers"
    )
    parser.add_argument("--keep", type=Path, help="where to keep the history, and the files of all servers")
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10**6)
    names = [name for name, fault in faults.FAULTS.items() if asked.setup in fault.setups]
    if asked.faults:
        names = asked.faults.split(",")
        if unknown := [name for name in names if asked.setup not in faults.FAULTS[name].setups]:
            parser.error(f"{', '.join(unknown)}: not a fault of the set-up {asked.setup}")
    print(
        f"seed {seed}, set-up {asked.setup}, format {asked.storage_format}, faults {', '.join(names)}",
        flush=True,
    )
    directory = asked.keep or Path(tempfile.mkdtemp(prefix="korvet-jepsen-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return run(directory, asked, names, seed)
    finally:
        if not asked.keep:
            shutil.rmtree(directory)


def run(directory: Path, asked: argparse.Namespace, names: list[str], seed: int) -> int:
    """Do the run and print its table."""
    rng = random.Random(seed)
    history = History()
    rows: dict[str, Row] = defaultdict(Row)
    began: list[tuple[float, str]] = [(0.0, "none")]
    flags = [part for value in asked.set for part in ("--set", value)]
    with System(directory, asked.setup, *flags) as system:
        for topic, partitions in ((TOPIC, PARTITIONS), (COMMIT_TOPIC, 1)):
            configs = {"storage.format": asked.storage_format}
            reading.create_topic(system.bootstrap, topic, partitions, configs)
        producers = [
            ProducerClient("idempotent-a", system.bootstrap, history, idempotent=True, seed=seed),
            ProducerClient("idempotent-b", system.bootstrap, history, idempotent=True, seed=seed + 1),
            ProducerClient("plain", system.bootstrap, history, idempotent=False, seed=seed + 2),
        ]
        members = [MemberClient(f"member-{each}", system.bootstrap, history) for each in "ab"]
        clients: list[Client] = [
            *producers,
            *(ReaderClient(f"reader-{each}", system.bootstrap, history) for each in "ab"),
            CommitClient("commits", system.bootstrap, history),
        ]
        _go_on(producers)
        until = now() + asked.minutes * 60
        while now() < until:
            name = rng.choice(names)
            began.append((now(), name))
            _break(system, name, rng, producers, rows[name])
        for client in clients:
            client.end()
        log = read_log(system.bootstrap)
        wait_for_delivery(history, log, _DELIVERY_SECONDS_MAX)
        for member in members:
            member.end()
        traces = system.logs().count("Traceback")
    if asked.keep:
        history.write(directory / "history.jsonl")
    found = check(history.events, log)
    allowed = frozenset[str]().union(*(faults.FAULTS[name].losses for name in rows))
    for violation in found:
        rows[_blamed(began, violation)].violations[violation.kind] += 1
    _print(rows, history)
    beyond = [each for each in found if each.kind not in allowed]
    for violation in beyond[:_SHOWN_MAX]:
        print(f"VIOLATION {violation.kind}: {violation.text}")
    print(f"{len(beyond)} violations beyond what may be lost, {traces} tracebacks of brokers; seed {seed}")
    return 1 if beyond or traces else 0


def _break(system: System, name: str, rng: random.Random, producers: list[ProducerClient], row: Row) -> None:
    """Let one fault come and be healed, and note what it cost."""
    print(f"{name} ...", end=" ", flush=True)
    before = sum(each.acknowledged for each in producers)
    for each in producers:
        each.longest_stall = 0.0
    faults.FAULTS[name].run(system, rng)
    faults.heal(system)
    _go_on(producers)
    time.sleep(rng.uniform(0, 3))
    row.times += 1
    row.acknowledged += sum(each.acknowledged for each in producers) - before
    row.longest_stall = max(row.longest_stall, *(each.longest_stall for each in producers))
    print(f"{row.longest_stall:.1f} s", flush=True)


def _go_on(producers: list[ProducerClient]) -> None:
    """Wait until each producer gets acknowledgements again."""
    since = now()
    while any(each.last_acknowledged < since for each in producers):
        if now() - since > _GO_ON_SECONDS_MAX:
            stalled = [each.name for each in producers if each.last_acknowledged < since]
            sys.exit(f"{stalled} got no acknowledgement for {_GO_ON_SECONDS_MAX} s")
        time.sleep(0.05)


def _blamed(began: list[tuple[float, str]], violation: Violation) -> str:
    """Return the fault that was the last before what did not hold; none if that time is not known."""
    if not violation.at:
        return "none"
    return next(name for at, name in reversed(began) if at <= violation.at)


def _print(rows: dict[str, Row], history: History) -> None:
    print(f"{'fault':<16}{'times':>6}{'acknowledged':>14}{'longest stall':>15}  violations")
    for name, row in rows.items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in row.violations.items()) or "none"
        print(f"{name:<16}{row.times:>6}{row.acknowledged:>14}{row.longest_stall:>13.1f} s  {kinds}")
    for failed in (each for each in history.events if isinstance(each, Failed)):
        print(f"client {failed.client} failed: {failed.error[:200]}")


if __name__ == "__main__":
    sys.exit(main())
