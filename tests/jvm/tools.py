"""Kafka's command-line tools as tests call them: one JVM for all, since its start costs more than most of them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from tests.jvm.jars import HERE, JARS
from tests.support.processes import dying_with_tests

# Each by the name of Kafka's script for it.
TOOLS = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}

# These take the command before the bootstrap server.
SERVER_LAST = {"kafka-cluster"}

SERVER = {"kafka-producer-perf-test": ("--command-property", "bootstrap.servers={}")}
"""The flag of those that take none of `--bootstrap-server`; more properties may follow it."""


class Outcome(NamedTuple):
    """How a tool ended: its exit code, and what it wrote to stdout and stderr."""

    code: int
    out: str
    err: str


class Tools:
    """A running tests/jvm/java/Tools.java."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path) -> None:
        self.directory = directory
        assert process.stdin is not None
        assert process.stdout is not None
        self._questions: IO[bytes] = process.stdin
        self._answers: IO[bytes] = process.stdout

    def run(self, tool: str, bootstrap: str, *arguments: str) -> Outcome:
        """Run a tool by its script's name, or a class of java/Tools.java, at a broker; returns however it ends."""
        server = SERVER.get(tool, ("--bootstrap-server", "{}"))
        server = (server[0], server[1].format(bootstrap))
        name = TOOLS.get(tool, tool)
        words = [name, *arguments, *server] if tool in SERVER_LAST else [name, *server, *arguments]
        assert not any(character in word for word in words for character in "\t\n")
        self._questions.write("\t".join(words).encode() + b"\n")
        self._questions.flush()
        code, written, complained = map(int, self._answers.readline().split())
        return Outcome(code, self._answers.read(written).decode(), self._answers.read(complained).decode())


class AtBroker:
    """The tools at one broker."""

    def __init__(self, tools: Tools, bootstrap: str) -> None:
        self._tools = tools
        self._bootstrap = bootstrap

    def at(self, bootstrap: str) -> AtBroker:
        """Return the same tools at another broker."""
        return AtBroker(self._tools, bootstrap)

    def run(self, tool: str, *arguments: str) -> Outcome:
        """Run a tool; returns however it ends."""
        return self._tools.run(tool, self._bootstrap, *arguments)

    def done(self, tool: str, *arguments: str) -> str:
        """Run a tool that succeeds and has nothing to complain of; returns what it wrote."""
        outcome = self.run(tool, *arguments)
        assert (outcome.code, outcome.err) == (0, ""), outcome
        return outcome.out

    def refused(self, tool: str, *arguments: str) -> str:
        """Run a tool that fails; returns all that it wrote."""
        outcome = self.run(tool, *arguments)
        assert outcome.code == 1, outcome
        return outcome.out + outcome.err


@contextlib.contextmanager
def kafka_tools(directory: Path, *more: str) -> Iterator[Tools]:
    """Start the JVM, with `more` flags; ends it at the end. What it writes of itself goes to a file in `directory`."""
    # Its garbage collector and compiler threads are few: brokers and tests share the cores with it.
    flags = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
    command = ["java", *flags, *more, "-cp", f"{JARS}/*", str(HERE / "java" / "Tools.java")]
    with (
        (directory / "java.err").open("wb") as err,
        subprocess.Popen(
            dying_with_tests(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err
        ) as process,
    ):
        try:
            yield Tools(process, directory)
        finally:
            process.kill()
