"""A connection that a request throttles: it is answered, what comes then waits; a drain ends it at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeAlias

import gevent
import pytest

from korvet.errors import KafkaError
from korvet.handlers.registry import HANDLERS, Caller, Handler, Reply
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.schema import Message
from korvet.redis.client import Redis
from korvet.security.quotas import Quota
from korvet.telemetry import metrics
from tests.support.dispatching import connected, dispatcher, opened_sockets
from tests.support.wire_client import request_frame

KEY = DescribeClusterRequest.api.key
AN_HOUR_MS = 3_600_000
SECONDS_MAX = 30


class Peer:
    """A client, and the connection that serves it."""

    def __init__(self, redis: Redis, throttle_ms: int) -> None:
        self.meanwhile: Callable[[], None] = lambda: None

        def handle(_request: Message, _caller: Caller, _api: object) -> Reply:
            self.meanwhile()
            return Reply(DescribeClusterResponse(cluster_id=""), throttle_ms)

        def refuse(request: Any, caller: Caller, error: KafkaError) -> Message:
            return HANDLERS[60].refuse(request, caller, error)

        handler = Handler(DescribeClusterRequest, handle, refuse)
        self._open = ExitStack()
        sockets = self._open.enter_context(opened_sockets())
        served = connected(dispatcher(redis, {KEY: handler}), sockets)
        self.connection, self._theirs = self._open.enter_context(served)

    def send(self, *numbers: int) -> None:
        request = DescribeClusterRequest(include_cluster_authorized_operations=False)
        self._theirs.sendall(b"".join(request_frame(request, 0, number) for number in numbers))

    def answered(self) -> int:
        """Return the number of the request that the next answer belongs to; 0: closed."""
        try:
            size = int.from_bytes(self._theirs.recv(4))
        except ConnectionResetError:  # closed with something unread
            return 0
        data = bytearray()
        while len(data) < size:
            data += self._theirs.recv(size - len(data))
        return int.from_bytes(data[:4])

    def end(self) -> None:
        self._open.close()


PeerOf: TypeAlias = Callable[[int], AbstractContextManager[Peer]]


@pytest.fixture
def peer(redis: Redis) -> PeerOf:
    @contextmanager
    def peer(throttle_ms: int) -> Iterator[Peer]:
        with gevent.Timeout(SECONDS_MAX):
            made = Peer(redis, throttle_ms)
            yield made
            made.end()

    return peer


def turn(others: Peer) -> None:
    """Let the event loop serve what has been sent: another connection is served, twice."""
    for number in (1, 2):
        others.send(number)
        assert others.answered() == number


def test_a_request_is_answered_and_what_comes_then_waits(peer: PeerOf) -> None:
    counted = metrics.THROTTLED_REQUESTS.labels(Quota.CONTROLLER_MUTATION_RATE)._value
    before = counted.get()
    with peer(AN_HOUR_MS) as throttled, peer(0) as others:
        throttled.send(1)
        assert throttled.answered() == 1
        assert counted.get() == before + 1
        throttled.send(9)
        turn(others)
        throttled.connection.drain()
        assert throttled.answered() == 0


def test_when_the_throttle_is_over_the_connection_goes_on(peer: PeerOf) -> None:
    with peer(1) as throttled:
        for number in range(1, 6):
            throttled.send(number)
            assert throttled.answered() == number


def test_a_connection_that_is_not_throttled_goes_on_at_once(peer: PeerOf) -> None:
    with peer(0) as free, peer(0) as others:
        free.send(1)
        assert free.answered() == 1
        free.send(2)
        turn(others)
        free.connection.drain()
        assert free.answered() == 2


def test_a_drain_before_the_throttle_begins_waits_for_nothing(peer: PeerOf) -> None:
    with peer(AN_HOUR_MS) as throttled:
        throttled.meanwhile = throttled.connection.drain
        throttled.send(1)
        assert [throttled.answered() for _ in range(2)] == [1, 0]
