"""Quotas as a worker charges them: what a client may use at once, and for how long it is throttled then.

tests/server/test_throttle.py shows what a throttle means for a connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

import pytest

from korvet.clock import Clock
from korvet.errors import ErrorCode
from korvet.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.schema import Message
from korvet.security.quotas import Quota
from korvet.security.session import Session
from korvet.telemetry import metrics
from tests.handlers.scene import Scene
from tests.support.batches import batch
from tests.support.dispatching import Present, connected, received
from tests.support.messages import message
from tests.support.proxy import until
from tests.support.share_consumer import ShareConsumer
from tests.support.topic_client import Client, fetch_request, produce_request
from tests.support.virtual_clock import VirtualClock
from tests.support.wire_client import RESPONSES, WireClient, decode_response, request_frame

RATE = 10_000
WINDOWS = 10 * RATE
"""What a client may use at once, in bytes: ten windows of a second."""


class Worker(Scene):
    """A worker of a topic `orders`, whose clients send their requests in this process."""

    def __init__(self, redis_url: str, clock: Clock) -> None:
        super().__init__(redis_url, clock=clock, authorizer_class_name="")
        self.quotas = self.services.quotas
        self.create("orders")

    def limit(self, **quotas: float | None) -> None:
        self.quotas.alter((("client-id", "limited"),), quotas)

    def client(self, client_id: str) -> LocalClient:
        return LocalClient(self, client_id)


class LocalClient:
    """A client of the worker; `muted_ms` is for how long the last request throttles its connection."""

    def __init__(self, worker: Worker, client_id: str) -> None:
        self._worker, self._client_id = worker, client_id
        self._session = Session("peer:1")
        self.muted_ms = 0

    def call(self, request: Message, version: int) -> Any:
        """Return the answer."""
        with received(request_frame(request, version, client_id=self._client_id)) as frame:
            chunks, self.muted_ms, _ = self._worker.dispatcher.serve(frame, Present(self._session))
        return decode_response(RESPONSES[request.api.key], version, b"".join(chunks)[4:])

    def ask(self, kind: type[Message], version: int, **fields: Any) -> Any:
        return self.call(message(kind, fields, version), version)

    def produce(self, size: int) -> Any:
        """Return the core's answer."""
        return self._by_core(produce_request("orders", batch(b"x" * size)), 8, Quota.PRODUCER_BYTE_RATE)

    def fetch(self, bytes_max: int) -> Any:
        """Return the core's answer."""
        request = fetch_request("orders", partition_max_bytes=bytes_max)
        return self._by_core(request, 11, Quota.CONSUMER_BYTE_RATE)

    def _by_core(self, request: Message, version: int, quota: str) -> Any:
        before = muted_ms(quota)
        with self.connected() as client:
            answer = client.call(request, version)
            until(lambda: muted_ms(quota) - before >= answer.throttle_time_ms)
        self.muted_ms = muted_ms(quota) - before
        return answer

    @contextmanager
    def connected(self) -> Iterator[WireClient]:
        """Give a connection that the core serves."""
        with connected(self._worker.dispatcher, self._worker.sockets) as (_, socket):
            yield WireClient(socket, client_id=self._client_id)


def muted_ms(quota: str = Quota.PRODUCER_BYTE_RATE) -> int:
    """Return for how long the core has muted clients over this quota until now."""
    seconds: float = metrics.THROTTLE_SECONDS.labels(quota)._value.get()
    return round(seconds * 1000)


@pytest.fixture
def worker(redis_url: str, clock: VirtualClock) -> Iterator[Worker]:
    with closing(Worker(redis_url, clock)) as made:
        yield made
        made.limit(**dict.fromkeys(made.quotas.table.quotas))


@pytest.fixture
def limited(worker: Worker) -> LocalClient:
    return worker.client("limited")


@pytest.fixture
def other(worker: Worker) -> LocalClient:
    return worker.client("other")


