"""Clients that are programs of their own: the producers of other libraries, and Kafka's consumers in Java."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import threading
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from tests.jepsen import programs
from tests.jepsen.checker import Violation
from tests.jepsen.clients import (
    COMMIT_TOPIC,
    COPIERS,
    COPIES,
    GROUP,
    LIFE_SECONDS,
    PARTITIONS,
    SESSION_MS,
    TOPIC,
    TRANSACTIONS,
    Client,
    Membership,
    Protocol,
    Reading,
)
from tests.jepsen.history import Acknowledged, Committed, Committing, Ended, Fetched, History, Put, Sent, now
from tests.support import processes

_NANOSECONDS = 1_000_000_000
# Of the instances of a member.
_KILLED = 0.3


class Program(Client):
    """A program that writes a line for each event. It ends when its stdin does; after a failure another one begins."""

    def __init__(self, name: str, bootstrap: str, history: History) -> None:
        """Name it; its instances are named after it."""
        self._process: subprocess.Popen[str] | None = None
        super().__init__(name, bootstrap, history)

    def end(self) -> list[Violation]:
        """Stop it, when it has nothing open any more; returns where it is if it does not end."""
        self._ending.set()
        if self._process and self._process.stdin:
            self._process.stdin.close()
        return super().end()

    def live(self, instance: str) -> None:
        """Run the program once."""
        failure = ""
        with subprocess.Popen(
            processes.dying_with_tests(self.command(instance)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        ) as process:
            assert process.stdout
            self._process = process
            for line in process.stdout:
                kind, _, rest = line.strip().partition(" ")
                if kind == "failed":
                    failure = failure or rest
                else:
                    self.learn(instance, kind, rest)
        self.ended(process.returncode, failure)

    def ended(self, code: int, failure: str) -> None:
        """Look at how the program ended; raises OSError if that was not wanted."""
        if failure or (self.goes_on and code is not None):
            raise OSError(failure or f"ended with {code}")

    @abstractmethod
    def command(self, instance: str) -> list[str]:
        """Return what starts it."""

    @abstractmethod
    def learn(self, instance: str, kind: str, rest: str) -> None:
        """Note an event."""


class ProgramProducer(Program):
    """The idempotent producer of another library. With a `count` it ends after that number of values, each a batch."""

    def __init__(
        self, library: str, bootstrap: str, history: History, *, topic: str = TOPIC, count: int = 0
    ) -> None:
        self.last_acknowledged = now()
        self._library = library
        self._topic = topic
        self._left = self._count = count
        super().__init__(library, bootstrap, history)

    def wait(self, seconds: float) -> bool:
        """Wait until it has sent its count; False if that takes longer."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def command(self, instance: str) -> list[str]:
        """Return what starts it."""
        work = (str(self._left), "0", "single") if self._count else ("0", "50", "many")
        place = (self._bootstrap, self._topic, str(PARTITIONS))
        return [*programs.producer(self._library), *place, instance, *work]

    def learn(self, instance: str, kind: str, rest: str) -> None:
        """Note a value that was sent or acknowledged."""
        partition, number, *offsets = map(int, rest.split())
        if kind == "sent":
            self._left -= 1
            self.history.add(Sent(instance, partition, number, now()))
        else:
            self.last_acknowledged = now()
            [offset] = offsets
            self.history.add(Acknowledged(instance, partition, number, offset, ordered=True, at=now()))

    def ended(self, code: int, failure: str) -> None:
        """Be done if all was sent that there was."""
        if self._count and not failure and not code:
            self._ending.set()
        super().ended(code, failure)


class JavaReader(Program):
    """Kafka's consumer without a group, which reads what is committed."""

    def __init__(self, name: str, bootstrap: str, history: History, topic: str = TOPIC) -> None:
        self._topic = topic
        self._reading = Reading(history)
        super().__init__(name, bootstrap, history)

    def command(self, instance: str) -> list[str]:
        """Return what starts it."""
        offsets = map(str, self._reading.begin(instance).values())
        return [
            *programs.java("Consume"),
            "reader",
            self._bootstrap,
            self._topic,
            str(PARTITIONS),
            "none",
            *offsets,
        ]

    def learn(self, instance: str, _kind: str, rest: str) -> None:
        """Note a record."""
        partition, offset, value = rest.split(maxsplit=2)
        self._reading.note(instance, int(partition), int(offset), value)


