"""ShareFetch and ShareAcknowledge by bytes: acquiring, acknowledging, and who gets what (KIP-932)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from korvet.errors import ErrorCode
from korvet.share.types import ACCEPT, GAP, REJECT, RELEASE, RENEW
from tests.handlers.configs import GROUP, change
from tests.handlers.formats import BOTH_FORMATS, ONLY_BATCH
from tests.support.broker import Broker
from tests.support.domain import Domain, domain
from tests.support.share_consumer import FOREVER_MS, Ack, Delivered, Place, ShareConsumer
from tests.support.topic_client import Client
from tests.support.transactions import TransactionalProducer

pytestmark = BOTH_FORMATS

EXACT = {"share_acquire_mode": 1}


@pytest.fixture
def view(broker_redis: str) -> Iterator[Domain]:
    with domain(broker_redis) as made:
        yield made


def begun(client: Client, topic: str, *partitions: int, version: int = 2) -> ShareConsumer:
    """Return a member of a new group that has begun at the ends of partitions of a new topic."""
    topic_id = client.create(topic, max(partitions, default=0) + 1)
    consumer = ShareConsumer(client, topic, topic, version=version).on(topic_id, *partitions)
    assert consumer.poll() == []
    return consumer


def other(consumer: ShareConsumer, client: Client) -> ShareConsumer:
    """Return another member of the group, of the same partitions."""
    found = ShareConsumer(client, consumer.group, consumer.group)
    found.wanted = consumer.wanted
    return found


@pytest.mark.parametrize("version", [1, 2])
def test_records_are_acquired_acknowledged_and_not_delivered_again(
    client: Client, topic: str, version: int
) -> None:
    consumer = begun(client, topic, version=version)
    first = client.append(topic, b"1", b"2", b"3")
    found = consumer.poll(FOREVER_MS)
    assert [(each.value, each.deliveries, each.offset) for each in found] == [
        (b"1", 1, first),
        (b"2", 1, first + 1),
        (b"3", 1, first + 2),
    ]
    consumer.accept(found)
    assert consumer.poll() == []


def test_each_record_goes_to_one_member(two_clients: tuple[Client, Client], topic: str) -> None:
    at, elsewhere = two_clients
    one = begun(at, topic)
    two = other(one, elsewhere)
    client = at
    client.append(topic, *(b"%d" % number for number in range(10)))
    assert one.values(max_records=4, **EXACT) == [b"0", b"1", b"2", b"3"]
    assert two.values(max_records=5, **EXACT) == [b"4", b"5", b"6", b"7", b"8"]
    assert one.values(max_records=4, **EXACT) == [b"9"]
    assert two.values() == []


@ONLY_BATCH
def test_a_batch_is_acquired_whole_unless_the_limit_is_exact(client: Client, topic: str) -> None:
    consumer = begun(client, topic)
    client.append(topic, b"1", b"2", b"3")
    client.append(topic, b"4", b"5", b"6")
    assert consumer.values(max_records=2) == [b"1", b"2", b"3"]
    assert consumer.values(max_records=2, **EXACT) == [b"4", b"5"]
    assert consumer.values(max_records=2, **EXACT) == [b"6"]


def test_what_is_released_wakes_a_member_of_another_worker(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    at, elsewhere = two_clients
    one = begun(at, topic)
    two = other(one, elsewhere)
    at.append(topic, b"1", b"2", b"3")
    found = one.poll()
    assert two.poll() == []
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(two.poll, FOREVER_MS)
        one.accept([found[1]], RELEASE)
        assert [(each.value, each.deliveries) for each in waiting.result()] == [(b"2", 2)]
    one.accept([found[0], found[2]])
    assert one.values() == []


def test_an_append_wakes_a_member_of_another_worker(two_clients: tuple[Client, Client], topic: str) -> None:
    at, elsewhere = two_clients
    one = begun(at, topic)
    two = other(one, elsewhere)
    assert two.poll() == []
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(two.values, FOREVER_MS)
        at.append(topic, b"1")
        assert waiting.result() == [b"1"]


def test_a_record_is_delivered_as_often_as_the_limit_says(client: Client, topic: str) -> None:
    consumer = begun(client, topic)
    client.append(topic, b"1", b"2")
    for count in range(1, 6):
        found = consumer.poll()
        assert [(each.value, each.deliveries) for each in found] == [(b"1", count), (b"2", count)]
        consumer.accept(found, RELEASE)
    assert consumer.poll() == []


def test_what_is_rejected_is_not_delivered_again(client: Client, topic: str) -> None:
    consumer = begun(client, topic)
    client.append(topic, b"1", b"2")
    consumer.accept(consumer.poll()[:1], REJECT)
    client.append(topic, b"3")
    assert consumer.values() == [b"3"]


def test_acknowledgements_come_with_a_fetch_and_are_answered(client: Client, topic: str) -> None:
    consumer = begun(client, topic)
    [place] = consumer.wanted
    first = client.append(topic, b"1", b"2", b"3")
    consumer.poll()
    found = consumer.fetch(acks={place: [Ack(first, first + 2, [ACCEPT, RELEASE, REJECT])]})
    assert (found[place].acknowledge_error_code, found[place].error_code) == (0, 0)
    [each] = found[place].acquired_records
    assert (each.first_offset, each.last_offset, each.delivery_count) == (first + 1, first + 1, 2)
    # Answered though there is nothing to fetch.
    found = consumer.fetch(acks={place: [Ack(first + 1, first + 1)]})
    assert (found[place].acknowledge_error_code, found[place].acquired_records) == (0, [])
    assert bytes(found[place].records) == b""  # clients of 4.2 take no null
    assert consumer.fetch() == {}


def test_records_of_others_cannot_be_acknowledged(two_clients: tuple[Client, Client], topic: str) -> None:
    at, elsewhere = two_clients
    one = begun(at, topic)
    two = other(one, elsewhere)
    [place] = one.wanted
    assert two.poll() == []
    first = at.append(topic, b"1", b"2")
    assert len(one.poll()) == 2
    acks = {place: [Ack(first, first + 1)]}
    assert two.acknowledged(acks) == {place: ErrorCode.INVALID_RECORD_STATE}
    found = two.fetch(acks=acks)
    assert found[place].acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE
    assert one.acknowledged(acks) == {place: 0}
    # They are done with.
    assert one.acknowledged(acks) == {place: ErrorCode.INVALID_RECORD_STATE}


def test_acknowledgements_of_a_partition_are_taken_all_or_none(client: Client, topic: str) -> None:
    consumer = begun(client, topic)
    [place] = consumer.wanted
    first = client.append(topic, b"1", b"2")
    consumer.poll()
    assert consumer.acknowledged({place: [Ack(first, first + 2)]}) == {place: ErrorCode.INVALID_RECORD_STATE}
    assert consumer.acknowledged({place: [Ack(first, first + 1)]}) == {place: 0}


@pytest.mark.parametrize(
    "acks",
    [
        [Ack(5, 4)],
        [Ack(0, 1), Ack(1, 2)],
        [Ack(3, 4), Ack(0, 1)],
        [Ack(0, 2, [ACCEPT, ACCEPT])],
        [Ack(0, 2, [])],
        [Ack(0, 0, [5])],
        [Ack(0, 0, [-1])],
        [Ack(-1, 0)],
        [Ack(0, 0, [RENEW])],
    ],
)
def test_acknowledgements_that_cannot_be_are_refused(client: Client, topic: str, acks: list[Ack]) -> None:
    consumer = begun(client, topic)
    [place] = consumer.wanted
    assert consumer.acknowledged({place: acks}) == {place: ErrorCode.INVALID_REQUEST}
    assert consumer.fetch(acks={place: acks})[place].acknowledge_error_code == ErrorCode.INVALID_REQUEST


def test_a_gap_is_done_with(client: Client, topic: str) -> None:
    consumer = begun(client, topic)
    client.append(topic, b"1")
    consumer.accept(consumer.poll(), GAP)
    assert consumer.poll() == []


def test_a_lock_is_renewed_by_a_request_that_fetches_nothing(client: Client, topic: str) -> None:
    consumer = begun(client, topic)
    [place] = consumer.wanted
    first = client.append(topic, b"1")
    consumer.poll()
    client.append(topic, b"2")
    renewal = {place: [Ack(first, first, [RENEW])]}
    nothing = {"max_bytes": 0, "min_bytes": 0, "max_records": 0}
    found = consumer.fetch(acks=renewal, is_renew_ack=True, **nothing)
    assert (found[place].acknowledge_error_code, found[place].acquired_records) == (0, [])
    assert consumer.acknowledged(renewal, is_renew_ack=True) == {place: 0}
    consumer.accept([Delivered(b"1", 1, first, place)])
    assert consumer.values() == [b"2"]


@pytest.mark.parametrize("name", ["max_wait_ms", "max_bytes", "min_bytes", "max_records"])
def test_a_renewal_that_would_fetch_is_refused(client: Client, topic: str, name: str) -> None:
    consumer = begun(client, topic)
    [place] = consumer.wanted
    fields = {"max_wait_ms": 0, "max_bytes": 0, "min_bytes": 0, "max_records": 0} | {name: 1}
    request = consumer.request(acks={place: [Ack(0, 0, [RENEW])]}, is_renew_ack=True)
    for field, value in fields.items():
        setattr(request, field, value)
    assert client.call(request, 2).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("limit", [{"max_records": 0}, {"max_bytes": 0}])
def test_who_wants_nothing_gets_nothing_at_once(client: Client, topic: str, limit: dict[str, int]) -> None:
    consumer = begun(client, topic)
    client.append(topic, b"1")
    assert consumer.poll(FOREVER_MS, None, **limit) == []
    assert consumer.values() == [b"1"]


def test_partitions_with_nothing_are_not_answered(client: Client, topic: str) -> None:
    consumer = begun(client, topic, 0, 1, 2)
    client.append(topic, b"1", partition=1)
    found = consumer.fetch(FOREVER_MS)
    assert found.keys() == {Place(consumer.wanted[0].topic_id, 1)}


def test_all_partitions_of_a_session_get_their_turn(client: Client, topic: str) -> None:
    consumer = begun(client, topic, 0, 1, 2)
    for size in (1, 8):
        for partition in range(3):
            client.append(topic, *[b"%d" % partition] * size, partition=partition)
        if size == 1:
            assert len(consumer.values()) == 3  # and it has learned what records weigh
    found = [consumer.values(max_records=4, **EXACT) for _ in range(6)]
    assert sorted(each[0] or b"" for each in found[:3]) == [b"0", b"1", b"2"]
    assert sum(map(len, found)) == 24


def test_a_partition_that_is_forgotten_is_fetched_no_more(client: Client, topic: str) -> None:
    consumer = begun(client, topic, 0, 1)
    topic_id = consumer.wanted[0].topic_id
    consumer.on(topic_id, 1)
    assert consumer.poll() == []
    client.append(topic, b"1", partition=0)
    client.append(topic, b"2", partition=1)
    assert consumer.values() == [b"2"]
    consumer.on(topic_id, 0, 1)
    assert consumer.values() == [b"1"]


def test_small_answers_are_waited_for_until_the_deadline(client: Client, broker: Broker, topic: str) -> None:
    consumer = begun(client, topic)
    client.append(topic, b"1")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(consumer.values, FOREVER_MS, min_bytes=2000)
        with Client(broker.address) as another:
            another.append(topic, b"2" * 3000)
        assert waiting.result() == [b"1", b"2" * 3000]
    client.append(topic, b"3")
    assert consumer.values(10, min_bytes=2000) == [b"3"]


def test_the_limit_of_bytes_stops_at_a_record_and_the_first_one_is_given_at_any_size(
    client: Client, topic: str
) -> None:
    consumer = begun(client, topic)
    for number in range(4):
        client.append(topic, b"%d" % number * 10_000)
    # The first read learns what records weigh.
    assert consumer.values(max_bytes=100) == [b"0" * 10_000]
    assert consumer.values(max_bytes=25_000) == [b"1" * 10_000, b"2" * 10_000]
    assert consumer.values() == [b"3" * 10_000]


def test_a_group_may_begin_with_the_oldest_record(client: Client, topic: str) -> None:
    topic_id = client.create(topic)
    client.append(topic, b"1", b"2")
    change(client, GROUP, topic, {"share.auto.offset.reset": "earliest"})
    assert ShareConsumer(client, topic, topic).on(topic_id).values() == [b"1", b"2"]


def test_a_group_may_begin_some_time_ago(client: Client, topic: str) -> None:
    topic_id = client.create(topic)
    client.append(topic, b"1")  # by its timestamp years ago
    change(client, GROUP, topic, {"share.auto.offset.reset": "by_duration:PT1H"})
    consumer = ShareConsumer(client, topic, topic).on(topic_id)
    assert consumer.values() == []
    client.append(topic, b"2")
    assert consumer.values() == [b"2"]
    again = f"{topic}-again"
    change(client, GROUP, again, {"share.auto.offset.reset": "by_duration:P36500D"})
    assert ShareConsumer(client, again, topic).on(topic_id).values() == [b"1", b"2"]


def test_markers_are_delivered_to_nobody(client: Client, view: Domain, topic: str) -> None:
    consumer = begun(client, topic)
    producer = TransactionalProducer(view, topic)
    producer.write(b"1")
    producer.commit()
    client.append(topic, b"2")
    found = consumer.poll()
    assert [each.value for each in found] == [b"1", b"2"]
    consumer.accept(found)
    assert consumer.poll() == []


def test_a_group_of_committed_records_gets_no_others(client: Client, view: Domain, topic: str) -> None:
    change(client, GROUP, topic, {"share.isolation.level": "read_committed"})
    consumer = begun(client, topic)
    producer = TransactionalProducer(view, topic)
    for value, end in ((b"1", producer.abort), (b"2", producer.commit)):
        producer.write(value)
        assert consumer.poll() == []
        end()
    client.append(topic, b"3")
    found = consumer.poll(FOREVER_MS)
    assert [each.value for each in found] == [b"2", b"3"]
    consumer.accept(found)
    assert consumer.poll() == []


def test_a_topic_that_is_deleted_is_an_error(client: Client, topic: str) -> None:
    consumer = begun(client, topic)
    [place] = consumer.wanted
    client.delete(topic)
    found = consumer.fetch()
    assert found[place].error_code in (
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
    assert consumer.acknowledged({place: [Ack(0, 0)]})[place] in (
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


def test_an_unknown_topic_or_partition_is_an_error_of_its_own(client: Client, topic: str) -> None:
    topic_id = client.create(topic)
    consumer = ShareConsumer(client, topic, topic)
    consumer.wanted = [Place(topic_id, 0), Place(topic_id, 1), Place(b"\x01" * 16, 0)]
    found = consumer.fetch(FOREVER_MS)
    assert {place: each.error_code for place, each in found.items()} == {
        Place(topic_id, 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        Place(b"\x01" * 16, 0): ErrorCode.UNKNOWN_TOPIC_ID,
    }
    client.append(topic, b"1")
    assert consumer.fetch(FOREVER_MS).keys() == set(consumer.wanted)


def test_an_error_that_lasts_does_not_end_the_waits(two_clients: tuple[Client, Client], topic: str) -> None:
    client, elsewhere = two_clients
    one = begun(client, topic)
    [place] = one.wanted
    wrong = Place(b"\x01" * 16, 0)
    one.wanted = [place, wrong]
    assert list(one.fetch(FOREVER_MS)) == [wrong], "the error is new"
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(one.fetch, FOREVER_MS)
        time.sleep(0.2)  # it waits by then, most likely
        elsewhere.append(topic, b"1")
        found = waiting.result()
    assert {each: answer.error_code for each, answer in found.items()} == {
        place: 0,
        wrong: ErrorCode.UNKNOWN_TOPIC_ID,
    }


def test_a_group_that_is_no_share_group_gets_nothing(client: Client, topic: str) -> None:
    topic_id = client.create(topic)
    consumer = ShareConsumer(client, topic, joins=False).on(topic_id)
    assert consumer.send().error_code == ErrorCode.GROUP_ID_NOT_FOUND
