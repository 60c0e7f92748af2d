"""The boundary of errors: a Redis that is away, and a fault of ours, become answers that clients can act on.

tests/handlers/test_redis_away.py has the answers of each API to the former.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import gevent
import pytest

from korvet import turns
from korvet.errors import ErrorCode, KafkaError, ProtocolError, StorageUnavailableError
from korvet.handlers.registry import HANDLERS, Caller, Handler
from korvet.protocol.compile import encode
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)
from korvet.protocol.schema import Message
from korvet.redis.client import Redis
from korvet.security.session import Session
from korvet.server.net import dispatch
from korvet.server.net.dispatch import CHUNKS_MAX, Dispatcher
from korvet.telemetry import metrics
from tests.protocol.samples import sample
from tests.support.dispatching import Present, answer, connected, dispatcher, opened_sockets, received
from tests.support.wire_client import decode_response, request_frame
from tests.support.wire_client import frame as frame_of

AWAY = ErrorCode.KAFKA_STORAGE_ERROR


REQUEST = DescribeClusterRequest(include_cluster_authorized_operations=False)


def serving(redis: Redis, handle: Any, refuse: Any = HANDLERS[60].refuse) -> Dispatcher:
    """Return a dispatcher that knows one API, served by this function."""
    return dispatcher(redis, {60: Handler(DescribeClusterRequest, handle, refuse)})


def raising(error: Exception) -> Callable[..., Message]:
    def handle(*_: object) -> Message:
        raise error

    return handle


def test_a_fault_of_ours_is_logged_once_and_answered(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    by = serving(redis, raising(ZeroDivisionError("secret of ours")))
    with caplog.at_level(logging.DEBUG, "korvet.server.net.dispatch"):
        answered = answer(by, REQUEST, 2)
    assert answered.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "secret" not in (answered.error_message or "")
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.levelno == logging.ERROR


def test_a_refusal_and_its_cause_do_not_outlive_the_answer(redis: Redis) -> None:
    raised: list[weakref.ref[KafkaError]] = []

    def refused(_request: Message, _caller: object, _api: object) -> Message:
        # In variables of this frame, which their tracebacks hold.
        cause, error = KafkaError(ErrorCode.CORRUPT_MESSAGE), KafkaError(ErrorCode.INVALID_REQUEST)
        raised.extend([weakref.ref(cause), weakref.ref(error)])
        try:
            raise cause
        except KafkaError:
            raise error from cause

    gc.disable()
    try:
        answer(serving(redis, refused), REQUEST, 2)
        assert [item() for item in raised] == [None, None]
    finally:
        gc.enable()


def test_a_request_does_not_outlive_its_answer(redis: Redis) -> None:
    def served(*_: object) -> DescribeClusterResponse:
        return DescribeClusterResponse(cluster_id="", controller_id=0, brokers=[])

    gc.collect()
    gc.disable()
    try:
        answer(serving(redis, served), REQUEST, 2)
        assert not [item for item in gc.get_objects() if isinstance(item, dispatch._Serving)]
    finally:
        gc.enable()


def test_a_redis_that_is_away_is_logged_once_and_not_with_every_request(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    by = serving(redis, raising(StorageUnavailableError("Redis is away")))
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            assert answer(by, REQUEST, 2).error_code == AWAY
    [record] = caplog.records
    assert record.message == "Redis unavailable"


def unsayable(_request: Message, _caller: object, _error: KafkaError) -> Message:
    return DescribeClusterResponse(error_message=cast("str", 5), cluster_id="")


def test_a_fault_that_cannot_be_answered_is_logged_and_closes_the_connection(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    by = serving(redis, raising(KafkaError(ErrorCode.INVALID_REQUEST, "no")), unsayable)
    with opened_sockets() as sockets, connected(by, sockets) as (_, client), caplog.at_level(logging.INFO):
        client.sendall(request_frame(REQUEST, 2))
        assert client.recv(1) == b""
    [record] = caplog.records
    assert record.exc_info is not None


def test_a_fault_of_the_dispatcher_itself_closes_its_connection_alone(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    by = serving(redis, raising(KafkaError(ErrorCode.INVALID_REQUEST, "no")))
    counted = metrics.CONNECTIONS_CLOSED.labels("fault")._value
    before = counted.get()
    with (
        opened_sockets() as sockets,
        connected(by, sockets) as (_, client),
        connected(by, sockets) as (_, other),
    ):
        with monkeypatch.context() as patched:
            patched.delattr(by, "_handlers")
            client.sendall(request_frame(REQUEST, 2))
            assert client.recv(1) == b""
        assert counted.get() == before + 1
        other.sendall(request_frame(REQUEST, 2))
        assert other.recv(1)


def test_a_fault_at_the_end_of_a_connection_leaves_the_others_served(redis: Redis) -> None:
    by = serving(redis, raising(KafkaError(ErrorCode.INVALID_REQUEST, "no")))
    with (
        opened_sockets() as sockets,
        connected(by, sockets) as (connection, client),
        connected(by, sockets) as (_, other),
    ):
        connection.session.on_end(raising(ZeroDivisionError()))
        client.close()
        other.sendall(request_frame(REQUEST, 2))
        assert other.recv(1)
        assert sockets.core.count == 1


def test_a_response_that_cannot_be_encoded_is_a_fault_of_ours_and_answered(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    def unencodable(request: Message, caller: Caller, _api: object) -> Message:
        return unsayable(request, caller, KafkaError(AWAY))

    answered = answer(serving(redis, unencodable), REQUEST, 2)
    assert answered.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(caplog.records) == 1


def test_a_broken_protocol_is_left_to_the_connection(redis: Redis) -> None:
    unknown = frame_of(b"\x03\xe7\0\0\0\0\0\1\xff\xff")
    with received(unknown) as frame, pytest.raises(ProtocolError, match="API key 999"):
        dispatcher(redis, {}).serve(frame, Present(Session("peer:1")))
    broken = serving(redis, raising(ProtocolError("no answer is awaited")))
    with received(request_frame(REQUEST, 2)) as frame, pytest.raises(ProtocolError, match="no answer"):
        broken.serve(frame, Present(Session("peer:1")))


@pytest.mark.parametrize("variant", ["filled", "null", "plain"])
def test_every_handler_can_refuse_in_every_version(variant: str) -> None:
    """A refusal that cannot be encoded would close the connection, with a traceback, for a Redis that is away."""
    for handler in HANDLERS.values():
        first, last = handler.request.api.versions
        for version in range(first, last + 1):
            request = sample(handler.request, version, variant)
            caller = Caller("client", Session("peer:1"), version)
            with contextlib.suppress(ProtocolError):  # a Produce request without acks has no response
                response = handler.refuse(request, caller, KafkaError(AWAY, "away"))
                assert response is not None
                assert encode(response, version)


def test_a_long_request_lets_others_run_at_every_step(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", -1.0)
    had, seen = 0, []

    def run() -> None:
        nonlocal had
        while True:
            had += 1
            gevent.sleep(0)

    def handle(request: OffsetForLeaderEpochRequest, *_: object) -> OffsetForLeaderEpochResponse:
        seen.append(had)
        [topic] = request.topics
        result = [EpochEndOffset(partition=partition.partition) for partition in topic.partitions]
        seen.append(had)
        return OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="", partitions=result)])

    api = OffsetForLeaderEpochRequest
    handler = Handler(api, handle, handle)
    asked = [OffsetForLeaderPartition(partition=item, leader_epoch=0) for item in range(1000)]
    frame = request_frame(api(topics=[OffsetForLeaderTopic(topic="", partitions=asked)]), 4)
    with received(frame) as here:
        others = gevent.spawn(run)
        dispatcher(redis, {api.api.key: handler}).serve(here, Present(Session("peer:1")))
        seen.append(had)
        others.kill()
    steps = [after - before for before, after in pairwise([0, *seen])]
    assert min(steps) >= 1000 // turns.CALLS_PER_LOOK - 1, steps


def test_a_response_of_very_many_parts_is_sent_in_few(redis: Redis) -> None:
    api, count = OffsetForLeaderEpochRequest, 4 * CHUNKS_MAX

    def handle(_request: OffsetForLeaderEpochRequest, *_: object) -> OffsetForLeaderEpochResponse:
        result = [OffsetForLeaderTopicResult(topic=str(number), partitions=[]) for number in range(count)]
        return OffsetForLeaderEpochResponse(topics=result)

    handlers = {api.api.key: Handler(api, handle, handle)}
    with received(request_frame(api(topics=[]), 4)) as frame:
        chunks = dispatcher(redis, handlers).serve(frame, Present(Session("peer:1"))).chunks
    assert len(chunks) < 50
    answered = decode_response(OffsetForLeaderEpochResponse, 4, b"".join(chunks)[4:])
    assert [topic.topic for topic in answered.topics] == [str(number) for number in range(count)]
