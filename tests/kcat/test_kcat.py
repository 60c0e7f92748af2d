"""kcat (librdkafka, on Debian an old one) as a client: what it writes it reads back exactly.

kcat is a program, no package of Python.
"""

from __future__ import annotations

import json
import subprocess
import time

from tests.support.broker import Broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import CODECS, PARTITIONS, Received, Sample, check_exactly, topic_name
from tests.support.topic_client import Client

COUNT = 1000
HEADERS = (("again", b"one"), ("again", b"two"), ("empty", b""))


def kcat(broker: Broker, *arguments: str, given: bytes = b"") -> bytes:
    done = subprocess.run(
        ["kcat", "-b", broker.bootstrap, *arguments],
        input=given,
        capture_output=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def consume(broker: Broker, topic: str, *arguments: str) -> list[Received]:
    """Read from where the arguments say up to the end of every partition."""
    lines = kcat(broker, "-C", "-t", topic, "-e", "-q", "-J", *arguments).splitlines()
    received = []
    for line in lines:
        message = json.loads(line)
        names = message.get("headers", [])
        headers = tuple((name, value.encode()) for name, value in zip(names[::2], names[1::2], strict=True))
        key, value = (
            None if item is None else item.encode() for item in (message["key"], message["payload"])
        )
        received.append(Received(message["partition"], message["offset"], key, value, headers, message["ts"]))
    return received


def headers_of(codec: str) -> tuple[tuple[str, bytes], ...]:
    return (("codec", codec.encode()), *HEADERS)


def test_records_of_all_codecs_come_back_exactly(broker: Broker) -> None:
    topic = topic_name("kcat")
    with Client(broker.address) as client:
        client.create(topic, PARTITIONS)
    sent: list[Sample] = []
    before_ms = int(time.time() * 1000)
    for place, codec in enumerate(CODECS):
        flags = [flag for name, value in headers_of(codec) for flag in ("-H", f"{name}={value.decode()}")]
        for partition in range(PARTITIONS):
            numbers = range(place * COUNT + partition, (place + 1) * COUNT, PARTITIONS)
            sent += [
                Sample(partition, b"key-%d" % (number % 997), b"value %d" % number, headers_of(codec), -1)
                for number in numbers
            ]
            lines = b"".join(b"key-%d\tvalue %d\n" % (number % 997, number) for number in numbers)
            kcat(
                broker, "-P", "-t", topic, "-p", str(partition), "-K", "\t", "-z", codec, *flags, given=lines
            )
    after_ms = int(time.time() * 1000)
    received = consume(broker, topic)
    assert all(before_ms <= record.timestamp <= after_ms for record in received)
    check_exactly(sent, [record._replace(timestamp=-1) for record in received])


def test_offsets_are_asked_for_and_read_from(broker: Broker) -> None:
    topic = topic_name("kcat-offsets")
    with Client(broker.address) as client:
        client.create(topic)
    kcat(broker, "-P", "-t", topic, "-Z", "-K", ":", given=b"a:1\nb:2\n:\nd:\n")
    first, second, third, fourth = consume(broker, topic)
    assert [(item.key, item.value) for item in (first, second)] == [(b"a", b"1"), (b"b", b"2")]
    assert [(item.key, item.value) for item in (third, fourth)] == [(None, None), (b"d", None)]
    asked = kcat(broker, "-Q", "-t", f"{topic}:0:{third.timestamp}").decode()
    assert int(asked.split()[-1]) in [item.offset for item in (first, second, third)]
    assert consume(broker, topic, "-p", "0", "-o", str(third.offset)) == [third, fourth]
    assert consume(broker, topic, "-p", "0", "-o", "end") == []


def test_minus_50_reads_the_newest_50_records_of_a_dense_topic(broker: Broker) -> None:
    topic = topic_name("kcat-dense")
    with Client(broker.address) as client:
        client.create(topic, offset_encoding="dense")
        for first in range(0, 120, 8):
            client.append(topic, *(b"%d" % number for number in range(first, first + 8)))
    received = consume(broker, topic, "-o", "-50")
    assert [(record.offset, record.value) for record in received] == [(n, b"%d" % n) for n in range(70, 120)]
