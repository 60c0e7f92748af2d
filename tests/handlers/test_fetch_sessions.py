"""Fetch sessions by bytes (KIP-227): what an incremental fetch reads and answers, and who may go on with a session."""

from __future__ import annotations

import itertools
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.errors import ErrorCode
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from korvet.security.session import Session
from tests.handlers.formats import BOTH_FORMATS, ONLY_RECORD
from tests.handlers.rows.records import READ
from tests.handlers.scene import ALICE, TOPIC, Scene
from tests.support import ops, processes, redis_servers
from tests.support.broker import Broker
from tests.support.fetch_session import FOREVER_MS, Consumer, Place, sessionless
from tests.support.topic_client import Client, fetch_request

pytestmark = BOTH_FORMATS


def opened(client: Client, topic: str | bytes, partitions: int = 1, version: int = 12) -> Consumer:
    """Return a consumer at the ends of partitions of a topic, whose session has read them once."""
    consumer = Consumer(client, version)
    for index in range(partitions):
        consumer.seek(topic, index)
    for _ in range(2):
        consumer.fetch()
    assert consumer.id > 0
    return consumer


@pytest.mark.slow
@pytest.mark.parametrize("version", range(7, 19))
def test_an_incremental_fetch_answers_what_is_new(client: Client, topic: str, version: int) -> None:
    topic_id = client.create(topic, 3)
    name = topic if version < 13 else topic_id
    client.append(topic, b"first", partition=1)
    consumer = opened(client, name, 3, version)
    assert consumer.values(Place(name, 1)) == [b"first"]
    session = consumer.id
    assert consumer.fetch() == {}
    offset = client.append(topic, b"second", partition=2)
    found = consumer.fetch(FOREVER_MS)
    assert found.keys() == {Place(name, 2)}
    assert found[Place(name, 2)].high_watermark == offset + 1
    assert consumer.values(Place(name, 2)) == [b"second"]
    assert consumer.fetch() == {}
    assert consumer.id == session


@pytest.mark.slow
def test_who_asks_for_no_session_gets_none(client: Client, topic: str) -> None:
    client.create(topic)
    for session_id in (0, 5):
        answer = client.call(fetch_request(topic, session_id=session_id, session_epoch=-1), 11)
        assert (answer.error_code, answer.session_id) == (ErrorCode.NONE, 0)
    assert client.call(fetch_request(topic, topics=[], session_epoch=0), 11).session_id == 0


def refusal(client: Client, consumer: Consumer, epoch: int | None = None, version: int = 12) -> int:
    """Return the error with which an incremental fetch of a session is refused."""
    epoch = consumer.epoch if epoch is None else epoch
    request = fetch_request("", topics=[], session_id=consumer.id, session_epoch=epoch)
    answer = client.call(request, version)
    assert (answer.session_id, answer.responses) == (0, [])
    code: int = answer.error_code
    return code


@pytest.mark.slow
def test_nobody_else_can_use_or_close_a_session(
    two_clients: tuple[Client, Client], client: Client, topic: str
) -> None:
    """Not on another worker, nor over another connection to the same one: of these three, two have a worker."""
    client.create(topic)
    consumer = opened(client, topic)
    for other in two_clients:
        assert refusal(other, consumer) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        for epoch in (-1, 0):
            other.call(fetch_request(topic, session_id=consumer.id, session_epoch=epoch), 11)
    assert consumer.fetch() == {}


@pytest.mark.slow
def test_a_session_ends_with_its_connection(broker: Broker, topic: str) -> None:
    def sessions() -> tuple[float, ...]:
        return tuple(ops.total(broker, f"korvet_fetch_{each}") for each in ("sessions", "session_partitions"))

    processes.wait_until(lambda: sessions() == (0, 0), "the end of all other sessions")
    with Client(broker.address) as client:
        client.create(topic, 3)
        consumer = opened(client, topic, 3)
        processes.wait_until(lambda: sessions() == (1, 3), "a session of three partitions")
        del consumer.positions[Place(topic, 0)]
        consumer.fetch()
        processes.wait_until(lambda: sessions() == (1, 2), "a session of two partitions")
    processes.wait_until(lambda: sessions() == (0, 0), "the end of its session")


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_full_fetch_closes_the_session_that_it_names(client: Client, topic: str, epoch: int) -> None:
    client.create(topic)
    consumer = opened(client, topic)
    answer = client.call(fetch_request(topic, session_id=consumer.id, session_epoch=epoch), 12)
    assert (answer.session_id > 0) == (epoch == 0)
    assert answer.session_id != consumer.id
    assert refusal(client, consumer) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.slow
