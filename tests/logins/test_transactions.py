"""franz-go, sarama and kafkajs copy records in transactions; what was killed goes on, and each copy is there once."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import confluent_kafka
import pytest

from tests.jepsen import programs
from tests.logins.test_logins import kafkajs_program
from tests.support import reading
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import WAIT_SECONDS_MAX, dying_with_tests
from tests.support.records import topic_name

PARTITIONS = 3
RECORDS = 600
COMMITTED = {"isolation.level": "read_committed"}


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Compile the program of Go's libraries, and return its command."""
    path = str(tmp_path_factory.mktemp("go") / "transact")
    command = ["go", "build", "-mod=readonly", "-o", path, "./transact"]
    subprocess.run(command, cwd=programs.HERE, check=True, env={**os.environ, "CGO_ENABLED": "0"})
    return [path]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Install kafkajs, and return the command of the program with it."""
    return kafkajs_program(tmp_path_factory.mktemp("node"), "copy.mjs")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with korvet_broker(
        tmp_path_factory.mktemp("broker"), "--set", "storage.format.topics=dense*=batch"
    ) as running:
        yield running


@contextlib.contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program; kills it at the end."""
    with subprocess.Popen(dying_with_tests(command), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("runtime", "library"), [("go", "franz-go"), ("go", "sarama"), ("node", "kafkajs")])
@pytest.mark.parametrize("kind", ["plain", "dense"])
def test_each_record_is_copied_once(
    request: pytest.FixtureRequest, broker: Broker, runtime: str, library: str, kind: str
) -> None:
    program: list[str] = request.getfixturevalue(runtime)
    source, target = topic_name(f"{kind}-source"), topic_name(f"{kind}-target")
    for topic in (source, target):
        reading.create_topic(broker.bootstrap, topic, PARTITIONS)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORDS):
        producer.produce(source, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    command = (*program, library, broker.bootstrap, source, target, str(PARTITIONS))
    for transactions in (1, 3, 8):
        left = transactions
        with started(*command) as process:
            assert process.stdout is not None
            # It is killed while it works on the next one. A rebalance may abort one.
            while left:
                line = process.stdout.readline()
                assert line, "the program ended"
                left -= line == "committed\n"
    with (
        started(*command),
        reading.consumer(broker.bootstrap, target, range(PARTITIONS), **COMMITTED) as running,
    ):
        results = reading.read(running, RECORDS)
    copied = {
        partition: [int(result.value or b"") for result in results if result.partition == partition]
        for partition in range(PARTITIONS)
    }
    assert copied == {partition: list(range(partition, RECORDS, PARTITIONS)) for partition in copied}
