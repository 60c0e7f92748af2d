"""Fetch and ListOffsets by bytes for read_committed clients (KIP-98), of logs that another worker writes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.log.fetch_set import READ_SECONDS
from korvet.protocol.messages.fetch import AbortedTransaction
from korvet.protocol.types import SpecialTimestamp
from tests.handlers.formats import BOTH_FORMATS
from tests.handlers.test_fetch_sessions import until_listened_to
from tests.handlers.test_list_offsets import ask
from tests.support import redis_servers
from tests.support.broker import steady_broker
from tests.support.domain import Domain, domain
from tests.support.fetch_session import FOREVER_MS, Consumer, Place
from tests.support.topic_client import Client
from tests.support.transactions import TransactionalProducer, consumed

pytestmark = BOTH_FORMATS
COMMITTED = {"isolation_level": 1}


@pytest.fixture
def view(broker_redis: str) -> Iterator[Domain]:
    with domain(broker_redis) as made:
        yield made


def values(response: Any, offset: int, *, committed: bool) -> list[bytes | None]:
    aborted = [(each.producer_id, each.first_offset) for each in response.aborted_transactions or ()]
    return consumed(bytes(response.records or b""), offset, aborted, committed=committed).values


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_answers_what_was_aborted_and_what_is_stable(
    client: Client, view: Domain, topic: str, version: int
) -> None:
    topic_id = client.create(topic)
    first = client.append(topic, b"before")
    producer = TransactionalProducer(view, topic)
    producer.write(b"aborted")
    producer.abort()
    producer.write(b"open")
    fields: dict[str, Any] = {"topic_id": topic_id, "version": version}
    response = client.fetch(topic, **fields, **COMMITTED)
    assert values(response, 0, committed=True) == [b"before"]
    [aborted] = response.aborted_transactions
    assert (aborted.producer_id, type(aborted)) == (7, AbortedTransaction)
    assert first < aborted.first_offset < response.last_stable_offset < response.high_watermark
    everything = client.fetch(topic, **fields)
    assert values(everything, 0, committed=False) == [b"before", b"aborted", b"open"]
    assert everything.aborted_transactions is None
    assert everything.last_stable_offset == response.last_stable_offset
    producer.commit()
    response = client.fetch(topic, **fields, **COMMITTED)
    assert values(response, 0, committed=True) == [b"before", b"open"]
    assert response.last_stable_offset == response.high_watermark


def test_an_error_names_no_aborted_transactions(client: Client, topic: str) -> None:
    client.create(topic)
    response = client.fetch(topic, 2**53, **COMMITTED)
    assert response.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert response.aborted_transactions == []


def test_a_position_between_the_stable_offset_and_the_high_watermark_is_no_error(
    client: Client, view: Domain, topic: str
) -> None:
    client.create(topic)
    producer = TransactionalProducer(view, topic)
    producer.write(b"a", b"b")
    end = client.fetch(topic).high_watermark
    response = client.fetch(topic, end, **COMMITTED)
    assert (response.error_code, bytes(response.records or b"")) == (ErrorCode.NONE, b"")
    assert response.last_stable_offset < response.high_watermark == end


@pytest.mark.parametrize("version", [2, 6, 11])
def test_for_committed_readers_a_log_ends_at_its_stable_offset(
    client: Client, view: Domain, topic: str, version: int
) -> None:
    client.create(topic)
    first = client.append(topic, b"before")
    producer = TransactionalProducer(view, topic)
    producer.write(b"open")
    high = ask(client, topic, SpecialTimestamp.LATEST, version).offset
    stable = ask(client, topic, SpecialTimestamp.LATEST, version, **COMMITTED).offset
    assert first < stable < high == client.fetch(topic).high_watermark
    assert stable == client.fetch(topic).last_stable_offset
    producer.abort()
    end = ask(client, topic, SpecialTimestamp.LATEST, version, **COMMITTED).offset
    assert end == ask(client, topic, SpecialTimestamp.LATEST, version).offset > high


def test_a_session_goes_on_when_a_transaction_ends(
    client: Client, view: Domain, topic: str, stored: redis.Redis
) -> None:
    client.create(topic, 2)
    client.append(topic, b"before")
    consumer = Consumer(client)
    place = consumer.seek(topic, 0)
    consumer.seek(topic, 1)
    for _ in range(2):
        consumer.fetch(**COMMITTED)
    assert consumer.values(place) == [b"before"]
    producer = TransactionalProducer(view, topic)
    producer.write(b"a")
    found = consumer.fetch(**COMMITTED)
    # It has nothing new to read, but the end of the log has moved.
    assert found.keys() == {place}
    assert found[place].last_stable_offset < found[place].high_watermark
    assert consumer.fetch(**COMMITTED) == {}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.fetch, FOREVER_MS, **COMMITTED)
        until_listened_to(stored, topic, 0)
        producer.commit()
        found = waiting.result(timeout=30)
    assert found.keys() == {place}
    assert found[place].last_stable_offset == found[place].high_watermark
    assert consumer.values(place)[0] == b"a"


@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_a_session_that_waits_at_open_transactions_does_not_read_what_they_write(
    storage_format: str, tmp_path: Path
) -> None:
    flags = ("--set", f"storage.format={storage_format}")
    # A Redis of its own, whose output is counted: the keeper of the others' broker reads what other tests have left.
    with (
        redis_servers.server() as url,
        steady_broker(tmp_path, "--redis-url", url, *flags, workers=1) as broker,
        Client(broker.address) as client,
        domain(url) as view,
        redis_servers.connected(url) as stored,
    ):
        client.create("orders", 50)
        producer = TransactionalProducer(view)
        large = random.Random(5).randbytes(20_000)  # which nothing compresses
        for index in range(50):
            producer.write(large, partition=index)
        consumer = Consumer(client)
        for index in range(50):
            consumer.seek("orders", index)
        begun = time.monotonic()
        found = consumer.fetch(**COMMITTED)
        for place, each in found.items():
            consumer.seek("orders", place.partition, each.last_stable_offset)
        for _ in range(2):
            consumer.fetch(**COMMITTED)
        sent = stored.info("stats")["total_net_output_bytes"]
        for n in range(5):
            producer.write(b"more", partition=n)
            assert consumer.fetch(300, **COMMITTED).keys() == {Place("orders", n)}
        # All of them once would be a million bytes. That is read every READ_SECONDS, which a busy machine may come to.
        whole_reads = (time.monotonic() - begun) // READ_SECONDS
        assert stored.info("stats")["total_net_output_bytes"] - sent < 300_000 + whole_reads * 1_100_000
        producer.commit(3)
        assert consumer.fetch(FOREVER_MS, **COMMITTED).keys() == {Place("orders", 3)}
        assert consumer.values(Place("orders", 3))[:2] == [large, b"more"]


def test_a_session_may_change_what_it_reads(client: Client, view: Domain, topic: str) -> None:
    client.create(topic)
    producer = TransactionalProducer(view, topic)
    producer.write(b"a")
    consumer = Consumer(client)
    place = consumer.seek(topic, 0)
    consumer.seek(topic, 0, consumer.fetch(**COMMITTED)[place].last_stable_offset)
    for _ in range(2):
        consumer.fetch(10, **COMMITTED)  # from now on it is read only if it is announced
    assert consumer.values(place) == []
    assert consumer.fetch(10).keys() == {place}
    assert consumer.values(place) == [b"a"]
    producer.write(b"b")
    consumer.fetch(10, **COMMITTED)
    assert consumer.values(place) == []
    consumer.fetch(10)
    assert consumer.values(place) == [b"b"]
