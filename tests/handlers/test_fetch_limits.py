"""Fetch by bytes: limits in bytes over several partitions (KIP-74), and waiting for records."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tests.handlers.formats import BOTH_FORMATS, ONLY_BATCH, ONLY_RECORD
from tests.support import processes, redis_servers
from tests.support.batches import values
from tests.support.topic_client import Client, fetch_request

pytestmark = BOTH_FORMATS

FOREVER_MS = 60_000
"""Longer than any of these tests takes: what is answered was woken."""


def fetch_all(client: Client, topic: str, order: list[int], *, each: int = 1 << 20, **fields: Any) -> Any:
    partitions = [FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=each) for n in order]
    topics = [FetchTopic(topic=topic, partitions=partitions)]
    given: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "topics": topics} | fields
    [answer] = client.call(FetchRequest(**given), 11).responses
    return {response.partition_index: response for response in answer.partitions}


def parked(stored: redis.Redis, topic: str, partition: int = 0) -> bool:
    return redis_servers.listeners(stored, f"korvet:{topic}:{partition}") > 0


@pytest.fixture
def filled(client: Client, topic: str) -> str:
    client.create(topic, 4)
    for partition in range(4):
        client.append(topic, *[b"%d" % partition * 1000] * 10, partition=partition)
    return topic


def counts(found: Any) -> list[int]:
    return [len(values(found[n].records)) for n in range(4)]


@pytest.mark.slow
@ONLY_BATCH
def test_the_first_partition_with_records_gives_a_whole_batch_whatever_the_limits_say(
    client: Client, filled: str
) -> None:
    for _ in range(2):
        assert counts(fetch_all(client, filled, [0, 1, 2, 3], each=1, max_bytes=1)) == [10, 0, 0, 0]
        assert counts(fetch_all(client, filled, [3, 1, 2, 0], each=3_500)) == [0, 0, 0, 10]
        # The second batch is above what is left of the limit.
        assert counts(fetch_all(client, filled, [2, 1, 0, 3], max_bytes=15_500)) == [0, 0, 10, 0]
        assert counts(fetch_all(client, filled, [2, 1, 0, 3], max_bytes=25_500)) == [0, 10, 10, 0]


@pytest.mark.slow
def test_an_empty_partition_does_not_use_up_the_one_record(client: Client, topic: str) -> None:
    client.create(topic, 4)
    client.append(topic, b"x" * 1000, partition=2)
    assert counts(fetch_all(client, topic, [0, 1, 2, 3], max_bytes=1)) == [0, 0, 1, 0]


@pytest.mark.slow
@ONLY_RECORD
def test_the_requests_limit_is_used_up_in_its_order(client: Client, filled: str) -> None:
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        found = fetch_all(client, filled, order, max_bytes=15_500)
        assert [len(values(found[n].records)) for n in order] == [10, 5, 0, 0]
        assert sum(len(each.records) for each in found.values()) <= 15_500
        # Also where nothing was read the bounds are reported.
        assert all(each.high_watermark > each.log_start_offset > 0 for each in found.values())


class Waiting:
    """A fetch under way in a thread of its own."""

    def __init__(self, client: Client, topic: str, offset: int = 0, **fields: Any) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._answer: Future[Any] = self._pool.submit(
            client.call, fetch_request(topic, offset, **{"max_wait_ms": FOREVER_MS} | fields), 11
        )

    def until_parked(self, stored: redis.Redis, topic: str) -> None:
        processes.wait_until(lambda: parked(stored, topic), "a parked fetch")
        assert not self._answer.done()

    def answer(self) -> Any:
        [answer] = self._answer.result(30).responses
        self._pool.shutdown()
        return answer.partitions[0]


@pytest.mark.slow
def test_a_consumer_at_the_end_of_an_empty_topic_gets_the_first_record(
    two_clients: tuple[Client, Client], topic: str, stored: redis.Redis
) -> None:
    consumer, producer = two_clients
    producer.create(topic)
    waiting = Waiting(consumer, topic)
    waiting.until_parked(stored, topic)
    offset = producer.append(topic, b"first")
    answer = waiting.answer()
    assert (answer.error_code, answer.high_watermark) == (ErrorCode.NONE, offset + 1)
    assert values(answer.records) == [b"first"]


@pytest.mark.slow
def test_a_fetch_waits_until_min_bytes_are_there(
    two_clients: tuple[Client, Client], topic: str, stored: redis.Redis
) -> None:
    consumer, producer = two_clients
    producer.create(topic)
    producer.append(topic, b"x" * 1_000)
    waiting = Waiting(consumer, topic, min_bytes=3_500)
    waiting.until_parked(stored, topic)
    for _ in range(3):
        producer.append(topic, b"x" * 1_000)
    answer = waiting.answer()
    assert len(values(answer.records)) == 4
    assert len(answer.records) >= 3_500


@pytest.mark.slow
def test_a_fetch_below_min_bytes_is_answered_with_what_there_is_at_the_end_of_its_wait(
    client: Client, topic: str
) -> None:
    client.create(topic)
    client.append(topic, b"x")
    assert values(client.fetch(topic, max_wait_ms=100, min_bytes=10_000).records) == [b"x"]
    assert client.fetch("no-such-topic", max_wait_ms=FOREVER_MS, min_bytes=10_000).error_code == 3


@pytest.mark.slow
@pytest.mark.parametrize("min_bytes", [0, -1])
def test_a_fetch_that_wants_nothing_does_not_wait(client: Client, topic: str, min_bytes: int) -> None:
    client.create(topic)
    response = client.fetch(topic, max_wait_ms=FOREVER_MS, min_bytes=min_bytes)
    assert (response.error_code, response.records) == (ErrorCode.NONE, b"")


@pytest.mark.slow
def test_a_waiting_fetch_holds_back_what_is_asked_after_it(
    two_clients: tuple[Client, Client], topic: str, stored: redis.Redis
) -> None:
    consumer, producer = two_clients
    producer.create(topic)
    consumer.send(fetch_request(topic, max_wait_ms=FOREVER_MS), 11, correlation_id=1)
    consumer.send(ApiVersionsRequest(), 0, correlation_id=2)
    processes.wait_until(lambda: parked(stored, topic), "a parked fetch")
    producer.append(topic, b"v")
    [answer] = consumer.receive(FetchResponse, 11, correlation_id=1).responses
    assert values(answer.partitions[0].records) == [b"v"]
    assert consumer.receive_frame()[:4] == b"\0\0\0\2"


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [2, 130], ids=["by one script", "in steps"])
@pytest.mark.parametrize("by_id", [False, True])
def test_a_fetch_that_waits_is_answered_that_the_topic_is_gone(
    two_clients: tuple[Client, Client], topic: str, partitions: int, stored: redis.Redis, *, by_id: bool
) -> None:
    here, there = two_clients
    topic_id = here.create(topic, partitions)
    last = partitions - 1
    waiting: dict[str, Any] = {"max_wait_ms": FOREVER_MS, "partition": last}
    version = 13 if by_id else 11
    there.send(fetch_request("" if by_id else topic, topic_id=topic_id, **waiting), version)
    processes.wait_until(lambda: parked(stored, topic, last), "a parked fetch")
    here.delete(topic)
    [[response]] = [answered.partitions for answered in there.receive(FetchResponse, version).responses]
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert response.error_code == unknown
