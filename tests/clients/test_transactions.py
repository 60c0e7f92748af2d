"""Transactions of librdkafka, kafka-python and aiokafka, in both storage formats: all of one is read, or nothing."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.clients.transactional import PRODUCERS, TIMEOUT_MS, FencedError, Librdkafka, Values, producer, read
from tests.support import processes, reading, redis_servers
from tests.support.broker import Broker, korvet_broker
from tests.support.docs import PAGES
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import topic_name

PARTITIONS = 3
LAST = b"last"
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
LIBRARIES = pytest.mark.parametrize("library", PRODUCERS)
FORMATS = pytest.mark.parametrize("storage", ["record", "batch"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give a broker whose keeper looks for transactions past their timeout all the time."""
    setting = "transaction.abort.timed.out.transaction.cleanup.interval.ms=200"
    with korvet_broker(tmp_path_factory.mktemp("transactions"), "--set", setting) as running:
        yield running


def created(broker: Broker, storage: str = "record", partitions: int = PARTITIONS) -> str:
    """Create a topic, and return its name."""
    topic = topic_name("transactions")
    reading.create_topic(broker.bootstrap, topic, partitions, {"storage.format": storage})
    return topic


def write(broker: Broker, topic: str, partitions: int, value: bytes) -> None:
    """Write a value to each partition, without a transaction."""
    plain = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(partitions):
        plain.produce(topic, value, partition=partition)
    assert plain.flush(WAIT_SECONDS_MAX) == 0


def values(transaction: int, partition: int) -> list[bytes]:
    """Return what a transaction writes to a partition: enough for a fetch to read the entries by columns, or little."""
    return [b"%d/%d/%d" % (transaction, partition, number) for number in range(1 if transaction % 3 else 40)]


@LIBRARIES
@FORMATS
def test_committed_is_read_and_aborted_is_not(broker: Broker, library: str, storage: str) -> None:
    topic = created(broker, storage)
    all_of: Values = {partition: [] for partition in range(PARTITIONS)}
    committed: Values = {partition: [] for partition in range(PARTITIONS)}
    with producer(library, broker.bootstrap, topic) as running:
        for transaction in range(7):
            running.begin()
            commit = transaction % 2 == 0
            # Not each has something in each partition.
            for partition in range(transaction % 3, PARTITIONS):
                running.send(topic, partition, values(transaction, partition))
                all_of[partition] += values(transaction, partition)
                committed[partition] += values(transaction, partition) if commit else []
            running.end(commit=commit)
            if transaction == 3:
                write(broker, topic, PARTITIONS, b"without a transaction")
                for partition in range(PARTITIONS):
                    all_of[partition].append(b"without a transaction")
                    committed[partition].append(b"without a transaction")
    write(broker, topic, PARTITIONS, LAST)
    for reader in PRODUCERS:
        for isolation, wanted in ((COMMITTED, committed), (UNCOMMITTED, all_of)):
            found = read(reader, broker.bootstrap, topic, PARTITIONS, isolation, LAST)
            assert found == {partition: [*wanted[partition], LAST] for partition in wanted}, (
                reader,
                isolation,
            )


@LIBRARIES
@FORMATS
def test_committed_readers_wait_for_the_end_of_the_first_open_transaction(
    broker: Broker, library: str, storage: str
) -> None:
    topic = created(broker, storage, 1)
    write(broker, topic, 1, b"before")
    with (
        producer(library, broker.bootstrap, f"{topic}-one") as one,
        producer(library, broker.bootstrap, f"{topic}-other") as other,
        reading.consumer(broker.bootstrap, topic, (0,), **{"isolation.level": COMMITTED}) as committed,
    ):
        one.begin()
        other.begin()
        one.send(topic, 0, [b"one"])
        other.send(topic, 0, [b"other"])
        other.end(commit=True)
        write(broker, topic, 1, b"after")
        assert [each.value for each in reading.read(committed, 1)] == [b"before"]
        with reading.consumer(
            broker.bootstrap, topic, (0,), **{"isolation.level": UNCOMMITTED}
        ) as uncommitted:
            assert [each.value for each in reading.read(uncommitted, 4)] == [
                b"before",
                b"one",
                b"other",
                b"after",
            ]
        one.end(commit=False)
        assert [each.value for each in reading.read(committed, 2)] == [b"other", b"after"]


