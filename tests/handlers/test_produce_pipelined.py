"""Produce requests that are sent before the ones before them are answered: order, whatever happens on the way."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from korvet.errors import ErrorCode
from korvet.log.group_commit import APPEND_SCRIPTS
from korvet.protocol.messages.list_groups import ListGroupsRequest
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.batches import batch, values
from tests.support.processes import wait_until
from tests.support.redis_servers import server_of
from tests.support.topic_client import Client, produce_request
from tests.support.wire_client import request_frame

pytestmark = pytest.mark.slow

REQUESTS = 12
FAR_SEQUENCE = 5000
"""Above what `offset.sequence.bits` leaves room for: no offset names such an entry."""


def pipelined(client: Client, *requests: ProduceRequest) -> list[ProduceResponse]:
    """Send all requests in one piece, so that the broker has the next ones while it serves one."""
    client.send_bytes(b"".join(request_frame(each, 8, number) for number, each in enumerate(requests)))
    return [client.receive(ProduceResponse, 8, number) for number in range(len(requests))]


def codes(responses: list[ProduceResponse]) -> list[int]:
    return [
        each.error_code
        for answer in responses
        for topic in answer.responses
        for each in topic.partition_responses
    ]


def numbered(topic: str, producer_id: int = -1) -> list[ProduceRequest]:
    """Return requests of one record each; a producer id makes them idempotent."""
    return [
        produce_request(
            topic,
            batch(b"%d" % number)
            if producer_id < 0
            else batch(b"%d" % number, producer_id=producer_id, epoch=0, sequence=number),
        )
        for number in range(REQUESTS)
    ]


@pytest.mark.parametrize("producer_id", [-1, 77])
@pytest.mark.parametrize("storage_format", ["record", "batch"])
def test_requests_stay_in_order_where_external_entries_are_in_their_way(
    client: Client, topic: str, stored: redis.Redis, storage_format: str, producer_id: int
) -> None:
    client.create(topic, storage_format=storage_format)
    client.append(topic, b"before")
    newest: Any = stored.xrevrange(f"korvet:{topic}:0", count=1)
    ms = int(newest[0][0].split(b"-")[0])
    stored.xadd(f"korvet:{topic}:0", {"value": "external"}, id=f"{ms}-{FAR_SEQUENCE}")
    assert codes(pipelined(client, *numbered(topic, producer_id))) == [0] * REQUESTS
    found = [each for each in values(client.fetch(topic).records) if each not in (b"before", b"external")]
    assert found == [b"%d" % number for number in range(REQUESTS)]


@pytest.mark.parametrize("producer_id", [-1, 78])
def test_requests_stay_in_order_where_redis_forgot_the_scripts(
    client: Client, topic: str, stored: redis.Redis, producer_id: int
) -> None:
    client.create(topic)
    stored.script_flush()
    assert codes(pipelined(client, *numbered(topic, producer_id))) == [0] * REQUESTS
    assert values(client.fetch(topic).records) == [b"%d" % number for number in range(REQUESTS)]


def test_a_connection_loads_the_scripts_of_appends_before_any_is_sent(
    client: Client, stored: redis.Redis
) -> None:
    server = server_of(stored, "korvet:orders:0")
    server.script_flush()
    server.client_kill_filter(_type="normal", skipme=True)
    shas = [each.sha for each in APPEND_SCRIPTS]

    def is_loaded() -> bool:
        client.call(ListGroupsRequest(), 0)  # by this the worker finds that its connection is gone
        return all(server.script_exists(*shas))

    wait_until(is_loaded, "a worker connects again")


def test_requests_stay_in_order_where_the_topic_was_created_again(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    here.create(topic)
    here.append(topic, b"old")
    there.delete(topic)
    there.create(topic)
    assert codes(pipelined(here, *numbered(topic))) == [0] * REQUESTS
    assert values(there.fetch(topic).records) == [b"%d" % number for number in range(REQUESTS)]


def test_a_partition_named_twice_stays_in_order_with_what_follows(client: Client, topic: str) -> None:
    client.create(topic)
    data = [PartitionProduceData(index=0, records=batch(value)) for value in (b"a", b"b", b"c")]
    twice = ProduceRequest(
        acks=1, timeout_ms=0, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )
    assert codes(pipelined(client, twice, produce_request(topic, batch(b"d")))) == [0] * 4
    assert values(client.fetch(topic).records) == [b"a", b"b", b"c", b"d"]


def test_a_request_without_acks_that_fails_closes_after_the_answers_before_it(
    client: Client, topic: str
) -> None:
    client.create(topic)
    requests = [
        produce_request(topic, batch(b"a")),
        produce_request(topic, batch(b"b"), acks=0),
        produce_request(topic, batch(b"c"), 1, acks=0),  # no such partition
        produce_request(topic, batch(b"d")),  # begun, but an answer would overtake the one that is missing
    ]
    client.send_bytes(b"".join(request_frame(each, 8, number) for number, each in enumerate(requests)))
    assert codes([client.receive(ProduceResponse, 8, 0)]) == [ErrorCode.NONE]
    assert client.is_closed_by_broker()
    with Client(client.socket.getpeername()) as other:
        assert values(other.fetch(topic).records)[:2] == [b"a", b"b"]


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xfb" + bytes(8), b"\0\0\0\x0c" + b"\x03\xe7" + bytes(10)])
def test_garbage_after_a_request_closes_after_its_answer(client: Client, topic: str, garbage: bytes) -> None:
    client.create(topic)
    client.send_bytes(request_frame(produce_request(topic, batch(b"a")), 8, 5) + garbage)
    assert codes([client.receive(ProduceResponse, 8, 5)]) == [ErrorCode.NONE]
    assert client.is_closed_by_broker()
