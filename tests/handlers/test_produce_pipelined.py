"""Produce requests that are sent before the ones before them are answered: order, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from korvet.log.appends import APPEND_SCRIPTS
from korvet.protocol.messages.list_groups import ListGroupsRequest
from korvet.protocol.messages.produce import ProduceRequest, ProduceResponse
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
    client.send_bytes(b"".join(request_frame(item, 8, number) for number, item in enumerate(requests)))
    return [client.receive(ProduceResponse, 8, number) for number in range(len(requests))]


def codes(responses: list[ProduceResponse]) -> list[int]:
    return [
        partition_response.error_code
        for answer in responses
        for topic in answer.responses
        for partition_response in topic.partition_responses
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


def external(client: Client, stored: redis.Redis, topic: str) -> None:
    """Put an entry after the newest that no offset names."""
    newest: Any = stored.xrevrange(f"korvet:{topic}:0", count=1)
    ms = int(newest[0][0].split(b"-")[0])
    stored.xadd(f"korvet:{topic}:0", {"value": "external"}, id=f"{ms}-{FAR_SEQUENCE}")


def created_again(client: Client, stored: redis.Redis, topic: str) -> None:
    """Have another worker delete the topic, and create it."""
    client.delete(topic)
    client.create(topic)


OBSTACLES: dict[str, Callable[[Client, redis.Redis, str], object]] = {
    "an external entry": external,
    "no scripts": lambda _client, stored, _topic: stored.script_flush(),
    "a topic that was created again": created_again,
}


@pytest.mark.parametrize("producer_id", [-1, 77])
@pytest.mark.parametrize("storage_format", ["record", "batch"])
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_requests_stay_in_order_whatever_is_in_their_way(
    two_clients: tuple[Client, Client],
    topic: str,
    stored: redis.Redis,
    obstacle: str,
    storage_format: str,
    producer_id: int,
) -> None:
    here, there = two_clients
    here.create(topic, storage_format=storage_format)
    here.append(topic, b"before")
    OBSTACLES[obstacle](there, stored, topic)
    assert codes(pipelined(here, *numbered(topic, producer_id))) == [0] * REQUESTS
    result = [value for value in values(there.fetch(topic).records) if value not in (b"before", b"external")]
    assert result == [b"%d" % number for number in range(REQUESTS)]


def test_a_connection_loads_the_scripts_of_appends_before_any_is_sent(
    client: Client, stored: redis.Redis
) -> None:
    server = server_of(stored, "korvet:orders:0")
    server.script_flush()
    server.client_kill_filter(_type="normal", skipme=True)
    shas = [item.sha for item in APPEND_SCRIPTS]

    def is_loaded() -> bool:
        client.call(ListGroupsRequest(), 0)  # by this the worker finds that its connection is gone
        return all(server.script_exists(*shas))

    wait_until(is_loaded, "a worker connects again")
