"""Quotas as clients meet them: what is charged, what is answered and what is muted, by bytes and by real clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from korvet.errors import ErrorCode
from korvet.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.schema import Message
from tests.handlers.quotas import described, set_quotas
from tests.support import ops
from tests.support.batches import batch
from tests.support.broker import Broker, steady_broker
from tests.support.share_consumer import ShareConsumer
from tests.support.topic_client import Client, fetch_request, produce_request
from tests.support.wire_client import clients_of_two_workers

RATE = 10_000
WINDOWS = 10 * RATE
"""What a client may use at once, in bytes: ten windows of a second."""
MUTED_MS = range(200, 3000)
"""For how long 5 to 30 per cent more than that throttles it, with room for what a request has beside its records."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with steady_broker(tmp_path_factory.mktemp("quotas"), workers=2) as running:
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Give a client id, and a topic, of the test's own."""
    return str(request.node.name)[:100]


@pytest.fixture
def client(broker: Broker, name: str) -> Iterator[Client]:
    with Client(broker.address, client_id=name) as connection:
        yield connection


@pytest.fixture
def admin(broker: Broker) -> Iterator[Client]:
    """Give a connection that no quota is for."""
    with Client(broker.address, client_id="administrator") as connection:
        yield connection


@pytest.fixture
def limit(admin: Client, name: str) -> Iterator[Callable[..., None]]:
    """Give a function that sets quotas of the test's own client id; they end with the test."""
    entity = (("client-id", name),)

    def set_all(*clients: Client, **quotas: float) -> None:
        set_quotas(admin, entity, **quotas)
        for each in clients:
            # Whoever describes them has read them.
            assert described(each)[entity] == quotas

    yield set_all
    set_quotas(admin, entity, **dict.fromkeys(described(admin)[entity]))


def produce(client: Client, topic: str, size: int, **fields: Any) -> Any:
    return client.call(produce_request(topic, batch(b"x" * size), **fields), 8)


