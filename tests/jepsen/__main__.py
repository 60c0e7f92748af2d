"""One run: clients at work, faults at random from a seed, and a table of what they cost.

`make jepsen ARGS="--minutes 30 --seed 7 --setup replicas --layout dense"`; exits with 1 after a violation.
With `--upgrade` no faults come, but brokers are replaced by those of another build, in a fixed order.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import statistics
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, get_args

from tests.jepsen import faults, programs, upgrade
from tests.jepsen.checker import (
    Violation,
    check,
    check_copies,
    check_dense,
    check_failures,
    check_shares,
)
from tests.jepsen.clients import (
    COMMIT_TOPIC,
    COPIES,
    PARTITIONS,
    SESSION_MS,
    TOPIC,
    TRANSACTIONS,
    Client,
    CommitClient,
    MemberClient,
    ProducerClient,
    Protocol,
    RdkafkaMemberClient,
    ReaderClient,
    read_log,
    wait_for_delivery,
)
from tests.jepsen.faults import Fault
from tests.jepsen.history import Acknowledged, Committed, Ended, Event, Failed, History, now
from tests.jepsen.program_clients import (
    JavaCommits,
    JavaMember,
    JavaReader,
    JavaTransactions,
    ProgramProducer,
)
from tests.jepsen.redis_clients import WRITERS, StreamGroup, StreamWriter, wait_until_taken_in
from tests.jepsen.share_clients import (
    DELIVERIES_MAX,
    LOCK_MS,
    SETTINGS,
    Member,
    ShareClient,
    Worker,
    share_clients,
    wait_for_shares,
)
from tests.jepsen.system import CONFIGS, Layout, Setup, System
from tests.jepsen.transaction_clients import (
    CopierClient,
    TransactionalClient,
    WriterClient,
    find_hanging,
    wait_for_copies,
)
from tests.support import reading
from tests.support.broker import KORVET

_GO_ON_SECONDS_MAX = 120.0
_DELIVERY_SECONDS_MAX = 60.0
_SHOWN_MAX = 20
_TIMES = (
    f"group.consumer.session.timeout.ms={SESSION_MS}",
    f"group.consumer.min.session.timeout.ms={SESSION_MS}",
    "group.consumer.heartbeat.interval.ms=1000",
    "group.consumer.min.heartbeat.interval.ms=1000",
)
# With appendfsync everysec Redis may answer so long before it writes to its file, while the disk is busy.
_UNWRITTEN_SECONDS_MAX = 2.0


Transacting: TypeAlias = TransactionalClient | JavaTransactions
Producing: TypeAlias = ProducerClient | ProgramProducer | Transacting


class Transactional(NamedTuple):
    """The clients with transactions, and the readers of what they write."""

    writers: list[Transacting]
    # No fault waits for them: librdkafka's may hang after a broker was away, until it is replaced.
    copiers: list[Transacting]
    readers: list[Client]
    written: History
    copied: History


class Course(NamedTuple):
    """The faults of a run, by name, and the brokers at its start."""

    faults: Sequence[tuple[str, Fault]]
    brokers: int = 2
    workers: int = 2
    program: Sequence[str] = KORVET


class Injected(NamedTuple):
    """A fault was injected; all that is known to have happened until the next one is put down to it."""

    at: float
    fault: str


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.jepsen", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults come")
    parser.add_argument(
        "--each", action="store_true", help="let each fault come once, in their order, instead"
    )
    parser.add_argument("--seed", type=int, default=None, help="of everything that is random")
    parser.add_argument("--setup", choices=get_args(Setup), default="one", help="the Redis servers")
    parser.add_argument(
        "--layout", choices=get_args(Layout), default="batch", help="that of the logs: docs/records.md"
    )
    parser.add_argument(
        "--faults", default="", help="their names, separated by commas; default: all of the set-up"
    )
    parser.add_argument(
        "--clients",
        default="librdkafka,java",
        help=f"whose idempotent producers work, of {', '.join(programs.PRODUCERS)}; java's consumers too",
    )
    parser.add_argument(
        "--work",
        default="records,transactions",
        help="what clients do, with commas: records, transactions, share; default: the first two",
    )
    parser.add_argument(
        "--protocol",
        choices=("classic", "consumer", "mixed"),
        default="classic",
        help="that of the group's members; mixed: of one the classic one, of the others both in turn",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the brokers"
    )
    upgrade.add_arguments(parser)
    parser.add_argument("--keep", type=Path, help="where to keep the history, and the files of all servers")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10**6)
    names = [name for name, fault in faults.FAULTS.items() if asked.setup in fault.losses]
    if asked.faults:
        names = asked.faults.split(",")
        if unknown := [name for name in names if asked.setup not in faults.FAULTS[name].losses]:
            parser.error(f"{', '.join(unknown)}: not a fault of the set-up {asked.setup}")
    if (asked.older or asked.plant) and not asked.upgrade:
        parser.error("--from and --plant go with --upgrade")
    programs.prepare(asked.clients.split(","))
    directory = asked.keep or Path(tempfile.mkdtemp(prefix="korvet-jepsen-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        course = Course([(name, faults.FAULTS[name]) for name in names])
        if asked.upgrade:
            older, newer = upgrade.builds(asked, directory / "older")
            course = Course(upgrade.steps(older, newer), upgrade.BROKERS, workers=1, program=older.program)
        faults_asked = ", ".join(name for name, _ in course.faults)
        print(f"seed {seed}, set-up {asked.setup}, layout {asked.layout}, faults {faults_asked}", flush=True)
        return run(directory, asked, course, seed)
    finally:
        if not asked.keep:
            shutil.rmtree(directory)


def run(directory: Path, asked: argparse.Namespace, course: Course, seed: int) -> int:
    """Do the run and print its table."""
    rng = random.Random(seed)
    history = History()
    began: list[Injected] = []
    libraries, work = asked.clients.split(","), asked.work.split(",")
    with contextlib.ExitStack() as keeping, _system(directory, asked, course) as system:
        sizes = {TOPIC: PARTITIONS, COMMIT_TOPIC: 1, TRANSACTIONS: PARTITIONS, COPIES: PARTITIONS}
        for topic, partitions in sizes.items():
            reading.create_topic(system.bootstrap, topic, partitions, CONFIGS[asked.layout])
        producers = [] if work == ["transactions"] else _producers(libraries, system.bootstrap, history, seed)
        members, others = (
            _consumers(libraries, system, history, seed, asked) if "records" in work else ([], [])
        )
        sharers = _sharers(libraries, system, asked.layout, history, seed) if "share" in work else []
        transactional = (
            _transactional_clients(libraries, system.bootstrap, seed)
            if "transactions" in work
            else Transactional([], [], [], History(), History())
        )
        working = [*producers, *transactional.writers]
        histories = {
            "history": history,
            "transactions": transactional.written,
            "copies": transactional.copied,
        }
        if asked.keep:
            keeping.callback(_keep, directory, histories)
        _go_on(working)
        until = now() + asked.minutes * 60
        for name, fault in _wanted(course.faults, rng, until, once=asked.each or asked.upgrade):
            began.append(Injected(now(), name))
            print(f"{name} ...", end=" ", flush=True)
            _break(system, fault, rng, working)
        stuck = [result for client in [*producers, *others] for result in client.end()]
        if "records" in work and asked.layout != "batch":
            stuck += wait_until_taken_in(system, asked.layout)
        log = read_log(system.bootstrap)
        if members:
            wait_for_delivery(history, log, _DELIVERY_SECONDS_MAX)
        if sharers:
            wait_for_shares(history, log, _DELIVERY_SECONDS_MAX)
        stuck += [result for member in [*members, *sharers] for result in member.end()]
        result = _end_transactional(transactional, system.bootstrap)
        traces = system.logs().count("Traceback")
    shares = check_shares(history.events, log, LOCK_MS / 1000, DELIVERIES_MAX)
    gaps = check_dense(log) if asked.layout != "time" else []
    result = [*check(history.events, log), *gaps, *shares, *result, *stuck]
    if asked.upgrade:
        result += [failure for history in histories.values() for failure in check_failures(history.events)]
    losses = {name: fault.losses[asked.setup] for name, fault in course.faults}
    beyond = _report(list(histories.values()), result, began, losses)
    print(f"{beyond} violations beyond what may be lost, {traces} tracebacks of brokers; seed {seed}")
    return 1 if beyond or traces else 0


def _system(directory: Path, asked: argparse.Namespace, course: Course) -> System:
    """Return what is tested, not yet started."""
    shares = [f"{name}={value}" for name, value in SETTINGS.items() if "share" in asked.work.split(",")]
    flags = [part for value in (*_TIMES, *asked.set, *shares) for part in ("--set", value)]
    clocks = not faults.CLOCKS.isdisjoint(name for name, _ in course.faults)
    shape = {"brokers": course.brokers, "workers": course.workers}
    return System(directory, asked.setup, *flags, clocks=clocks, program=course.program, **shape)


def _producers(libraries: list[str], bootstrap: str, history: History, seed: int) -> list[Producing]:
    """Start producers."""
    producers: list[Producing] = [ProducerClient("plain", bootstrap, history, idempotent=False, seed=seed)]
    for library in libraries:
        if library == "librdkafka":
            producers.append(ProducerClient(library, bootstrap, history, idempotent=True, seed=seed + 1))
        else:
            producers.append(ProgramProducer(library, bootstrap, history))
    return producers


def _consumers(
    libraries: list[str], system: System, history: History, seed: int, asked: argparse.Namespace
) -> tuple[list[Client], list[Client]]:
    """Start members of groups and others. librdkafka and kafka-python consume in any case."""
    bootstrap = system.bootstrap
    members = _members(libraries, bootstrap, history, seed, asked.protocol)
    members += [StreamGroup(system, history)] if asked.layout == "dense" else []
    others: list[Client] = [
        *(ReaderClient(f"reader-{item}", bootstrap, history) for item in "ab"),
        CommitClient("commits", bootstrap, history),
        *(
            StreamWriter(f"redis-writer-{number}", system, asked.layout, history, seed + number)
            for number in range(WRITERS)
        ),
    ]
    if "java" in libraries:
        others += [
            JavaReader("java-reader", bootstrap, history),
            JavaCommits("java-commits", bootstrap, history),
        ]
    return members, others


def _sharers(
    libraries: list[str], system: System, layout: Layout, history: History, seed: int
) -> list[ShareClient]:
    """Start members of the share group; unless entries are batches a worker beside them, which knows one Redis only."""

    def worker(instance: str) -> Member:
        return Worker(instance, system.proxy.port, system.replicas, layout)

    with_worker = layout != "batch" and system.setup != "cluster"
    log = system.directory / "java-share.log"
    return share_clients(libraries, system.bootstrap, history, worker if with_worker else None, log, seed)


def _members(
    libraries: list[str], bootstrap: str, history: History, seed: int, protocol: str
) -> list[Client]:
    """Start the members of the group."""
    protocols: dict[str, tuple[Protocol, ...]] = {
        "classic": ("classic",),
        "consumer": ("consumer",),
        "mixed": ("consumer", "classic"),
    }
    mine = protocols[protocol]
    members: list[Client] = [RdkafkaMemberClient("rdkafka-member", bootstrap, history, mine, seed=seed + 6)]
    if protocol != "consumer":
        is_mixed = protocol == "mixed"
        members.append(MemberClient("member", bootstrap, history, seed=seed + 7, is_mixed=is_mixed))
    if "java" in libraries:
        members.append(JavaMember("java-member", bootstrap, history, mine, seed=seed + 8))
    return members


def _keep(directory: Path, histories: Mapping[str, History]) -> None:
    """Write all that clients did and saw, also of a run that does not go on."""
    for name, history in histories.items():
        history.write(directory / f"{name}.jsonl")


def _transactional_clients(libraries: list[str], bootstrap: str, seed: int) -> Transactional:
    """Start writers of transactions, copiers of what they commit, and readers of both."""
    written, copied = History(), History()
    writers: list[Transacting] = [WriterClient("writer-a", bootstrap, written, seed + 2)]
    copiers: list[Transacting] = [CopierClient("copier-a", bootstrap, copied, seed + 3)]
    readers: list[Client] = [
        ReaderClient("reader-transactions", bootstrap, written, TRANSACTIONS),
        ReaderClient("reader-copies", bootstrap, copied, COPIES),
    ]
    if "java" in libraries:
        writers.append(JavaTransactions("java-writer", bootstrap, written, copies=False))
        copiers.append(JavaTransactions("java-copier", bootstrap, copied, copies=True))
        readers.append(JavaReader("java-reader-transactions", bootstrap, written, TRANSACTIONS))
    else:
        writers.append(WriterClient("writer-b", bootstrap, written, seed + 4))
        copiers.append(CopierClient("copier-b", bootstrap, copied, seed + 5))
    return Transactional(writers, copiers, readers, written, copied)


def _end_transactional(clients: Transactional, bootstrap: str) -> list[Violation]:
    """End them when all is copied, and return what they found."""
    if not clients.writers:
        return []
    result = [result for writer in clients.writers for result in writer.end()]
    result += find_hanging(bootstrap, TRANSACTIONS)
    written = read_log(bootstrap, TRANSACTIONS)
    wait_for_copies(bootstrap, written)
    result += [result for copier in clients.copiers for result in copier.end()]
    result += find_hanging(bootstrap, COPIES)
    copied = read_log(bootstrap, COPIES)
    result += [result for reader in clients.readers for result in reader.end()]
    return [
        *check(clients.written.events, written),
        *check(clients.copied.events, copied),
        *check_copies(clients.copied.events, copied, written),
        *result,
    ]


def _wanted(
    names: Sequence[tuple[str, Fault]], rng: random.Random, until: float, *, once: bool
) -> Iterator[tuple[str, Fault]]:
    """Yield each fault once, or faults at random until that time."""
    if once:
        yield from names
    while not once and now() < until:
        yield rng.choice(names)


def _break(system: System, fault: Fault, rng: random.Random, producers: Sequence[Producing]) -> None:
    """Let one fault come and be healed."""
    since = now()
    fault.run(system, rng)
    faults.heal(system)
    _go_on(producers)
    print(f"{now() - since:.1f} s", flush=True)
    time.sleep(rng.uniform(0, 3))


def _go_on(producers: Sequence[Producing]) -> None:
    """Wait until each producer gets acknowledgements again."""
    since = now()
    while any(producer.last_acknowledged < since for producer in producers):
        if now() - since > _GO_ON_SECONDS_MAX:
            stalled = [producer.name for producer in producers if producer.last_acknowledged < since]
            sys.exit(f"{stalled} got no acknowledgement for {_GO_ON_SECONDS_MAX} s")
        time.sleep(0.05)


class Row:
    """What one kind of fault cost: `stalls` are the longest times between two acknowledgements of a producer."""

    def __init__(self) -> None:
        self.times = self.acknowledged = self.transactions = self.aborted = 0
        self.stalls: list[float] = []
        self.violations, self.documented = Counter[str](), Counter[str]()


def _report(
    histories: list[History],
    result: list[Violation],
    began: list[Injected],
    losses: Mapping[str, frozenset[str]],
) -> int:
    """Print a row for each fault and what must not be; returns how many violations no fault explains."""
    rows = defaultdict[str, Row](Row)
    rows["none"].times = 1
    for item in began:
        rows[item.fault].times += 1
    events = [event for history in histories for event in history.events]
    count_acknowledged(events, began, rows)
    beyond: list[Violation] = []
    for violation in result:
        guilty = [name for name in suspects(began, violation.at) if violation.kind in losses[name]]
        if guilty:
            rows[guilty[-1]].documented[violation.kind] += 1
        else:
            current = _before(began, violation.at)[-1:]
            rows[current[0].fault if current else "none"].violations[violation.kind] += 1
            beyond.append(violation)
    print(
        f"{'fault':<20}{'times':>6}{'acknowledged':>14}{'committed':>11}{'aborted':>9}{'violations':>12}"
        f"{'median stall':>15}{'longest':>10}  lost as documented"
    )
    for name, row in rows.items():
        print(
            f"{name:<20}{row.times:>6}{row.acknowledged:>14}{row.transactions:>11}{row.aborted:>9}"
            f"{row.violations.total():>12}"
            f"{statistics.median(row.stalls):>13.1f} s{max(row.stalls):>8.1f} s  {_kinds(row.documented)}"
        )
        if row.violations:
            print(f"  VIOLATIONS: {_kinds(row.violations)}")
    for failed in (event for event in events if isinstance(event, Failed)):
        print(f"client {failed.client} failed: {failed.error[:200]}")
    for violation in beyond[:_SHOWN_MAX]:
        print(f"VIOLATION {violation.kind}: {violation.text}")
    return len(beyond)


def suspects(began: list[Injected], at: float) -> list[str]:
    """Return the faults that may have caused an observation at a time; 0: the time is unknown.

    A fault may be noticed during the next one, and costs what was acknowledged a while before it.
    """
    before = _before(began, at)
    later = began[len(before) : len(_before(began, at + _UNWRITTEN_SECONDS_MAX))]
    return [fault for _, fault in ([*before[-2:], *later] if at else began)]


def count_acknowledged(events: Sequence[Event], began: list[Injected], rows: dict[str, Row]) -> None:
    """Put the operations that were acknowledged, and stalls of producers, down to faults."""
    last: dict[str, float] = {}
    stalls = [0.0] * (len(began) + 1)
    names = ["none", *(begun.fault for begun in began)]
    for event in events:
        if isinstance(event, Acknowledged | Committed | Ended):
            number = len(_before(began, event.at))
            row = rows[names[number]]
            if isinstance(event, Ended):
                row.transactions += event.committed
                row.aborted += not event.committed
                continue
            row.acknowledged += 1
            if isinstance(event, Acknowledged):
                client = event.producer.rpartition(".")[0]
                stalls[number] = max(stalls[number], event.at - last.get(client, event.at))
                last[client] = event.at
    for name, stall in zip(names, stalls, strict=True):
        rows[name].stalls.append(stall)


def _before(began: list[Injected], at: float) -> list[Injected]:
    """Return the faults that had begun at a time."""
    return began[: bisect_right(began, (at, "~"))]


def _kinds(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in counts.items())


if __name__ == "__main__":
    sys.exit(main())
