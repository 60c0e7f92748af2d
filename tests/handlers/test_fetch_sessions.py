"""Fetch sessions (KIP-227) at the height of the handler: what an incremental fetch reads and answers.

The rules are those of the core, in core/proto/tests/fetch_session.rs and fetch_flow/sessions.rs.
"""

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
from tests.handlers.rows.records import READ
from tests.handlers.scene import ALICE, ROOT, TOPIC, Scene
from tests.support import redis_servers
from tests.support.fetch_session import FOREVER_MS, Consumer, Place, sessionless

NUMBERS = itertools.count()


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
    result = consumer.fetch(FOREVER_MS)
    assert result.keys() == {Place(name, 2)}
    assert result[Place(name, 2)].high_watermark == offset + 1
    assert consumer.values(Place(name, 2)) == [b"second"]
    assert consumer.fetch() == {}
    assert consumer.id == session


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
        for server in redis_servers.servers_of(self.there.raw):
            server.client_kill_filter(_type="pubsub")

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
    *[st.tuples(st.just(item), PARTITION, st.just(0)) for item in (Model.forget, Model.rewind, Model.cut)],
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

    def result() -> dict[Place, int]:
        return {place: item.error_code for place, item in consumer.fetch().items()}

    assert result() == denied
    assert consumer.id
    served.allow(READ, TOPIC, "orders")
    assert result() == {places["orders"]: 0, places["secret"]: denied[places["secret"]]}
    served.allow(READ, TOPIC, "secret")
    assert result() == {places["secret"]: 0}
    assert result() == {}
    served.revoke_all()
    for name in ids:
        served.append(b"a", topic=name)
    for _ in range(2):
        assert result() == denied
    assert not any(map(consumer.values, places.values()))
    served.allow(READ, TOPIC, "*")
    assert result() == dict.fromkeys(places.values(), 0)
    assert all(map(consumer.values, places.values()))
    served.close()
