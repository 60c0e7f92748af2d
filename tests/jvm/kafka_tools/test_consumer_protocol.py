"""Kafka's own consumer with group.protocol=consumer (KIP-848), and what kafka-consumer-groups says of its group."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka

from tests.jvm.jars import JARS
from tests.jvm.tools import AtBroker
from tests.support import processes
from tests.support.broker import Broker
from tests.support.processes import wait_until

SECONDS_MAX = 60.0


@contextlib.contextmanager
def console_consumer(bootstrap: str, directory: Path, number: int, topic: str, *more: str) -> Iterator[Path]:
    """Run kafka-console-consumer in the group named after the topic; gives the file that it writes."""
    properties = ["group.protocol=consumer", *more]
    flags = [word for each in properties for word in ("--command-property", each)]
    with console(
        "ConsoleConsumer", bootstrap, directory, number, topic, "--from-beginning", *flags
    ) as written:
        yield written


@contextlib.contextmanager
def console(
    tool: str, bootstrap: str, directory: Path, number: int, topic: str, *flags: str
) -> Iterator[Path]:
    """Run a console consumer in the group named after the topic; gives the file that it writes."""
    written = directory / f"read-{number}"
    command = [
        *("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*"),
        f"org.apache.kafka.tools.consumer.{tool}",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group", topic, *flags),
    ]
    with (
        written.open("wb") as out,
        (directory / f"error-{number}").open("wb") as err,
        subprocess.Popen(processes.dying_with_tests(command), stdout=out, stderr=err) as process,
    ):
        try:
            yield written
        finally:
            process.terminate()
            process.wait(SECONDS_MAX)


def send(bootstrap: str, topic: str, values: set[str]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(sorted(values)):
        producer.produce(topic, value, partition=number % 2)
    assert producer.flush(SECONDS_MAX) == 0


def state_of(tools: AtBroker, group: str) -> list[str]:
    """Return assignor, state and number of members."""
    out = tools.run("kafka-consumer-groups", "--describe", "--state", "--group", group).out
    rows = [line.split() for line in out.splitlines() if line.startswith(group)]
    return rows[0][-3:] if rows else []


def members_of(tools: AtBroker, group: str) -> list[tuple[str, str, str]]:
    """Return number of partitions, epoch and assignment of each member."""
    out = tools.done("kafka-consumer-groups", "--describe", "--members", "--verbose", "--group", group)
    return sorted(re.findall(r" console-consumer +(\d+) +(\d+) +(\S+)", out))


def test_javas_consumer_shares_partitions_and_goes_on_when_workers_are_killed(
    brokers: list[Broker], tools: AtBroker, topic: str, tmp_path: Path
) -> None:
    bootstrap = ",".join(each.bootstrap for each in brokers)
    first = {f"first {number}" for number in range(40)}
    second = {f"second {number}" for number in range(40)}
    send(bootstrap, topic, first)
    with (
        console_consumer(bootstrap, tmp_path, 1, topic) as one,
        console_consumer(bootstrap, tmp_path, 2, topic, "group.instance.id=i2") as two,
    ):

        def read() -> set[str]:
            return {line for each in (one, two) for line in each.read_text().splitlines()}

        wait_until(lambda: read() == first, "the first are read", SECONDS_MAX)
        wait_until(
            lambda: state_of(tools, topic) == ["uniform", "Stable", "2"], "two members share", SECONDS_MAX
        )
        before = members_of(tools, topic)
        assert [each[0] for each in before] == ["1", "1"]
        for broker in brokers:
            for pid in broker.worker_pids():
                processes.kill(pid)
        send(bootstrap, topic, second)
        wait_until(lambda: read() == first | second, "the second are read", SECONDS_MAX)
        assert members_of(tools, topic) == before, "in the same epoch"
        listed = tools.done("kafka-groups", "--list")
        assert re.search(rf"^{topic}\s+Consumer\s+consumer", listed, re.MULTILINE), listed
        refusal = tools.run("kafka-consumer-groups", "--delete", "--group", topic)
        assert "NON_EMPTY_GROUP" in refusal.out + refusal.err or "not empty" in refusal.out + refusal.err
    wait_until(lambda: state_of(tools, topic)[2:] == ["1"], "the static member will be back", SECONDS_MAX)
