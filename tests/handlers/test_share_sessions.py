"""Share sessions by bytes: epochs, their ends, and what is released with them (KIP-932)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from korvet.errors import ErrorCode
from korvet.share.types import ACCEPT
from tests.handlers.formats import BOTH_FORMATS
from tests.handlers.test_share_fetch import begun, other
from tests.support.broker import Broker
from tests.support.share_consumer import FOREVER_MS, Ack, ShareConsumer
from tests.support.topic_client import Client

pytestmark = BOTH_FORMATS


def test_the_epoch_of_a_session_rises_with_fetches_and_acknowledgements(client: Client, topic: str) -> None:
    consumer = begun(client, topic)
    client.append(topic, b"1")
    consumer.accept(consumer.poll())
    assert consumer.epoch == 3
    assert consumer.poll() == []
    for wrong in (3, 5):
        consumer.epoch = wrong
        assert consumer.send().error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert consumer.acknowledge({}).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    consumer.epoch = 4
    assert consumer.poll() == []


def test_there_is_no_session_before_the_first_request(client: Client, topic: str) -> None:
    topic_id = client.create(topic)
    consumer = ShareConsumer(client, topic, topic).on(topic_id)
    for epoch in (1, -1):
        consumer.epoch = epoch
        assert consumer.send().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert consumer.acknowledge({}).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    consumer.epoch = 0
    assert consumer.acknowledge({}).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert consumer.send(acks={consumer.wanted[0]: [Ack(0, 0)]}).error_code == ErrorCode.INVALID_REQUEST
    assert consumer.poll() == []


def test_a_session_is_of_one_connection(client: Client, broker: Broker, topic: str) -> None:
    consumer = begun(client, topic)
    with Client(broker.address) as another:
        consumer.client = another
        assert consumer.send().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_session_that_begins_again_keeps_what_is_acquired(client: Client, topic: str) -> None:
    consumer = begun(client, topic)
    client.append(topic, b"1")
    found = consumer.poll()
    consumer.epoch = 0
    assert consumer.poll() == []
    consumer.accept(found)


@pytest.mark.parametrize("by", ["fetch", "acknowledge"])
def test_the_last_request_acknowledges_and_releases_the_rest(
    two_clients: tuple[Client, Client], topic: str, by: str
) -> None:
    at, elsewhere = two_clients
    one = begun(at, topic)
    two = other(one, elsewhere)
    [place] = one.wanted
    first = at.append(topic, b"1", b"2", b"3")
    assert len(one.poll()) == 3
    assert two.poll() == []
    acks = {place: [Ack(first + 1, first + 1, [ACCEPT])]}
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(two.poll, FOREVER_MS)
        one.epoch = -1
        if by == "fetch":
            found = one.fetch(FOREVER_MS, acks=acks)
            assert (found[place].acknowledge_error_code, found[place].acquired_records) == (0, [])
        else:
            assert one.acknowledged(acks) == {place: 0}
        assert [(each.value, each.deliveries) for each in waiting.result()] == [(b"1", 2), (b"3", 2)]
    one.epoch = 1
    assert one.send().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_what_a_member_has_is_released_when_its_connection_ends(
    client: Client, broker: Broker, topic: str
) -> None:
    one = begun(client, topic)
    assert one.poll() == []
    with Client(broker.address) as another:
        two = other(one, another)
        client.append(topic, b"1")
        assert two.values(FOREVER_MS) == [b"1"]
        assert one.poll() == []
    assert [(each.value, each.deliveries) for each in one.poll(FOREVER_MS)] == [(b"1", 2)]


def test_a_member_that_has_gone_while_it_waited_acquires_nothing(
    client: Client, broker: Broker, topic: str
) -> None:
    one = begun(client, topic)
    with Client(broker.address) as another:
        two = other(one, another)
        assert two.poll() == []
        another.send(two.request(2_000), 2)
    client.append(topic, b"1")
    found = one.poll(FOREVER_MS)
    assert [(each.value, each.deliveries) for each in found] == [(b"1", 1)]


@pytest.mark.parametrize("member", ["", "m" * 37])
def test_a_member_without_an_id_is_refused(client: Client, topic: str, member: str) -> None:
    consumer = begun(client, topic)
    consumer.id = member
    assert consumer.send().error_code == ErrorCode.INVALID_REQUEST
    assert consumer.acknowledge({}).error_code == ErrorCode.INVALID_REQUEST


def test_a_partition_that_is_named_twice_is_refused(client: Client, topic: str) -> None:
    consumer = begun(client, topic)
    request = consumer.request(acks={consumer.wanted[0]: [Ack(0, 0)]})
    request.topics += request.topics
    assert client.call(request, 2).error_code == ErrorCode.INVALID_REQUEST


def test_a_connection_has_no_more_than_some_sessions(client: Client, topic: str) -> None:
    first = begun(client, topic)
    client.append(topic, b"1")
    assert first.values() == [b"1"]
    for _ in range(10):
        other(first, client).poll()
    # The one that was used longest ago has ended, and what it had is released.
    assert first.send().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