def test_partitions_come_and_go(client: Client, topic: str) -> None:
    client.create(topic, 3)
    consumer = opened(client, topic, 2)
    added = consumer.seek(topic, 2)
    assert consumer.fetch().keys() == {added}
    del consumer.positions[Place(topic, 0)]
    for partition in range(3):
        client.append(topic, b"%d" % partition, partition=partition)
    assert consumer.fetch().keys() == {Place(topic, 1), added}
    back = consumer.seek(topic, 0)
    assert consumer.fetch().keys() == {back}
    assert [consumer.values(Place(topic, n)) for n in range(3)] == [[b"0"], [b"1"], [b"2"]]


@pytest.mark.slow
def test_a_session_without_partitions_is_closed(client: Client, topic: str) -> None:
    client.create(topic)
    consumer = opened(client, topic)
    before = Consumer(client)
    before.id, before.epoch = consumer.id, consumer.epoch + 1
    consumer.positions.clear()
    assert consumer.fetch(FOREVER_MS) == {}
    assert consumer.id == 0
    assert refusal(client, before) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.slow
def test_a_seek_is_followed(client: Client, topic: str) -> None:
    client.create(topic)
    offset = client.append(topic, b"a", b"b")
    consumer = opened(client, topic)
    place = consumer.seek(topic, 0, offset)
    consumer.values(place)
    consumer.fetch()
    assert consumer.values(place)[-2:] == [b"a", b"b"]
    consumer.seek(topic, 0, 2**60)
    assert consumer.fetch(FOREVER_MS)[place].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.slow
def test_an_error_is_answered_again_until_it_is_over(client: Client, topic: str) -> None:
    consumer = Consumer(client)
    missing = consumer.seek(topic, 0)
    for _ in range(3):
        found = consumer.fetch(FOREVER_MS)
        assert found[missing].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    client.create(topic)
    assert consumer.fetch()[missing].error_code == ErrorCode.NONE
    assert consumer.fetch() == {}


@pytest.mark.slow
def test_the_others_are_read_beside_one_that_cannot_be(client: Client, topic: str) -> None:
    client.create(topic)
    consumer = Consumer(client)
    place, missing = consumer.seek(topic, 0), consumer.seek(topic, 7)
    for n in range(3):
        client.append(topic, b"%d" % n)
        assert consumer.fetch(FOREVER_MS).keys() == {place, missing}
        assert consumer.values(place) == [b"%d" % n]


@pytest.mark.slow
def test_one_that_always_has_records_does_not_use_up_the_limits(client: Client, topic: str) -> None:
    client.create(topic, 3)
    for partition in range(3):
        for _ in range(4):
            client.append(topic, b"x" * 1000, partition=partition)
    consumer = Consumer(client)
    for partition in range(3):
        consumer.seek(topic, partition)
    served = []
    for _ in range(6):
        found = consumer.fetch(max_bytes=1)
        served += [place.partition for place, each in found.items() if each.records]
    assert served == [0, 1, 2, 0, 1, 2] or served[1:] == [0, 1, 2, 0, 1]


@pytest.mark.slow
def test_a_log_start_that_moves_is_answered(client: Client, topic: str) -> None:
    client.create(topic)
    client.append(topic, b"a")
    offset = client.append(topic, b"b")
    consumer = opened(client, topic)
    asked = [DeleteRecordsPartition(partition_index=0, offset=offset)]
    deletion = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[asked[0]])], timeout_ms=10_000
    )
    [deleted] = client.call(deletion, 2).topics
    assert deleted.partitions[0].error_code == ErrorCode.NONE
    [answer] = consumer.fetch().values()
    assert (answer.log_start_offset, answer.records) == (offset, b"")
    assert consumer.fetch() == {}