def test_a_producer_over_its_quota_is_answered_at_once_and_muted_for_as_long_as_the_answer_says(
    worker: Worker, limited: LocalClient, clock: VirtualClock
) -> None:
    worker.limit(producer_byte_rate=RATE)
    assert limited.produce(WINDOWS // 2).throttle_time_ms == limited.muted_ms == 0
    throttled = limited.produce(WINDOWS * 6 // 10)
    assert throttled.responses[0].partition_responses[0].error_code == 0
    # A tenth too much, and what the requests have beside their records.
    assert throttled.throttle_time_ms == limited.muted_ms in range(1000, 1100)
    clock.advance(11)
    assert limited.produce(WINDOWS // 2).throttle_time_ms == 0


def test_a_producer_without_answers_is_muted_too(worker: Worker, limited: LocalClient) -> None:
    worker.limit(producer_byte_rate=RATE)
    before = muted_ms()
    with limited.connected() as client:
        client.send(produce_request("orders", batch(b"x" * (WINDOWS * 11 // 10)), acks=0), 8)
        until(lambda: muted_ms() > before)
    assert muted_ms() - before in range(1000, 1100)


def filled(other: LocalClient) -> None:
    for _ in range(8):
        other.produce(WINDOWS * 2 // 10)


def test_a_consumer_gets_no_more_at_once_than_its_quota_allows_and_is_muted(
    worker: Worker, limited: LocalClient, other: LocalClient
) -> None:
    filled(other)
    worker.limit(consumer_byte_rate=RATE)
    first = limited.fetch(1 << 20)
    [[of_first]] = [response.partitions for response in first.responses]
    assert 0 < len(of_first.records) <= WINDOWS
    assert first.throttle_time_ms == 0
    second = limited.fetch(WINDOWS * 45 // 100)
    assert 0 < second.throttle_time_ms == limited.muted_ms
    # What is not fetched costs nothing: others are not throttled.
    assert other.fetch(1 << 20).throttle_time_ms == 0


def test_a_member_of_a_share_group_gets_no_more_at_once_than_its_quota_allows_and_is_muted(
    worker: Worker, limited: LocalClient, other: LocalClient
) -> None:
    consumer = ShareConsumer(cast("Client", limited), "jobs", "orders").on(worker.ids["orders"])
    assert consumer.poll() == []
    filled(other)
    worker.limit(consumer_byte_rate=RATE)
    first = consumer.send()
    [[of_first]] = [response.partitions for response in first.responses]
    assert 0 < len(of_first.records) <= WINDOWS
    assert first.throttle_time_ms == 0
    assert consumer.send().throttle_time_ms > 0


def test_a_request_percentage_throttles_any_request_and_one_window_at_most(
    worker: Worker, limited: LocalClient, other: LocalClient
) -> None:
    worker.limit(request_percentage=1e-6)
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")], allow_auto_topic_creation=False)
    assert [limited.call(request, 12).throttle_time_ms for _ in range(2)] == [1000, 1000]
    # A version that cannot say so is muted all the same.
    limited.call(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), 1)
    assert limited.muted_ms == 1000
    assert other.call(request, 12).throttle_time_ms == 0
    worker.limit(request_percentage=1e6)
    assert limited.call(request, 12).throttle_time_ms == 0


def test_changes_of_topics_beyond_a_quota_are_refused_to_those_who_know_the_error(
    worker: Worker, limited: LocalClient
) -> None:
    worker.limit(controller_mutation_rate=0.01)

    def create(topic: str, version: int, *, validate_only: bool = False) -> tuple[int, int]:
        wanted = CreatableTopic(name=topic, num_partitions=2, replication_factor=1)
        response = limited.call(CreateTopicsRequest(topics=[wanted], validate_only=validate_only), version)
        assert response.throttle_time_ms == limited.muted_ms
        return response.topics[0].error_code, response.throttle_time_ms

    too_many = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert create("first", 7) == (0, 0)
    # Burst and rate of a hundredth: two partitions owe 1.89 tokens.
    assert create("second", 6) == (too_many, 189_000)
    assert create("second", 7, validate_only=True) == (0, 0)
    grown = CreatePartitionsTopic(name="first", count=3, assignments=None)
    growing = CreatePartitionsRequest(topics=[grown], timeout_ms=1000, validate_only=False)
    response = limited.call(growing, 3)
    assert (response.results[0].error_code, response.throttle_time_ms) == (too_many, 189_000)
    deletion = DeleteTopicsRequest(topic_names=["first"], timeout_ms=1000)
    response = limited.call(deletion, 5)
    assert (response.responses[0].error_code, response.throttle_time_ms) == (too_many, 189_000)
    # Older versions do not know the error: the change is done, and the connection muted.
    assert create("second", 5) == (0, 389_000)
    response = limited.call(growing, 2)
    assert (response.results[0].error_code, response.throttle_time_ms) == (0, 489_000)
    response = limited.call(deletion, 4)
    assert (response.responses[0].error_code, response.throttle_time_ms) == (0, 789_000)
    # Nor is a topic refused that is created since somebody asks for it.
    response = limited.call(MetadataRequest(topics=[MetadataRequestTopic(name="first")]), 12)
    assert (response.topics[0].error_code, response.throttle_time_ms > 789_000) == (0, True)