@LIBRARIES
@FORMATS
def test_each_result_of_read_process_write_is_there_once(broker: Broker, library: str, storage: str) -> None:
    source, target = created(broker, storage), created(broker, storage)
    for number in range(30):
        write(broker, source, PARTITIONS, b"%d" % number)
    processed = 0
    # Each run is ended with a transaction open, but for the last.
    for run in itertools.count():
        with producer(library, broker.bootstrap, target) as running:
            at = positions(broker, source, target)
            for step in range(3):
                found, at = next_of(broker, source, at, 12)
                if not found:
                    break
                running.begin()
                for partition, value in found:
                    running.send(target, partition, [value])
                running.send_offsets(target, at)
                if step < 2:
                    running.end(commit=True)
                    processed += len(found)
        if processed == 30 * PARTITIONS:
            break
        assert run < 10
    write(broker, target, PARTITIONS, LAST)
    wanted = [*(b"%d" % number for number in range(30)), LAST]
    found_at_last = read("librdkafka", broker.bootstrap, target, PARTITIONS, COMMITTED, LAST)
    assert found_at_last == dict.fromkeys(range(PARTITIONS), wanted)
    assert next_of(broker, source, positions(broker, source, target), 1)[0] == []


def positions(broker: Broker, topic: str, group: str) -> dict[tuple[str, int], int]:
    """Return what a group has committed, once no transaction is open that commits offsets of it."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    asked = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    with contextlib.closing(consumer):
        found = consumer.committed(asked, WAIT_SECONDS_MAX)
        starts = [consumer.get_watermark_offsets(each, WAIT_SECONDS_MAX)[0] for each in asked]
        return {
            (topic, each.partition): start if each.offset < 0 else each.offset
            for each, start in zip(found, starts, strict=True)
        }


def next_of(
    broker: Broker, topic: str, at: dict[tuple[str, int], int], count: int
) -> tuple[list[tuple[int, bytes]], dict[tuple[str, int], int]]:
    """Return the next `count` records of a topic's partitions, fewer at the end, and where the next one begins."""
    at = dict(at)
    found: list[tuple[int, bytes]] = []
    with reading.consumer(broker.bootstrap, topic, (), **{"enable.partition.eof": True}) as consumer:
        consumer.assign([TopicPartition(*each, offset) for each, offset in at.items()])
        ended: set[int] = set()
        while len(found) < count and len(ended) < PARTITIONS:
            message = consumer.poll(WAIT_SECONDS_MAX)
            assert message is not None, "nothing comes"
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition() or 0)
                continue
            record = reading.as_received(message)
            found.append((record.partition, record.value or b""))
            at[topic, record.partition] = record.offset + 1
    return found, at


@LIBRARIES
def test_a_second_producer_fences_the_first(broker: Broker, library: str) -> None:
    topic = created(broker, partitions=1)
    with producer(library, broker.bootstrap, topic) as first:
        first.begin()
        first.send(topic, 0, [b"first"])
        with producer(library, broker.bootstrap, topic) as second:
            with pytest.raises(FencedError):
                first.end(commit=True)
            second.begin()
            second.send(topic, 0, [b"second"])
            second.end(commit=True)
    write(broker, topic, 1, LAST)
    assert read(library, broker.bootstrap, topic, 1, COMMITTED, LAST) == {0: [b"second", LAST]}