class Waiting:
    """An incremental fetch under way in a thread of its own."""

    def __init__(self, consumer: Consumer, **fields: Any) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._answer: Future[Any] = self._pool.submit(consumer.fetch, **{"wait_ms": FOREVER_MS} | fields)

    def answer(self) -> Any:
        found = self._answer.result(40)
        self._pool.shutdown()
        return found


def until_listened_to(stored: redis.Redis, topic: str, partition: int) -> None:
    channel = f"korvet:{topic}:{partition}"
    processes.wait_until(lambda: redis_servers.listeners(stored, channel) > 0, "a worker that listens")


@pytest.mark.slow
def test_a_fetch_that_waits_is_woken_by_any_partition(
    two_clients: tuple[Client, Client], topic: str, stored: redis.Redis
) -> None:
    here, there = two_clients
    there.create(topic, 20)
    consumer = opened(here, topic, 20)
    for producer, partition in ((there, 3), (here, 19), (there, 3), (there, 0)):
        waiting = Waiting(consumer)
        until_listened_to(stored, topic, partition)
        with Client(producer.socket.getpeername()) as another:
            another.append(topic, b"v", partition=partition)
        assert waiting.answer().keys() == {Place(topic, partition)}


@pytest.mark.slow
def test_what_was_appended_while_nobody_listened_is_read(
    two_clients: tuple[Client, Client], topic: str, stored: redis.Redis
) -> None:
    here, there = two_clients
    there.create(topic, 20)
    consumer = opened(here, topic, 20)
    for partition in range(0, 20, 4):
        for each in redis_servers.servers_of(stored):
            each.client_kill_filter(_type="pubsub")
        there.append(topic, b"v", partition=partition)
        assert Place(topic, partition) in consumer.fetch(FOREVER_MS)
        assert consumer.values(Place(topic, partition)) == [b"v"]


@pytest.mark.slow
@ONLY_RECORD
def test_an_external_record_is_found_though_others_never_let_a_fetch_wait(
    client: Client, topic: str, stored: redis.Redis
) -> None:
    client.create(topic, 2)
    consumer = opened(client, topic, 2)
    stored.xadd(f"korvet:{topic}:0", {"value": "hello"})
    found: list[bytes | None] = []
    with Client(client.socket.getpeername()) as producer:
        while not found:
            producer.append(topic, b"busy", partition=1)
            assert Place(topic, 1) in consumer.fetch(1000)
            found = consumer.values(Place(topic, 0))
    assert found == [b"hello"]


