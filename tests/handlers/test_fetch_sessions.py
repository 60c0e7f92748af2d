"""Fetch sessions (KIP-227) at the height of the handler: what an incremental fetch reads and answers."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import gevent
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.errors import ErrorCode
from korvet.protocol.schema import Message
from korvet.security.session import Session
from tests.handlers import apis
from tests.handlers.rows.records import READ, deleted
from tests.handlers.rows.topics import gone
from tests.handlers.scene import ALICE, ROOT, TOPIC, Scene
from tests.support import ops, processes, redis_servers
from tests.support.broker import Broker
from tests.support.fetch_session import FOREVER_MS, Consumer, Place, sessionless
from tests.support.topic_client import Client, fetch_request

NUMBERS = itertools.count()
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Connection:
    """A connection to a worker whose handlers are served here."""

    def __init__(self, scene: Scene, session: Session | None = None) -> None:
        self.scene = scene
        self.session = session or Session(f"10.0.0.1:{next(NUMBERS)}", principal=ROOT.principal)

    def call(self, request: Message, version: int) -> Any:
        """Serve a request, sooner than a wait of FOREVER_MS ends."""
        with gevent.Timeout(FOREVER_MS / 2000):
            return self.scene.call(request, version, self.session)


class Workers(NamedTuple):
    """Two workers: sessions are on the first one, producers on the other."""

    here: Scene
    there: Scene

    def opened(self, partitions: int = 1, version: int = 12, topic: str = "orders") -> Consumer:
        """Return a consumer at the ends of partitions of a topic, whose session has read them once."""
        consumer = Consumer(Connection(self.here), version)
        for index in range(partitions):
            consumer.seek(topic if version < 13 else self.there.ids[topic], index)
        for _ in range(2):
            consumer.fetch()
        assert consumer.id > 0
        return consumer


@pytest.fixture(params=["record", "batch"])
def storage_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def workers(scene: Scene, other: Scene) -> Workers:
    return Workers(scene, other)


@pytest.mark.parametrize("version", range(7, 19))
def test_an_incremental_fetch_answers_what_is_new(workers: Workers, version: int) -> None:
    there = workers.there
    topic_id = there.create("orders", 3)
    name = "orders" if version < 13 else topic_id
    there.append(b"first", partition=1)
    consumer = workers.opened(3, version)
    assert consumer.values(Place(name, 1)) == [b"first"]
    session = consumer.id
    assert consumer.fetch() == {}
    offset = there.append(b"second", partition=2)
    found = consumer.fetch(FOREVER_MS)
    assert found.keys() == {Place(name, 2)}
    assert found[Place(name, 2)].high_watermark == offset + 1
    assert consumer.values(Place(name, 2)) == [b"second"]
    assert consumer.fetch() == {}
    assert consumer.id == session


@pytest.mark.slow
def test_a_session_ends_with_its_connection(broker: Broker, topic: str) -> None:
    def sessions() -> tuple[float, ...]:
        return tuple(ops.total(broker, f"korvet_fetch_{each}") for each in ("sessions", "session_partitions"))

    processes.wait_until(lambda: sessions() == (0, 0), "the end of all other sessions")
    with Client(broker.address) as client:
        client.create(topic, 2)
        consumer = Consumer(client)
        for partition in range(2):
            consumer.seek(topic, partition)
        consumer.fetch()
        processes.wait_until(lambda: sessions() == (1, 2), "a session of two partitions")
    processes.wait_until(lambda: sessions() == (0, 0), "the end of its session")


@pytest.mark.parametrize("ending", ["a fetch without a session", "a fetch of another one", "no partitions"])
def test_a_session_ends_by_a_full_fetch_or_without_partitions(workers: Workers, ending: str) -> None:
    workers.there.create("orders")
    consumer = workers.opened()
    connection, ended, epoch = consumer.client, consumer.id, consumer.epoch
    if ending == "no partitions":
        consumer.positions.clear()
        assert consumer.fetch(FOREVER_MS) == {}
        assert consumer.id == 0
    else:
        opens = ending == "a fetch of another one"
        answer = connection.call(
            fetch_request("orders", session_id=ended, session_epoch=0 if opens else -1), 12
        )
        assert (answer.error_code, answer.session_id > 0) == (ErrorCode.NONE, opens)
        assert answer.session_id != ended
    answer = connection.call(fetch_request("", topics=[], session_id=ended, session_epoch=epoch + 1), 12)
    assert (answer.error_code, answer.session_id, answer.responses) == (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        0,
        [],
    )


def test_an_error_is_answered_again_until_it_is_over_and_all_others_are_read(workers: Workers) -> None:
    there = workers.there
    there.create("orders")
    consumer = Consumer(Connection(workers.here))
    place, beyond, missing = consumer.seek("orders", 0), consumer.seek("orders", 7), consumer.seek("later", 0)
    for n in range(3):
        there.append(b"%d" % n)
        found = consumer.fetch(FOREVER_MS)
        codes = {at: each.error_code for at, each in found.items()}
        assert codes == {place: ErrorCode.NONE, beyond: UNKNOWN, missing: UNKNOWN}
        assert consumer.values(place) == [b"%d" % n]
    there.create("later")
    assert consumer.fetch()[missing].error_code == ErrorCode.NONE
    assert consumer.fetch().keys() == {beyond}
    consumer.seek("orders", 0, 2**60)
    assert consumer.fetch(FOREVER_MS)[place].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_one_that_always_has_records_does_not_use_up_the_limits(workers: Workers) -> None:
    workers.there.create("orders", 3)
    consumer = Consumer(Connection(workers.here))
    for partition in range(3):
        for _ in range(4):
            workers.there.append(b"x" * 1000, partition=partition)
        consumer.seek("orders", partition)
    served = []
    for _ in range(6):
        found = consumer.fetch(max_bytes=1)
        served += [place.partition for place, each in found.items() if each.records]
    assert served == [0, 1, 2, 0, 1, 2] or served[1:] == [0, 1, 2, 0, 1]


def test_a_log_start_that_moves_is_answered(workers: Workers) -> None:
    workers.there.create("orders")
    offset = [workers.there.append(value) for value in (b"a", b"b")][-1]
    consumer = workers.opened()
    workers.there.do(apis.DeleteRecords, **deleted(offset), timeout_ms=10_000)
    [answer] = consumer.fetch().values()
    assert (answer.log_start_offset, answer.records) == (offset, b"")
    assert consumer.fetch() == {}


@pytest.mark.parametrize("storage_format", ["record"])
def test_an_external_record_is_found_though_others_never_let_a_fetch_wait(workers: Workers) -> None:
    there = workers.there
    there.create("orders", 2)
    consumer = workers.opened(2)
    there.raw.xadd("korvet:orders:0", {"value": "hello"})
    found: list[bytes | None] = []
    while not found:
        there.append(b"busy", partition=1)
        assert Place("orders", 1) in consumer.fetch(1000)
        found = consumer.values(Place("orders", 0))
    assert found == [b"hello"]


def test_a_session_follows_topics_that_are_created_again(workers: Workers) -> None:
    there = workers.there
    old_id = there.create("orders")
    there.append(b"old")
    by_name, by_id = workers.opened(), workers.opened(version=13)
    there.do(apis.DeleteTopics, **gone())
    new_id = there.create("orders")
    old, new = Place(old_id, 0), by_id.seek(new_id, 0)
    [found] = [each for _ in range(3) if old in (each := by_id.fetch())][:1]
    assert found[old].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    by_name.seek("orders", 0)
    offset = there.append(b"new")
    for consumer, place in ((by_name, Place("orders", 0)), (by_id, new)):
        consumer.values(place)
        while place not in consumer.fetch(1000):
            pass
        assert consumer.values(place) == [b"new"]
        assert consumer.known[place][0] == offset + 1


class Model:
    """A session on one worker, producers on another one, and what the session still has to be answered."""

    def __init__(self, workers: Workers, version: int) -> None:
        self.there = workers.there
        self.topic = f"model-{next(NUMBERS)}"
        topic_id = self.there.create(self.topic, 6)
        self.consumer = Consumer(Connection(workers.here), version)
        self.places = [self.consumer.seek(self.topic if version < 13 else topic_id, n) for n in range(6)]
        self.logs: list[list[bytes]] = [[] for _ in self.places]
        self.unread: list[list[bytes]] = [[] for _ in self.places]
        self.sent = 0

    def append(self, partition: int, count: int) -> None:
        self.sent += count
        records = [b"%d " % n * 100 for n in range(self.sent - count, self.sent)]
        self.there.append(*records, topic=self.topic, partition=partition)
        self.logs[partition] += records
        if self.places[partition] in self.consumer.positions:
            self.unread[partition] += records

    def forget(self, partition: int, _more: int) -> None:
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

    def cut(self, _partition: int, _more: int) -> None:
        """End all subscriptions: what is appended before there are others is announced to nobody."""
        for each in redis_servers.servers_of(self.there.raw):
            each.client_kill_filter(_type="pubsub")

    def finish(self) -> None:
        """Read everything that there is, and compare with fetches without a session."""
        while any(self.unread):
            self.fetch(1 << 20, 1 << 20)
        self.consumer.fetch()
        for place in self.consumer.positions:
            bounds = sessionless(Connection(self.there), place, self.consumer.version)
            assert not bounds.error_code
            assert self.consumer.known[place] == (bounds.high_watermark, bounds.log_start_offset)


PARTITION = st.integers(0, 5)
BYTES = st.sampled_from([1, 3000, 1 << 20])
OPERATIONS = st.one_of(
    *[st.tuples(st.just(Model.append), PARTITION, st.integers(1, 3))] * 3,
    *[st.tuples(st.just(each), PARTITION, st.just(0)) for each in (Model.forget, Model.rewind, Model.cut)],
    *[st.tuples(st.just(Model.fetch), BYTES, BYTES)] * 3,
)


@settings(suppress_health_check=list(HealthCheck))
@given(operations=st.lists(OPERATIONS, max_size=30), version=st.sampled_from([12, 13]))
def test_a_session_reads_what_full_fetches_do(workers: Workers, operations: list[Any], version: int) -> None:
    """Each fetch may wait for longer than this test: what is there is found, in order, once, and nothing else is."""
    model = Model(workers, version)
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
    consumer = Consumer(Connection(served, ALICE), version)
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
