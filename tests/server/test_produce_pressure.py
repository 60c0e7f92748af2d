"""Produce by bytes where Redis nears its maxmemory: throttled, then refused, in every version; and nobody else is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from korvet.admin.client import AdminClient
from korvet.admin.types import Resource, settled
from korvet.errors import ErrorCode
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.types import ResourceType
from tests.support import ops, processes, redis_servers
from tests.support.batches import batch, values
from tests.support.broker import Broker, steady_broker
from tests.support.topic_client import Client, produce_request

pytestmark = pytest.mark.slow

REFUSED = ErrorCode.KAFKA_STORAGE_ERROR
BALLAST_BYTES = 50_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with redis_servers.embedded_server() as url:
        yield url


@pytest.fixture(scope="module")
def broker(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker of one worker on it, which throttles for a short time only."""
    flags = ("--redis-url", server, "--set", "throttle.max.ms=20")
    with steady_broker(tmp_path_factory.mktemp("broker"), *flags, workers=1) as running:
        yield running


@pytest.fixture
def stored(server: str) -> Iterator[Any]:
    """Give a plain client on it; its memory has no limit in the end."""
    with redis.Redis.from_url(server) as client:
        client.setrange("ballast", BALLAST_BYTES, "x")
        yield client
        client.config_set("maxmemory", 0)


@pytest.fixture
def client(broker: Broker, stored: Any) -> Iterator[Client]:
    """Give a connection to the broker, whose worker knows of no shortage."""
    with Client(broker.address) as connection:
        connection.create("topic")
        feel(connection, lambda answer: answer.throttle_time_ms == 0)
        yield connection
        stored.config_set("maxmemory", 0)
        connection.delete("topic")


def fill(stored: Any, share: float) -> None:
    stored.config_set("maxmemory", int(stored.info("memory")["used_memory"] / share))


def feel(client: Client, holds: Any, version: int = 8) -> Any:
    """Produce until an answer is as wanted: the worker reads what Redis has left now and then."""
    answers: list[Any] = []

    def answered() -> bool:
        answers.append(client.call(produce_request("topic", batch(b"felt")), version))
        return bool(holds(answers[-1]))

    processes.wait_until(answered, "a producer feels it")
    return answers[-1]


def partition(answer: Any) -> Any:
    [[response]] = [item.partition_responses for item in answer.responses]
    return response


def throttled(answer: Any) -> bool:
    reported: int = answer.throttle_time_ms
    return reported > 0 and partition(answer).error_code == ErrorCode.NONE


def refused(answer: Any) -> bool:
    code: int = partition(answer).error_code
    return code == REFUSED


def test_near_the_limit_an_answer_carries_a_throttle_and_its_records_are_there(
    client: Client, stored: Any
) -> None:
    fill(stored, 0.9)
    for version in (3, 5, 6, 8, 12):
        answer = feel(client, throttled, version)
        assert 0 < answer.throttle_time_ms <= 20
        assert values(client.fetch("topic", partition(answer).base_offset).records) == [b"felt"]


def test_just_before_the_limit_every_partition_that_is_there_is_refused_and_nothing_written(
    client: Client, stored: Any
) -> None:
    fill(stored, 0.97)
    feel(client, refused)
    length = stored.xlen("korvet:topic:0")
    data = [PartitionProduceData(index=index, records=batch()) for index in (0, 7)]
    topics = [TopicProduceData(name=name, partition_data=data) for name in ("topic", "unknown")]
    for version in (3, 8, 12):
        answer = client.call(ProduceRequest(acks=-1, timeout_ms=0, topic_data=topics), version)
        assert answer.throttle_time_ms == 20
        assert [response.name for response in answer.responses] == ["topic", "unknown"]
        [there, *missing] = [
            partition_response
            for topic in answer.responses
            for partition_response in topic.partition_responses
        ]
        assert (there.error_code, there.base_offset) == (REFUSED, -1)
        assert version < 8 or "maxmemory is" in there.error_message
        assert {package.error_code for package in missing} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert stored.xlen("korvet:topic:0") == length


def test_readyz_says_why_producers_are_refused_and_stays_ready(
    broker: Broker, client: Client, stored: Any
) -> None:
    def producers() -> str:
        page = json.loads(ops.page(broker, "/readyz"))
        assert page["ready"] is True
        return str(page["producers"])

    with AdminClient(broker.bootstrap) as admin:
        all_brokers = Resource(ResourceType.BROKER, "")
        assert producers() == "ok"
        for name, value, reason in (
            ("min.insync.replicas", "3", "acks=all needs 2 replicas, and Redis has 0 in sync"),
            ("memory.refuse.percent", "20", f"bytes in memory, and its maxmemory is {4 * BALLAST_BYTES}"),
        ):
            stored.config_set("maxmemory", 4 * BALLAST_BYTES)
            throttle = {"memory.throttle.percent": "10"} if "percent" in name else {}
            settled(admin.configs.alter({all_brokers: {name: value, **throttle}}))
            said = producers()
            assert said.startswith("refused: ")
            assert said.endswith(reason)
            settled(admin.configs.alter({all_brokers: dict.fromkeys((name, *throttle))}))
            assert producers() == "ok"


def test_consumers_and_topics_go_on_while_producers_are_refused(client: Client, stored: Any) -> None:
    first = client.append("topic", b"before")
    fill(stored, 0.97)
    feel(client, refused)
    client.create("another")
    client.delete("another")
    assert values(client.fetch("topic", first).records)[0] == b"before"


def test_redis_s_own_refusal_is_the_same_error_is_counted_and_reported_once(
    client: Client, broker: Broker, stored: Any
) -> None:
    counted = ops.total(broker, 'korvet_produce_errors_total{error="KAFKA_STORAGE_ERROR"}')
    before = broker.log().count("appends fail")
    # Its worker has found no limit a moment ago, so the first that know of it are those whom Redis itself refuses.
    stored.config_set("maxmemory", 1)
    answers = [client.call(produce_request("topic", batch(b"late")), 8) for _ in range(20)]
    assert [partition(answer).error_code for answer in answers] == [REFUSED] * 20
    assert all(answer.throttle_time_ms == 20 for answer in answers)
    assert "OOM" in partition(answers[0]).error_message
    assert "maxmemory is 1:" in partition(answers[-1]).error_message
    assert broker.log().count("appends fail") == before + 1
    metric = 'korvet_produce_errors_total{error="KAFKA_STORAGE_ERROR"}'
    processes.wait_until(lambda: ops.total(broker, metric) >= counted + 20, "every batch is counted")
