"""confluent-kafka's share consumer (KIP-932), and plain redis-py workers that share a group with it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from confluent_kafka import AcknowledgeType, Message, ShareConsumer

from tests.jvm.share import configure, send
from tests.support import reading, redis_servers, share_consumer
from tests.support.broker import Broker, korvet_broker
from tests.support.processes import WAIT_SECONDS_MAX
from tests.support.records import topic_name
from tests.support.topic_client import Client

VALUES = [f"v{number:03}" for number in range(100)]
LOCK_MS = 2000
SETTINGS = (
    f"group.share.min.record.lock.duration.ms={LOCK_MS}",
    f"group.share.record.lock.duration.ms={LOCK_MS}",
)
Decide: TypeAlias = Callable[[str, int], AcknowledgeType]
"""How a record is acknowledged, by its value and delivery count."""


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker with short locks."""
    settings = (*SETTINGS, "storage.format.topics=dense*=batch")
    flags = [word for setting in settings for word in ("--set", setting)]
    with korvet_broker(tmp_path_factory.mktemp("broker"), *flags) as running:
        yield running


@pytest.fixture(params=["plain", "dense"])
def topic(request: pytest.FixtureRequest, sharing: Broker) -> str:
    """Give a topic of one partition, of either format, whose name is a group's too that begins at its start."""
    return new_topic(sharing, f"{request.param}-share")


def new_topic(broker: Broker, prefix: str) -> str:
    name = topic_name(prefix)
    reading.create_topic(broker.bootstrap, name)
    configure(broker.bootstrap, name, share_auto_offset_reset="earliest")
    return name


@contextlib.contextmanager
def member(broker: Broker, topic: str, mode: str = "explicit") -> Iterator[ShareConsumer]:
    """Run a member of the group that has the name of the topic."""
    config = {"bootstrap.servers": broker.bootstrap, "group.id": topic, "share.acknowledgement.mode": mode}
    running = ShareConsumer(config)
    try:
        running.subscribe([topic])
        yield running
    finally:
        running.close()


def poll(consumer: ShareConsumer, seconds: float = 0.2) -> list[Message]:
    came = list(consumer.poll(seconds))
    assert [record.error() for record in came if record.error()] == []
    return came


def seen(message: Message) -> tuple[str, int]:
    return bytes(message.value() or b"").decode(), message.delivery_count() or 0


def work(consumer: ShareConsumer, count: int, decide: Decide) -> list[tuple[str, int]]:
    """Acknowledge records until `count` have come; returns them."""
    done: list[tuple[str, int]] = []
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while len(done) < count:
        assert time.monotonic() < deadline, f"{len(done)} of {count}: {done}"
        for message in poll(consumer):
            done.append(seen(message))
            consumer.acknowledge(message, decide(*done[-1]))
        assert set(consumer.commit_sync().values()) <= {None}
    return done


def accept(_value: str, _count: int) -> AcknowledgeType:
    return AcknowledgeType.ACCEPT


def test_records_are_accepted_released_and_rejected(sharing: Broker, topic: str) -> None:
    released, rejected = VALUES[::10], VALUES[5::10]

    def decide(value: str, count: int) -> AcknowledgeType:
        if value in rejected:
            return AcknowledgeType.REJECT
        return AcknowledgeType.RELEASE if value in released and count < 3 else AcknowledgeType.ACCEPT

    send(sharing.bootstrap, topic, VALUES)
    wanted = [*((value, 1) for value in VALUES), *((value, count) for value in released for count in (2, 3))]
    with member(sharing, topic) as one:
        assert sorted(work(one, len(wanted), decide)) == sorted(wanted)
        send(sharing.bootstrap, topic, ["next"])
        assert work(one, 1, accept) == [("next", 1)]


def test_the_next_poll_accepts_in_implicit_mode(sharing: Broker, topic: str) -> None:
    send(sharing.bootstrap, topic, VALUES)
    got: list[tuple[str, int]] = []
    with member(sharing, topic, "implicit") as one, member(sharing, topic, "implicit") as two:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while len(got) < len(VALUES) + 1:
            assert time.monotonic() < deadline, got
            got += [seen(item) for consumer in (one, two) for item in poll(consumer)]
            if len(got) == len(VALUES):
                send(sharing.bootstrap, topic, ["next"])
        one.commit_sync()
        two.commit_sync()
    assert sorted(got) == [("next", 1), *((value, 1) for value in VALUES)]


@pytest.fixture
def stored(sharing: Broker) -> Iterator[Any]:
    """Give a plain redis-py client on the broker's Redis."""
    with redis_servers.connected(sharing.redis_url) as client:
        yield client


def test_a_redis_worker_and_a_share_consumer_have_one_queue(sharing: Broker, stored: Any) -> None:
    topic = new_topic(sharing, "plain-queue")
    stream = f"korvet:{topic}:0"
    send(sharing.bootstrap, topic, VALUES)
    with member(sharing, topic) as one:
        mine = [value for value, _ in work(one, 1, accept)]
        send(sharing.bootstrap, topic, [f"later {value}" for value in VALUES])
        theirs: list[str] = []
        while len(mine) + len(theirs) < 2 * len(VALUES):
            for _, entries in stored.xreadgroup(topic, "worker", {stream: ">"}, count=10):
                theirs += [fields[b"value"].decode() for _, fields in entries]
                assert stored.xack(stream, topic, *(entry_id for entry_id, _ in entries)) == len(entries)
            for message in poll(one):
                mine.append(seen(message)[0])
                one.acknowledge(message)
            assert set(one.commit_sync().values()) <= {None}
    assert sorted(mine + theirs) == sorted([*VALUES, *(f"later {value}" for value in VALUES)])
    assert theirs
    assert stored.xpending(stream, topic)["pending"] == 0


def test_a_member_acknowledges_over_any_connection_whichever_worker_serves_it(
    sharing: Broker, topic: str
) -> None:
    # As franz-go does: it fetches over one connection and acknowledges over another.
    send(sharing.bootstrap, topic, VALUES)
    with contextlib.ExitStack() as clients:
        first, *others = (clients.enter_context(Client(sharing.address)) for _ in range(9))
        one = share_consumer.ShareConsumer(first, topic, topic).on(first.described(topic).topic_id)
        done: list[bytes | None] = []
        for client in others:
            one.client = first
            records = one.poll(max_records=10, share_acquire_mode=1)
            one.client = client
            one.accept(records)
            done += [record.value for record in records if record.deliveries == 1]
        assert done == [value.encode() for value in VALUES[: 10 * len(others)]]