@LIBRARIES
@FORMATS
def test_a_transaction_past_its_timeout_is_aborted(broker: Broker, library: str, storage: str) -> None:
    topic = created(broker, storage, 1)
    with producer(library, broker.bootstrap, topic, timeout_ms=1000) as silent:
        silent.begin()
        silent.send(topic, 0, [b"silent"])
        write(broker, topic, 1, LAST)
        # It is read once the transaction is aborted.
        assert read(library, broker.bootstrap, topic, 1, COMMITTED, LAST) == {0: [LAST]}
        with pytest.raises((FencedError, KafkaException)):
            silent.end(commit=True)
    assert read(library, broker.bootstrap, topic, 1, UNCOMMITTED, LAST) == {0: [b"silent", LAST]}


def test_the_examples_of_the_page_do_what_it_says(broker: Broker, tmp_path: Path) -> None:
    page = PAGES["docs/transactions.md"]
    program = tmp_path / "example.py"
    program.write_text(
        page.partition("```python\n")[2].partition("```")[0].replace("127.0.0.1:9092", broker.bootstrap)
    )
    for topic in ("orders", "bills"):
        reading.create_topic(broker.bootstrap, topic)
    subprocess.run([sys.executable, program], check=True)
    with redis_servers.connected(broker.redis_url) as stored:
        # Of the marker the names are the same, and what it says.
        [record, marker] = stored.xrange("korvet:orders:0")
        shown = re.findall(r'^ +(?:2\) 1|[2-6])\) "(.+)"$', page, re.MULTILINE)
        assert [name.decode() for name in marker[1]] == shown[::2]
        assert marker[1][b"korvet.marker"].decode() == shown[1]
        # The command, but for the program that runs it.
        words = shlex.split(page.partition("$ redis-cli ")[2].partition("- 100")[0].replace("\\\n", ""))
        script = (Path(__file__).parents[2] / words[words.index("--eval") + 1]).read_text()
        keys = words[words.index("--eval") + 2 : words.index(",")]
        assert stored.eval(script, len(keys), *keys, "-", 100)[1][0][0] == record[0]


@pytest.mark.timeout(300)
@FORMATS
def test_what_was_committed_while_workers_are_killed_is_there_once(tmp_path: Path, storage: str) -> None:
    with korvet_broker(tmp_path, "--set", f"storage.format={storage}") as broker:
        topic = created(broker, storage)
        committed: Values = {partition: [] for partition in range(PARTITIONS)}
        chance = random.Random(storage)
        # No pause, however long it takes to replace a worker, is to abort a transaction.
        running = Librdkafka(broker.bootstrap, topic, 10 * TIMEOUT_MS)
        running.init()
        for transaction in range(24):
            killer = threading.Timer(chance.uniform(0, 0.05), kill_a_worker, [broker])
            if transaction % 3 == 1:
                killer.start()
            if transact(running, topic, transaction, commit=transaction % 4 != 3):
                for partition in range(PARTITIONS):
                    committed[partition] += values(transaction, partition)
            if transaction % 3 == 1:
                killer.join()
        write(broker, topic, PARTITIONS, LAST)
        wanted = {partition: [*committed[partition], LAST] for partition in committed}
        for reader in PRODUCERS:
            assert read(reader, broker.bootstrap, topic, PARTITIONS, COMMITTED, LAST) == wanted


def kill_a_worker(broker: Broker) -> None:
    """Kill a worker, if both are there."""
    if len(pids := broker.worker_pids()) == 2:
        processes.kill(pids[0])


def transact(running: Librdkafka, topic: str, transaction: int, *, commit: bool) -> bool:
    """Write a transaction, again after an error that aborts it; returns whether it is committed."""
    while True:
        running.begin()
        try:
            for partition in range(PARTITIONS):
                for value in values(transaction, partition):
                    running.producer.produce(topic, value, partition=partition)
            if commit:
                retried(lambda: running.producer.commit_transaction(WAIT_SECONDS_MAX))
                return True
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        retried(lambda: running.producer.abort_transaction(WAIT_SECONDS_MAX))
        if not commit:
            return False


def retried(call: object) -> None:
    """Call again while the error is one after which that is right."""
    assert callable(call)
    while True:
        try:
            call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return
