"""Redis' clock is set back an hour, or is ahead and corrected, and meanwhile clients die.

What they had is free within their timeouts, by which others wait: sessions, a lock, a transaction.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.handlers import apis
from tests.jepsen.system import Node
from tests.jvm.share import configure
from tests.support.batches import batch
from tests.support.broker import Broker, korvet_broker
from tests.support.clock import Clock
from tests.support.processes import wait_until
from tests.support.share_consumer import ShareConsumer
from tests.support.topic_client import Client

TIMEOUT_MS = 6_000
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": TIMEOUT_MS,
    "group.consumer.min.heartbeat.interval.ms": 1_000,
    "group.consumer.heartbeat.interval.ms": 1_000,
    "group.share.min.record.lock.duration.ms": 1_000,
    "group.share.record.lock.duration.ms": TIMEOUT_MS,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
}
TOPIC = "orders"


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
def redis(tmp_path: Path, clock: Clock) -> Iterator[Node]:
    with Node(tmp_path / "redis.log", clock) as node:
        yield node


@pytest.fixture
def broker(tmp_path: Path, redis: Node) -> Iterator[Broker]:
    flags = ("--redis-url", f"redis://{redis.address}")
    with korvet_broker(tmp_path, *flags, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address) as connected:
        yield connected


def answered(call: Callable[[], Any], is_right: Callable[[Any], object]) -> Any:
    """Return an answer once it is right: a worker's lease ends when the clock is set, for a moment."""
    result: list[Any] = []

    def holds() -> bool:
        with contextlib.suppress(AssertionError):
            result[:] = [call()]
        return bool(result and is_right(result[0]))

    wait_until(holds, "the answer is right")
    return result[0]


def join_classic_group(client: Client) -> Callable[[], bool]:
    """Join a group as its only member; returns what says whether it is there no more."""
    joining = {
        "group_id": "classic",
        "session_timeout_ms": TIMEOUT_MS,
        "rebalance_timeout_ms": TIMEOUT_MS,
        "protocol_type": "consumer",
        "protocols": [{"name": "range"}],
    }
    answered(lambda: client.ask(apis.JoinGroup, 3, **joining), lambda answer: not answer.error_code)

    def is_gone() -> bool:
        [group] = client.ask(apis.DescribeGroups, 5, groups=["classic"]).groups
        return not group.error_code and not group.members

    return is_gone


def join_consumer_group(client: Client) -> Callable[[], bool]:
    """Do so by the consumer protocol."""
    joining = {
        "group_id": "consumer",
        "member_id": str(uuid.uuid4()),
        "rebalance_timeout_ms": TIMEOUT_MS,
        "subscribed_topic_names": [TOPIC],
        "topic_partitions": [],
    }
    answered(
        lambda: client.ask(apis.ConsumerGroupHeartbeat, 1, **joining), lambda answer: not answer.error_code
    )

    def is_gone() -> bool:
        [group] = client.ask(apis.ConsumerGroupDescribe, 1, group_ids=["consumer"]).groups
        return not group.error_code and not group.members

    return is_gone


def acquire(client: Client, others: Client, topic_id: bytes) -> Callable[[], bool]:
    """Acquire a record of a share group; returns what says whether another member gets it."""
    first = ShareConsumer(client, "share", TOPIC).on(topic_id)
    answered(lambda: first.values(1000), lambda values: values == [b"a"])
    second = ShareConsumer(others, "share", TOPIC).on(topic_id)
    assert second.values() == []

    def is_free() -> bool:
        return second.values(500) == [b"a"]

    return is_free


def open_transaction(client: Client) -> Callable[[], bool]:
    """Open one; returns what says whether it is aborted."""
    asking = {"transactional_id": "tx", "transaction_timeout_ms": TIMEOUT_MS}
    by = answered(lambda: client.ask(apis.InitProducerId, 4, **asking), lambda answer: not answer.error_code)
    adding = {
        "v3_and_below_transactional_id": "tx",
        "v3_and_below_producer_id": by.producer_id,
        "v3_and_below_producer_epoch": by.producer_epoch,
        "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
    }

    def is_added(answer: Any) -> bool:
        [topic] = answer.results_by_topic_v3_and_below
        return not any(result.partition_error_code for result in topic.results_by_partition)

    answered(lambda: client.ask(apis.AddPartitionsToTxn, 3, **adding), is_added)

    def is_aborted() -> bool:
        [state] = client.ask(apis.DescribeTransactions, 0, transactional_ids=["tx"]).transaction_states
        return bool(state.transaction_state == "CompleteAbort")

    return is_aborted


@pytest.mark.parametrize("ahead", [False, True], ids=["set back", "ahead and corrected"])
def test_what_clients_had_that_died_is_free_within_their_timeouts(
    broker: Broker, client: Client, redis: Node, clock: Clock, *, ahead: bool
) -> None:
    def set_clock(seconds: int) -> None:
        before = redis.client.time()[0]
        clock.set(seconds)
        wait_until(lambda: abs(redis.client.time()[0] - before) > 300, "Redis has the other time")

    topic_id = client.create(TOPIC)
    configure(broker.bootstrap, "share", share_auto_offset_reset="earliest")
    client.produce(TOPIC, batch(b"a"))
    with Client(broker.address) as others:
        if ahead:
            set_clock(600)
        is_free = acquire(client, others, topic_id)
        checks = [join_classic_group(client), join_consumer_group(client), open_transaction(client), is_free]
        set_clock(0 if ahead else -3600)
        for check in checks:
            answered(check, bool)
