"""Members of groups that are programs, by client libraries of other languages, and what all of them are expected to do.

A program writes a line for each record, each commit and what it owns, as tests/jepsen/programs/Consume.java does, and
leaves when its stdin ends.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import confluent_kafka

from tests.support import processes, reading, redis_servers
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import wait_until

PARTITIONS = 6
SESSION_MS = 3000
SECONDS_MAX = 60.0

CommandOf: TypeAlias = Callable[[str, str, str, str], Sequence[str]]
"""Returns what starts a member, from bootstrap servers, topic, group and protocol."""


class Member:
    """A program that runs, and what its lines said."""

    def __init__(self, command: Sequence[str]) -> None:
        self.owned: set[int] = set()
        self.delivered: set[tuple[int, int]] = set()
        self.committed: dict[int, int] = {}
        self._process = subprocess.Popen(
            processes.dying_with_tests(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def __enter__(self) -> Self:
        """Return itself; it leaves at the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Have it leave."""
        self.leave()

    def leave(self) -> None:
        """Have it leave the group and end."""
        assert self._process.stdin
        self._process.stdin.close()
        self._end()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait(SECONDS_MAX)
        self._reading.join(SECONDS_MAX)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()
        self.owned = set()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            kind, *fields = line.split()
            assert kind != "failed", line
            numbers = [int(field) for field in fields]
            if kind == "owned":
                self.owned |= set(numbers[2:])
            elif kind in ("revoked", "lost"):
                self.owned -= set(numbers[1:])
            elif kind == "delivered":
                self.delivered.add((numbers[0], numbers[1]))
            else:
                self.committed[numbers[0]] = numbers[1]


@contextlib.contextmanager
def broker_of_groups(directory: Path) -> Iterator[Broker]:
    """Run a broker of two workers whose groups begin at once, and whose members send heartbeats often."""
    settings = {
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        "group.consumer.min.heartbeat.interval.ms": 200,
        "group.consumer.heartbeat.interval.ms": 200,
        "group.consumer.min.session.timeout.ms": SESSION_MS,
        "group.consumer.session.timeout.ms": SESSION_MS,
    }
    with korvet_broker(directory, workers=2, settings=settings) as running:
        yield running


class Group:
    """A group of programs that read a topic of the same name."""

    def __init__(self, broker: Broker, name: str, command_of: CommandOf) -> None:
        reading.create_topic(broker.bootstrap, name, PARTITIONS, {"storage.format": "batch"})
        self._broker, self._name, self._command_of = broker, name, command_of
        self._sent = 0

    def start(self, protocol: str) -> Member:
        """Start a member."""
        return Member(self._command_of(self._broker.bootstrap, self._name, self._name, protocol))

    def wait_shared(self, *members: Member) -> None:
        """Wait until the members have all partitions, as even as can be."""
        shares = sorted(len(part) for part in _parts(len(members)))

        def are_shared() -> bool:
            owned = sorted(index for member in members for index in member.owned)
            return (
                owned == list(range(PARTITIONS)) and sorted(len(member.owned) for member in members) == shares
            )

        wait_until(are_shared, "the members share all partitions", SECONDS_MAX)

    def wait_read(self, *members: Member) -> None:
        """Send to each partition, and wait until the members have read that and committed it."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self._broker.bootstrap})
        for index in range(PARTITIONS):
            for _ in range(10):
                producer.produce(self._name, b"value", partition=index)
        assert producer.flush(SECONDS_MAX) == 0
        sent = {(index, self._sent + at) for index in range(PARTITIONS) for at in range(10)}
        self._sent += 10

        def are_read() -> bool:
            ends = {
                index: max(member.committed.get(index, 0) for member in members)
                for index in range(PARTITIONS)
            }
            delivered = set().union(*(member.delivered for member in members))
            return sent <= delivered and set(ends.values()) == {self._sent}

        wait_until(are_read, "all is read and committed", SECONDS_MAX)
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._broker.bootstrap, "group.id": self._name}
        )
        places = [confluent_kafka.TopicPartition(self._name, index) for index in range(PARTITIONS)]
        committed = consumer.committed(places, timeout=SECONDS_MAX)
        consumer.close()
        assert {item.offset for item in committed} == {self._sent}

    def kind(self) -> bytes | None:
        """Return how the group's protocol is stored."""
        with redis_servers.connected(self._broker.redis_url) as stored:
            result: bytes | None = stored.hget(f"{{korvet:group:{self._name}:offsets}}:group", "type")
            return result


def check_membership(group: Group) -> None:
    """Have members join, share, commit, leave and be killed."""
    with group.start("consumer") as one:
        group.wait_shared(one)
        two = group.start("consumer")
        group.wait_shared(one, two)
        group.wait_read(one, two)
        assert group.kind() == b"consumer"
        two.leave()
        group.wait_shared(one)
        three = group.start("consumer")
        group.wait_shared(one, three)
        three.kill()
        group.wait_shared(one)
        group.wait_read(one)


def check_upgrade(group: Group) -> None:
    """Have a group change from the classic protocol to the consumer protocol, and back."""
    with group.start("classic") as old:
        group.wait_shared(old)
        group.wait_read(old)
        assert group.kind() is None
        with group.start("consumer") as new:
            group.wait_shared(old, new)
            group.wait_read(old, new)
            assert group.kind() == b"consumer"
        group.wait_shared(old)
        group.wait_read(old)
        assert group.kind() is None
        new = group.start("consumer")
        group.wait_shared(old, new)
        old.leave()
        group.wait_shared(new)
        group.wait_read(new)
        new.leave()


def _parts(members: int) -> list[range]:
    return [range(number, PARTITIONS, members) for number in range(members)]
