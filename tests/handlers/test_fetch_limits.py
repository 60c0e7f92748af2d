"""Fetch at the height of its handler: when it waits, and for what; core/proto/tests/fetch_flow has the rules."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.fetch import FetchRequest, FetchResponse
from tests.handlers import apis
from tests.handlers.rows.records import fetched
from tests.handlers.rows.topics import gone
from tests.handlers.scene import Scene
from tests.support import redis_servers
from tests.support.batches import values
from tests.support.proxy import until
from tests.support.topic_client import Client, fetch_request

FOREVER_MS = 60_000
"""Longer than any of these tests takes: what is answered was woken."""


def fetch(scene: Scene, version: int = 18, partition: int = 0, **fields: Any) -> Any:
    with gevent.Timeout(FOREVER_MS / 2000):
        [topic] = scene.ask(FetchRequest, version, **fetched(partition=partition, **fields)).responses
    return topic.partitions[0]


def begun(scene: Scene, version: int = 18, partition: int = 0, **fields: Any) -> Any:
    """Begin to fetch, and return when that waits."""
    waiting = gevent.spawn(fetch, scene, version, partition, max_wait_ms=FOREVER_MS, **fields)
    until(lambda: redis_servers.listeners(scene.raw, f"korvet:orders:{partition}") > 0)
    assert not waiting.ready()
    return waiting


def test_a_fetch_waits_until_min_bytes_are_there(scene: Scene, other: Scene) -> None:
    scene.create("orders")
    other.append(b"x" * 1_000)
    waiting = begun(scene, min_bytes=3_500)
    for _ in range(3):
        other.append(b"x" * 1_000)
    answer = waiting.get()
    assert (len(values(answer.records)), answer.high_watermark) == (4, 4)
    assert len(answer.records) >= 3_500


@pytest.mark.slow
def test_a_waiting_fetch_holds_back_what_is_asked_after_it(
    two_clients: tuple[Client, Client], topic: str, stored: Any
) -> None:
    consumer, producer = two_clients
    producer.create(topic)
    consumer.send(fetch_request(topic, max_wait_ms=FOREVER_MS), 11, correlation_id=1)
    consumer.send(ApiVersionsRequest(), 0, correlation_id=2)
    until(lambda: redis_servers.listeners(stored, f"korvet:{topic}:0") > 0)
    producer.append(topic, b"v")
    [answer] = consumer.receive(FetchResponse, 11, correlation_id=1).responses
    assert values(answer.partitions[0].records) == [b"v"]
    assert consumer.receive_frame()[:4] == b"\0\0\0\2"


@pytest.mark.parametrize("partitions", [2, 130], ids=["by one script", "in steps"])
@pytest.mark.parametrize(
    ("version", "code"), [(12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)]
)
def test_a_fetch_that_waits_is_answered_that_the_topic_is_gone(
    scene: Scene, other: Scene, partitions: int, version: int, code: ErrorCode
) -> None:
    scene.create("orders", partitions)
    waiting = begun(scene, version, partitions - 1, min_bytes=1)
    other.do(apis.DeleteTopics, **gone())
    assert waiting.get().error_code == code
