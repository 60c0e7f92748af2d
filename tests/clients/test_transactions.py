"""Transactions of each library, in both storage formats: all of one is read, or nothing."""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import confluent_kafka
import pytest

from tests.clients.aio_kafka import AIOKAFKA
from tests.clients.client_library import FencedError, Library, Place, Producer, read, written
from tests.clients.kafka_python import KAFKA_PYTHON
from tests.clients.librdkafka import LIBRDKAFKA
from tests.support import reading, redis_servers
from tests.support.broker import Broker
from tests.support.docs import PAGES
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import TIMESTAMP_FIRST_MS, Sample, topic_name

PARTITIONS = 3
LAST = b"last"
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
LIBRARIES = (LIBRDKAFKA, KAFKA_PYTHON, AIOKAFKA)
Values = dict[int, list[bytes]]
"""What partitions hold, in order."""


def created(broker: Broker, storage: str, partitions: int = PARTITIONS) -> str:
    topic = topic_name("transactions")
    reading.create_topic(broker.bootstrap, topic, partitions, {"storage.format": storage})
    return topic


@contextlib.contextmanager
def transactional(library: Library, broker: Broker, transactional_id: str) -> Iterator[Producer]:
    """Give a producer that has its identity."""
    config = {"transactional.id": transactional_id, "transaction.timeout.ms": 20_000, "linger.ms": 5}
    with contextlib.closing(library.producer(broker.bootstrap, config)) as producer:
        producer.init()
        yield producer


def put(producer: Producer, topic: str, partition: int, values: Sequence[bytes]) -> None:
    """Write values to a partition, and wait until they are acknowledged."""
    written(
        producer.send(topic, [Sample(partition, b"k", value, (), TIMESTAMP_FIRST_MS) for value in values])
    )


def write(broker: Broker, topic: str, partitions: int, value: bytes) -> None:
    plain = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(partitions):
        plain.produce(topic, value, partition=partition)
    assert plain.flush(WAIT_SECONDS_MAX) == 0


def values(transaction: int, partition: int) -> list[bytes]:
    """Return what a transaction writes to a partition: enough for a fetch to read the entries by columns, or little."""
    return [b"%d/%d/%d" % (transaction, partition, number) for number in range(1 if transaction % 3 else 40)]


def values_of(library: Library, broker: Broker, topic: str, isolation: str, wanted: Values) -> Values:
    """Return what a library reads from the beginning of the partitions, if it is as much as is wanted."""
    result: Values = {partition: [] for partition in wanted}
    with contextlib.closing(library.consumer(broker.bootstrap, {"isolation.level": isolation})) as consumer:
        consumer.assign(topic, dict.fromkeys(wanted))
        for record in read(consumer, sum(map(len, wanted.values()))):
            result[record.partition].append(record.value or b"")
    return result


def test_committed_is_read_and_aborted_is_not(broker: Broker, library: Library, storage: str) -> None:
    topic = created(broker, storage)
    everything: Values = {partition: [] for partition in range(PARTITIONS)}
    committed: Values = {partition: [] for partition in range(PARTITIONS)}
    with transactional(library, broker, topic) as producer:
        for transaction in range(7):
            producer.begin()
            commit = transaction % 2 == 0
            # Not each has something in each partition.
            for partition in range(transaction % 3, PARTITIONS):
                put(producer, topic, partition, values(transaction, partition))
                everything[partition] += values(transaction, partition)
                committed[partition] += values(transaction, partition) if commit else []
            producer.end(commit=commit)
            if transaction == 3:
                write(broker, topic, PARTITIONS, LAST)
                for partition in range(PARTITIONS):
                    everything[partition].append(LAST)
                    committed[partition].append(LAST)
    for reader in LIBRARIES:
        for isolation, wanted in ((COMMITTED, committed), (UNCOMMITTED, everything)):
            assert values_of(reader, broker, topic, isolation, wanted) == wanted, (reader.name, isolation)


def test_each_result_of_read_process_write_is_there_once(
    broker: Broker, library: Library, storage: str
) -> None:
    source, target = created(broker, storage), created(broker, storage)
    for number in range(10):
        write(broker, source, PARTITIONS, b"%d" % number)
    # Each run is ended with a transaction open, but for the last.
    for run in itertools.count():
        assert run < 10
        with transactional(library, broker, target) as producer:
            if any(process(broker, producer, source, target, commit=step < 2) for step in range(3)):
                break
    wanted = {partition: [b"%d" % number for number in range(10)] for partition in range(PARTITIONS)}
    assert values_of(LIBRDKAFKA, broker, target, COMMITTED, wanted) == wanted


def process(broker: Broker, producer: Producer, source: str, target: str, *, commit: bool) -> bool:
    """Copy the next records in a transaction; returns whether there were none."""
    with contextlib.closing(LIBRDKAFKA.consumer(broker.bootstrap, {"group.id": target})) as consumer:
        starts = {partition: consumer.committed(source, partition) for partition in range(PARTITIONS)}
        if all(start == consumer.bounds(source, partition)[1] for partition, start in starts.items()):
            return True
        consumer.assign(source, starts)
        records = consumer.poll(WAIT_SECONDS_MAX)[:12]
    producer.begin()
    for record in records:
        put(producer, target, record.partition, [record.value or b""])
    offsets: dict[Place, int] = {(source, record.partition): record.offset + 1 for record in records}
    producer.send_offsets(target, offsets)
    if commit:
        producer.end(commit=True)
    return False


def test_a_second_producer_fences_the_first(broker: Broker, library: Library) -> None:
    topic = created(broker, "record", 1)
    with transactional(library, broker, topic) as first:
        first.begin()
        put(first, topic, 0, [b"first"])
        with transactional(library, broker, topic) as second:
            with pytest.raises(FencedError):
                first.end(commit=True)
            second.begin()
            put(second, topic, 0, [b"second"])
            second.end(commit=True)
    assert values_of(library, broker, topic, COMMITTED, {0: [b"second"]}) == {0: [b"second"]}


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