class JavaMember(Program):
    """Kafka's consumer as a member of the group; commits after each poll.

    An instance leaves after a while, or is killed.
    """

    def __init__(
        self, name: str, bootstrap: str, history: History, protocols: Sequence[Protocol], *, seed: int
    ) -> None:
        """Its instances use the protocols in turn."""
        self._is_mixed = "consumer" in protocols
        self._protocols = itertools.cycle(protocols)
        self._random = random.Random(seed)
        super().__init__(name, bootstrap, history)

    def live(self, instance: str) -> None:
        """Read as a member for a while."""
        self._member = Membership(self.history, instance)
        ending = threading.Timer(self._random.uniform(*LIFE_SECONDS), self._end_instance)
        ending.start()
        try:
            super().live(instance)
        finally:
            ending.cancel()

    def ended(self, code: int, failure: str) -> None:
        """Go on with the next instance."""
        if failure or code not in (0, -signal.SIGKILL):
            raise OSError(failure or f"ended with {code}")

    def command(self, _instance: str) -> list[str]:
        """Return what starts it."""
        work = (
            "member",
            self._bootstrap,
            TOPIC,
            str(PARTITIONS),
            GROUP,
            next(self._protocols),
            str(SESSION_MS),
        )
        return [*programs.java("Consume"), *work]

    def learn(self, _instance: str, kind: str, rest: str) -> None:
        """Note a record, a commit, or what it owns; Java's times are of the same clock as this process's."""
        first, *others = map(int, rest.split())
        if kind == "owned":
            generation, *partitions = others
            self._member.assign(partitions, first / _NANOSECONDS, -1 if self._is_mixed else generation)
        elif kind in ("revoked", "lost"):
            self._member.revoke(others, first / _NANOSECONDS, lost=kind == "lost")
        elif kind == "committed":
            offset, began, at = others
            self._member.commit(first, offset, began / _NANOSECONDS, at / _NANOSECONDS)
        else:
            self._member.deliver(first, others[0])

    def _end_instance(self) -> None:
        process = self._process
        if process and process.stdin and self._random.random() < _KILLED:
            process.kill()
        elif process and process.stdin:
            process.stdin.close()


class JavaCommits(Program):
    """Kafka's consumer that commits rising offsets for a group of its own, and reads them back."""

    _offset = 0

    def command(self, _instance: str) -> list[str]:
        """Return what starts it."""
        work = ("commits", self._bootstrap, COMMIT_TOPIC, "1", self.name, str(self._offset))
        return [*programs.java("Consume"), *work]

    def learn(self, _instance: str, kind: str, rest: str) -> None:
        """Note a commit, or what was read; Java's times are of the same clock as this process's."""
        offset, *times = map(int, rest.split())
        at = [time / _NANOSECONDS for time in times]
        if kind == "committing":
            self._offset = offset
        elif kind == "committed":
            self.history.add(Committed(self.name, offset, at[0]))
        else:
            self.history.add(Fetched(self.name, offset, at[0], at[1]))


class JavaTransactions(Program):
    """Kafka's producer with transactions of its own or, as a copier, with those of what a group reads."""

    def __init__(self, name: str, bootstrap: str, history: History, *, copies: bool) -> None:
        self.last_acknowledged = now()
        self._copies = copies
        super().__init__(name, bootstrap, history)

    def command(self, instance: str) -> list[str]:
        """Return what starts it."""
        place = (self._bootstrap, COPIES if self._copies else TRANSACTIONS, str(PARTITIONS))
        source = (TRANSACTIONS, COPIERS) if self._copies else ()
        return [*programs.java("Transact"), *place, self.name, instance, *source]

    def learn(self, _instance: str, kind: str, rest: str) -> None:
        """Note a value, or how a transaction goes on."""
        transaction, *fields = rest.split()
        if kind == "put":
            partition, number = map(int, fields[:2])
            source = (int(fields[2]), int(fields[3]), fields[4]) if fields[2:] else None
            self.history.add(Put(transaction, partition, number, source, now()))
        elif kind == "committing":
            self.history.add(Committing(transaction, now()))
        else:
            self.history.add(Ended(transaction, kind == "committed", now()))
            self.last_acknowledged = now()