@pytest.mark.slow
def test_a_session_follows_topics_that_are_created_again(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    here, there = two_clients
    old_id = there.create(topic)
    there.append(topic, b"old")
    by_name, by_id = opened(here, topic), opened(here, old_id, version=13)
    there.delete(topic)
    new_id = there.create(topic)
    old, new = Place(old_id, 0), by_id.seek(new_id, 0)
    [found] = [each for _ in range(3) if old in (each := by_id.fetch())][:1]
    assert found[old].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    by_name.seek(topic, 0)
    offset = there.append(topic, b"new")
    for consumer, place in ((by_name, Place(topic, 0)), (by_id, new)):
        consumer.values(place)
        while place not in consumer.fetch(1000):
            pass
        assert consumer.values(place) == [b"new"]
        assert consumer.known[place][0] == offset + 1


class Model:
    """A session on one worker, producers on another one, and what the session still has to be answered."""

    def __init__(self, here: Client, there: Client, version: int) -> None:
        self.there = there
        topic = f"model-{next(NUMBERS)}"
        topic_id = there.create(topic, 6)
        self.topic = topic
        self.consumer = Consumer(here, version)
        self.places = [self.consumer.seek(topic if version < 13 else topic_id, n) for n in range(6)]
        self.logs: list[list[bytes]] = [[] for _ in self.places]
        self.unread: list[list[bytes]] = [[] for _ in self.places]
        self.sent = 0

    def append(self, partition: int, count: int) -> None:
        """Append records."""
        self.sent += count
        records = [b"%d " % n * 100 for n in range(self.sent - count, self.sent)]
        self.there.append(self.topic, *records, partition=partition)
        self.logs[partition] += records
        if self.places[partition] in self.consumer.positions:
            self.unread[partition] += records

    def forget(self, partition: int, _more: int) -> None:
        """Take a partition out of the session."""
        if len(self.consumer.positions) > 1:
            self.consumer.positions.pop(self.places[partition], None)
            self.unread[partition] = []

    def rewind(self, partition: int, _more: int) -> None:
        """Take a partition into the session again, or read it once more."""
        place = self.places[partition]
        self.consumer.seek(place.topic, partition, 0)
        self.unread[partition] = list(self.logs[partition])

    def fetch(self, max_bytes: int, partition_max_bytes: int) -> None:
        """Fetch if there is anything to be read."""
        if any(self.unread):
            self.consumer.fetch(FOREVER_MS, max_bytes=max_bytes, partition_max_bytes=partition_max_bytes)
        for partition, expected in enumerate(self.unread):
            got = self.consumer.values(self.places[partition])
            assert got == expected[: len(got)]
            self.unread[partition] = expected[len(got) :]

    def finish(self) -> None:
        """Read everything that there is, and compare with fetches without a session."""
        while any(self.unread):
            self.fetch(1 << 20, 1 << 20)
        self.consumer.fetch()
        for place in self.consumer.positions:
            bounds = sessionless(self.there, place, self.consumer.version)
            assert not bounds.error_code
            assert self.consumer.known[place] == (bounds.high_watermark, bounds.log_start_offset)


NUMBERS = itertools.count()
PARTITION = st.integers(0, 5)
BYTES = st.sampled_from([1, 3000, 1 << 20])
OPERATIONS = st.one_of(
    *[st.tuples(st.just(Model.append), PARTITION, st.integers(1, 3))] * 3,
    *[st.tuples(st.just(each), PARTITION, st.just(0)) for each in (Model.forget, Model.rewind)],
    *[st.tuples(st.just(Model.fetch), BYTES, BYTES)] * 3,
)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(operations=st.lists(OPERATIONS, max_size=30), version=st.sampled_from([12, 13]))
def test_a_session_reads_what_full_fetches_do(
    two_clients: tuple[Client, Client], operations: list[Any], version: int
) -> None:
    """Each fetch may wait for longer than this test: what is there is found, in order, once, and nothing else is."""
    model = Model(*two_clients, version)
    for operation, first, second in operations:
        operation(model, first, second)
    model.finish()


@pytest.mark.parametrize("version", [12, 18])
def test_a_right_that_is_taken_away_is_missed_by_the_next_fetch_of_a_session(
    redis_url: str, version: int
) -> None:
    """Also for partitions that no request names any more, and it counts at once when it is given again."""
    served = Scene(redis_url)
    ids = {name: served.create(name) for name in ("orders", "secret")}
    consumer = Consumer(_Calls(served), version)  # type: ignore[arg-type]  # it calls as a client does
    places = {name: consumer.seek(ids[name] if version > 12 else name, 0) for name in ids}
    denied = dict.fromkeys(places.values(), ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def found() -> dict[Place, int]:
        return {place: each.error_code for place, each in consumer.fetch().items()}

    assert found() == denied
    assert consumer.id
    served.allow(READ, TOPIC, "orders")
    assert found() == {places["orders"]: 0, places["secret"]: denied[places["secret"]]}
    served.allow(READ, TOPIC, "secret")
    assert found() == {places["secret"]: 0}
    assert found() == {}
    served.revoke_all()
    for name in ids:
        served.append(b"a", topic=name)
    for _ in range(2):
        assert found() == denied
    assert not any(map(consumer.values, places.values()))
    served.allow(READ, TOPIC, "*")
    assert found() == dict.fromkeys(places.values(), 0)
    assert all(map(consumer.values, places.values()))
    served.close()


class _Calls:
    """The handlers of a worker, called as a client is."""

    def __init__(self, served: Scene, session: Session = ALICE) -> None:
        self.call = partial(served.call, session=session)