def test_a_producer_over_its_quota_is_answered_at_once_and_muted_for_as_long_as_the_answer_says(
    broker: Broker, client: Client, limit: Callable[..., None], name: str
) -> None:
    client.create(name)
    limit(client, producer_byte_rate=RATE)
    assert produce(client, name, WINDOWS // 2).throttle_time_ms == 0
    begun = time.monotonic()
    throttled = produce(client, name, WINDOWS * 6 // 10)
    assert throttled.throttle_time_ms in MUTED_MS
    assert throttled.responses[0].partition_responses[0].error_code == 0
    client.described(name)
    assert time.monotonic() - begun >= throttled.throttle_time_ms / 1000
    assert ops.settled_total(broker, "korvet_throttled_requests_total") > 0
    assert ("producer_byte_rate",) in ops.samples(broker, "korvet_throttle_seconds_total")


def test_a_producer_without_answers_is_muted_too(
    client: Client, limit: Callable[..., None], name: str
) -> None:
    client.create(name)
    limit(client, producer_byte_rate=RATE)
    begun = time.monotonic()
    client.send(produce_request(name, batch(b"x" * (WINDOWS * 11 // 10)), acks=0), 8)
    # The next request may have begun before the first had an answer.
    client.described(name)
    client.described(name)
    assert time.monotonic() - begun >= MUTED_MS[0] / 1000


def test_a_consumer_gets_no_more_at_once_than_its_quota_allows_and_is_muted(
    client: Client, admin: Client, limit: Callable[..., None], name: str
) -> None:
    admin.create(name)
    for _ in range(8):
        produce(admin, name, WINDOWS * 2 // 10)
    limit(client, consumer_byte_rate=RATE)
    first = client.call(fetch_request(name, partition_max_bytes=1 << 20), 11)
    [[of_first]] = [each.partitions for each in first.responses]
    assert 0 < len(of_first.records) <= WINDOWS
    assert first.throttle_time_ms == 0
    begun = time.monotonic()
    second = client.call(fetch_request(name, partition_max_bytes=WINDOWS * 45 // 100), 11)
    assert second.throttle_time_ms in MUTED_MS
    client.described(name)
    assert time.monotonic() - begun >= second.throttle_time_ms / 1000
    # What is not fetched costs nothing: others are not throttled.
    assert admin.call(fetch_request(name), 11).throttle_time_ms == 0


def test_a_member_of_a_share_group_gets_no_more_at_once_than_its_quota_allows_and_is_muted(
    client: Client, admin: Client, limit: Callable[..., None], name: str
) -> None:
    consumer = ShareConsumer(client, name, name).on(admin.create(name))
    assert consumer.poll() == []
    for _ in range(8):
        produce(admin, name, WINDOWS * 2 // 10)
    limit(client, consumer_byte_rate=RATE)
    first = consumer.send()
    [[of_first]] = [each.partitions for each in first.responses]
    assert 0 < len(of_first.records) <= WINDOWS
    assert first.throttle_time_ms == 0
    assert consumer.send().throttle_time_ms > 0


def test_a_request_percentage_throttles_any_request_and_one_window_at_most(
    client: Client, admin: Client, limit: Callable[..., None], name: str
) -> None:
    limit(client, request_percentage=1e-6)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    found = [client.call(request, 12).throttle_time_ms for _ in range(2)]
    assert found == [1000, 1000]
    # A version that cannot say so is muted all the same.
    begun = time.monotonic()
    client.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 1)
    assert time.monotonic() - begun >= 1
    assert admin.call(request, 12).throttle_time_ms == 0
    set_quotas(admin, (("client-id", name),), request_percentage=1e6)
    assert described(client)
    assert client.call(request, 12).throttle_time_ms == 0


def test_two_workers_share_one_quota(broker: Broker, limit: Callable[..., None], name: str) -> None:
    with clients_of_two_workers(broker.address, broker.worker_pids(), Client) as (one, other):
        one.client_id = other.client_id = name
        one.create(name)
        limit(one, other, producer_byte_rate=RATE)
        assert produce(one, name, WINDOWS * 6 // 10).throttle_time_ms == 0
        assert produce(other, name, WINDOWS // 2).throttle_time_ms in MUTED_MS


def test_changes_of_topics_beyond_a_quota_are_refused_to_those_who_know_the_error(
    broker: Broker, admin: Client, limit: Callable[..., None], name: str
) -> None:
    def call(request: Message, version: int) -> Any:
        """Send a request on a connection of its own: what is over the quota mutes a connection for minutes."""
        with Client(broker.address, client_id=name) as client:
            limit(client, controller_mutation_rate=0.01)
            return client.call(request, version)

    def create(topic: str, version: int, *, validate_only: bool = False) -> tuple[int, int]:
        wanted = CreatableTopic(name=topic, num_partitions=2, replication_factor=1)
        request = CreateTopicsRequest(topics=[wanted], validate_only=validate_only)
        response = call(request, version)
        return response.topics[0].error_code, response.throttle_time_ms

    too_many, first, second = ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{name}-1", f"{name}-2"
    assert create(first, 7) == (0, 0)
    code, throttle_ms = create(second, 6)
    # Burst and rate of a hundredth: two partitions owe 1.89 tokens.
    assert (code, throttle_ms in range(180_000, 190_000)) == (too_many, True)
    assert create(second, 7, validate_only=True) == (0, 0)
    grown = CreatePartitionsTopic(name=first, count=3, assignments=None)
    growing = CreatePartitionsRequest(topics=[grown], timeout_ms=1000, validate_only=False)
    response = call(growing, 3)
    assert (response.results[0].error_code, response.throttle_time_ms > 0) == (too_many, True)
    deletion = DeleteTopicsRequest(topic_names=[first], timeout_ms=1000)
    response = call(deletion, 5)
    assert (response.responses[0].error_code, response.throttle_time_ms > 0) == (too_many, True)
    # Older versions do not know the error: the change is done, and the connection muted.
    code, throttle_ms = create(second, 5)
    assert (code, throttle_ms > 370_000) == (0, True)
    for request, version in ((growing, 2), (deletion, 4)):
        response = call(request, version)
        [result] = response.results if version == 2 else response.responses
        assert (result.error_code, response.throttle_time_ms > 400_000) == (0, True)
    # Nor is a topic refused that is created since somebody asks for it.
    response = call(MetadataRequest(topics=[MetadataRequestTopic(name=first)]), 12)
    assert (response.topics[0].error_code, response.throttle_time_ms > 400_000) == (0, True)


def test_a_real_producer_and_a_real_consumer_are_slowed_down(
    broker: Broker, admin: Client, limit: Callable[..., None], name: str
) -> None:
    admin.create(name)
    rate, records, size = 100_000, 120, 10_000
    limit(producer_byte_rate=rate, consumer_byte_rate=rate)
    servers = {"bootstrap.servers": ":".join(map(str, broker.address)), "client.id": name}
    throttled: list[float] = []
    delivered: list[Any] = []
    producer = Producer(
        {
            **servers,
            "linger.ms": 0,
            "batch.size": 20_000,
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    begun = time.monotonic()
    for _ in range(records):
        producer.produce(name, b"x" * size, on_delivery=lambda error, _message: delivered.append(error))
    assert producer.flush(60) == 0
    # All but what ten windows allow, and the last request, took its time.
    least_s = (records * size - 10 * rate - 100_000) / rate
    assert time.monotonic() - begun >= least_s
    assert delivered == [None] * records
    assert throttled
    throttled.clear()
    consumer = Consumer(
        {**servers, "group.id": name, "throttle_cb": lambda event: throttled.append(event.throttle_time)}
    )
    consumer.assign([TopicPartition(name, 0, 0)])
    found = 0
    while found < records:
        found += len(consumer.consume(records, timeout=1))
    consumer.close()
    assert throttled
