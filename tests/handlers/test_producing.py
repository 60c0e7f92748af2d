"""Produce at the height of its handler: appends beside refusals, limits, and acks=0."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.handlers.registry import Handler
from korvet.log.producers import new_producer_id
from korvet.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from korvet.protocol.messages.produce import ProduceResponse
from korvet.redis.client import Redis
from tests.handlers import apis
from tests.handlers.rows.records import fetched, produced
from tests.handlers.rows.topics import gone
from tests.handlers.scene import Scene
from tests.support.batches import GZIP, MALFORMED, batch, forged, read, values
from tests.support.dispatching import connected, dispatcher
from tests.support.log_bench import LAYOUTS, Layout, configs_of
from tests.support.proxy import proxy, until
from tests.support.topic_client import produce_request
from tests.support.wire_client import WireClient, request_frame


@pytest.fixture
def scene(scene: Scene) -> Scene:
    """Create the topic `orders`, of one empty partition."""
    scene.create("orders")
    return scene


def answered(scene: Scene, records: Any, version: int = 13, **fields: Any) -> Any:
    [topic] = scene.ask(apis.Produce, version, **produced(records, **fields)).responses
    return topic.partition_responses[0]


def read_back(scene: Scene, topic: str = "orders") -> bytes:
    [answer] = scene.do(apis.Fetch, **fetched(topic=topic)).responses
    return bytes(answer.partitions[0].records or b"")


REFUSED = dict.fromkeys(MALFORMED, ErrorCode.INVALID_RECORD) | {
    "a CRC and a field that are wrong": ErrorCode.CORRUPT_MESSAGE,
    "30 MB in 3 kB": ErrorCode.MESSAGE_TOO_LARGE,
}
"""Kafka's answers, but for those that docs/reference/differences.md names."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", MALFORMED)
def test_a_batch_is_taken_only_if_every_client_reads_it_to_its_end(
    scene: Scene, kind: str, layout: Layout
) -> None:
    configs: dict[str, Any] = {name.replace(".", "_"): value for name, value in configs_of(layout).items()}
    scene.create("malformed", **configs)
    assert answered(scene, MALFORMED[kind], topic="malformed").error_code == REFUSED[kind]
    assert read_back(scene, "malformed") == b""


def test_max_message_bytes_is_the_topics_and_counts_what_was_sent(scene: Scene) -> None:
    exact, larger = batch(b"x" * 1000), batch(b"x" * 1001)
    scene.create("small", max_message_bytes=str(len(exact)))
    assert answered(scene, exact, topic="small").error_code == ErrorCode.NONE
    refused = answered(scene, larger, topic="small")
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert refused.error_message == f"a batch of {len(larger)} bytes exceeds max.message.bytes = {len(exact)}"
    # Compressed it fits: the limit is on the batch as it was sent.
    assert answered(scene, batch(b"x" * 100_000, codec=GZIP), topic="small").error_code == ErrorCode.NONE
    at_default = batch(b"x" * (1_048_588 - 75))
    assert 1_048_580 < len(at_default) <= 1_048_588
    assert answered(scene, at_default).error_code == ErrorCode.NONE


def test_the_leader_epoch_of_a_batch_means_nothing_and_its_base_offset_is_0(scene: Scene) -> None:
    assert answered(scene, forged(batch(b"a"), base_offset=777)).error_code == ErrorCode.INVALID_RECORD
    assert answered(scene, forged(batch(b"a", b"b"), partition_leader_epoch=9)).base_offset == 0
    assert [record.offset for record in read(read_back(scene))] == [0, 1]


def test_a_topic_that_another_worker_has_created_again_gets_the_records(redis_url: str, scene: Scene) -> None:
    old_id = scene.ids["orders"]
    answered(scene, batch(b"old"))
    with closing(Scene(redis_url)) as there:
        there.do(apis.DeleteTopics, **gone())
        by_name = answered(scene, batch(b"lost"), 12)
        assert by_name.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        there.create("orders")
        assert answered(scene, batch(b"new"), 12).error_code == ErrorCode.NONE
        assert values(read_back(there)) == [b"new"]
    assert scene.ids["orders"] == old_id
    assert answered(scene, batch(b"by its old id")).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_requests_of_one_connection_are_served_one_after_the_other(redis_url: str, redis: Redis) -> None:
    under_way: list[int] = []
    rest = b""

    def handle(*_: object) -> ListGroupsResponse:
        under_way.append(there.services.appends.core.count)
        client.send_bytes(rest)
        return ListGroupsResponse(groups=[])

    others = dispatcher(redis, {16: Handler(ListGroupsRequest, handle, handle)})
    with closing(Scene(redis_url, authorizer_class_name="")) as there:
        there.create("orders")
        with connected(others, there.sockets) as (_, socket):
            client = WireClient(socket)
            append = request_frame(produce_request("orders", batch(b"a")), 8)
            other = request_frame(ListGroupsRequest(), 4)
            client.send_bytes(append)
            client.receive(ProduceResponse, 8)
            client.send_bytes(append + other + append + other)
            for _ in range(2):
                client.receive(ProduceResponse, 8)
                client.receive(ListGroupsResponse, 4)
            # The rest of a request may come while the one before it is served.
            rest = append[50:]
            client.send_bytes(other + append[:50])
            client.receive(ListGroupsResponse, 4)
            client.receive(ProduceResponse, 8)
        assert values(read_back(there)) == [b"a"] * 4
    assert under_way == [0, 0, 0]


@pytest.mark.embedded
def test_what_has_begun_is_answered_when_a_worker_drains(redis_url: str) -> None:
    with proxy(redis_url) as network, closing(Scene(network.url, authorizer_class_name="")) as there:
        there.create("orders")
        there.append(b"a")
        count = partial(getattr, there.services.appends.core, "count")
        with (
            connected(there.dispatcher, there.sockets) as (drained, socket),
            connected(there.dispatcher, there.sockets) as (_, leaving),
        ):
            client = WireClient(socket)
            network.silence()
            for item in (client, WireClient(leaving)):
                item.send(produce_request("orders", batch(b"b")), 8)
            until(lambda: count() == 2)
            leaving.close()
            drained.drain()
            network.speak()
            [answer] = client.receive(ProduceResponse, 8).responses
            assert answer.partition_responses[0].error_code == ErrorCode.NONE
            assert client.is_closed_by_broker()
        assert (count(), there.sockets.core.count) == (0, 0)
        assert values(read_back(there)) == [b"a", b"b", b"b"]


def test_no_producer_id_is_given_twice() -> None:
    ids = {new_producer_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert all(0 <= producer_id < 2**63 for producer_id in ids)
