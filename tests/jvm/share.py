"""Kafka's own share consumer in Java as tests drive it, a JVM each: java/Share.java."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import confluent_kafka
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its package does not say what it exports
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.jvm.jars import JARS
from tests.support.processes import WAIT_SECONDS_MAX, dying_with_tests

EXPLICIT = "share.acknowledgement.mode=explicit"
Counts: TypeAlias = dict[str, int]
"""The delivery count of each record that came, by its value."""

Start: TypeAlias = Callable[..., "ShareConsumer"]
"""Starts a consumer of a group and a topic, with settings NAME=VALUE."""


class Shared(NamedTuple):
    """A record that came, for the `delivery`th time."""

    partition: int
    offset: int
    delivery: int
    value: str


class ShareConsumer:
    """A running java/Share.java. What its consumer throws is a RuntimeError with the name."""

    def __init__(
        self, classes: Path, log: Path, bootstrap: str, group: str, topic: str, *settings: str
    ) -> None:
        flags = (
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        )
        command = ["java", *flags, "-cp", f"{classes}:{JARS}/*", "Share", bootstrap, group, topic, *settings]
        self._places: dict[str, str] = {}
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                dying_with_tests(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def do(self, verb: str, *words: str) -> str:
        """Have one thing done; returns the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(verb, *words, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer, f"it ended with {self.process.wait()}"
        if answer.startswith("failed "):
            raise RuntimeError(answer.split()[1])
        return answer.strip()

    def fetch(self, seconds: float) -> list[Shared]:
        """Poll once."""
        came = (item.split(":", 3) for item in self.do("poll", str(int(seconds * 1000))).split())
        return [
            Shared(int(partition), int(offset), int(count), value) for partition, offset, count, value in came
        ]

    def poll(self, seconds: float = 0.5) -> Counts:
        """Poll once."""
        came = self.fetch(seconds)
        self._places |= {record.value: f"{record.partition}:{record.offset}" for record in came}
        return {record.value: record.delivery for record in came}

    def some(self) -> Counts:
        """Poll until something comes."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not (came := self.poll()):
            assert time.monotonic() < deadline, "no record came"
        return came

    def take(self, count: int) -> Counts:
        """Poll until `count` records have come, and accept each poll's; returns all."""
        taken: Counts = {}
        while len(taken) < count:
            came = self.some()
            assert taken.keys().isdisjoint(came)
            taken |= came
            self.accept(*came)
        assert self.commit() in ("", "done"), "the last poll's"
        return taken

    def accept(self, *values: str) -> None:
        """Acknowledge records of the last poll."""
        self.do("accept", *(self._places[value] for value in values))

    def release(self, *values: str) -> None:
        """Give records back."""
        self.do("release", *(self._places[value] for value in values))

    def reject(self, *values: str) -> None:
        """Have records never delivered again."""
        self.do("reject", *(self._places[value] for value in values))

    def renew(self, *values: str) -> None:
        """Keep records for longer."""
        self.do("renew", *(self._places[value] for value in values))

    def commit(self) -> str:
        """Send acknowledgements of one partition's records; returns `done` or the name of an error, "" without any."""
        return self.do("commit").rpartition(":")[2]

    def close(self) -> None:
        """Close the consumer, which says so to the group."""
        self.do("close")

    def kill(self) -> None:
        """Kill the JVM."""
        with self.process:
            self.process.kill()


def send(bootstrap: str, topic: str, values: Sequence[str], partition: int = 0) -> None:
    """Send values as one batch."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 200})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(WAIT_SECONDS_MAX) == 0


def configure(bootstrap: str, group: str, **configs: str) -> None:
    """Set configs of a group."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [done] = admin.incremental_alter_configs([resource]).values()
    done.result(WAIT_SECONDS_MAX)
