"""The boundary of errors: a Redis that is away, and a fault of ours, become answers that clients can act on."""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import weakref
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import gevent
import pytest
from gevent import socket

from korvet import turns
from korvet.config.settings import Settings
from korvet.errors import ErrorCode, KafkaError, ProtocolError, StorageUnavailableError
from korvet.handlers import describe_cluster
from korvet.handlers.context import Caller
from korvet.handlers.registry import HANDLERS, Handler
from korvet.protocol.compile import encode
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
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
from korvet.server.net.budget import Budgets
from korvet.server.net.connection import ClientConnection
from korvet.server.net.dispatch import CHUNKS_MAX, PendingResponse
from korvet.server.net.framing import ConnectionLimits
from korvet.server.net.socket import Channel
from tests.protocol.samples import sample
from tests.support import processes
from tests.support.batches import values
from tests.support.broker import Broker, steady_broker
from tests.support.dispatching import answer, dispatcher, received
from tests.support.topic_client import Client, fetch_request, produce_request
from tests.support.wire_client import decode_response, request_frame
from tests.support.wire_client import frame as frame_of

AWAY = ErrorCode.KAFKA_STORAGE_ERROR


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker that does not wait long for Redis; in the end the same worker lives."""
    limits = {"redis.timeout.ms": 1000, "redis.connect.timeout.ms": 1000}
    with steady_broker(tmp_path_factory.mktemp("broker"), settings=limits, workers=1) as running:
        yield running


@pytest.fixture(scope="module")
def topic_id(broker: Broker) -> bytes:
    with Client(broker.address) as client:
        topic_id = client.create("known")
        client.append("known", b"before")
    return topic_id


@pytest.fixture
def client(broker: Broker, topic_id: bytes) -> Iterator[Client]:
    with Client(broker.address) as connection:
        yield connection


@contextlib.contextmanager
def redis_stopped(broker: Broker) -> Iterator[None]:
    processes.kill(broker.server_pid(), signal.SIGSTOP)
    try:
        yield
    finally:
        processes.kill(broker.server_pid(), signal.SIGCONT)


def until_served(client: Client, topic: str = "known") -> Any:
    found: list[Any] = []

    def served() -> bool:
        found[:] = [client.fetch(topic)] if client.call(fetch_request(topic), 11).error_code == 0 else []
        return bool(found) and found[0].error_code == ErrorCode.NONE

    processes.wait_until(served, "a fetch without error")
    return found[0]


@pytest.mark.slow
@pytest.mark.embedded  # its process is stopped
def test_without_redis_every_api_answers_with_a_code_that_is_tried_again(
    broker: Broker, client: Client, topic_id: bytes
) -> None:
    epoch = OffsetForLeaderTopic(
        topic="known", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)]
    )
    offsets = ListOffsetsTopic(
        name="known", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)]
    )
    with redis_stopped(broker):
        unknown, *away = [client.produce("known", version=each, topic_id=topic_id) for each in (3, 12, 13)]
        # The first was sent to a server that did not answer; then there was no connection.
        assert unknown.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert {each.error_code for each in away} <= {AWAY, ErrorCode.REQUEST_TIMED_OUT}
        for version in (4, 6, 7, 12, 13, 18):
            fetched = client.call(fetch_request("known", topic_id=topic_id), version)
            assert fetched.error_code == (AWAY if version >= 7 else 0)
            assert fetched.responses[0].partitions[0].error_code == AWAY
        for version in (1, 11):
            listed = client.call(ListOffsetsRequest(replica_id=-1, topics=[offsets]), version)
            assert listed.topics[0].partitions[0].error_code == AWAY
        for version in (2, 4):
            ended = client.call(OffsetForLeaderEpochRequest(topics=[epoch]), version)
            assert ended.topics[0].partitions[0].error_code == AWAY
        for version in (2, 7):
            wanted = CreatableTopic(name="wanted", num_partitions=1, replication_factor=1)
            assert client.call(CreateTopicsRequest(topics=[wanted]), version).topics[0].error_code == AWAY
        unwanted = DeleteTopicsRequest(topics=[DeleteTopicState(name="known")], timeout_ms=0)
        assert client.call(unwanted, 6).responses[0].error_code == AWAY
    assert values(until_served(client).records)[:1] == [b"before"]


@pytest.mark.slow
@pytest.mark.embedded  # its process is stopped
def test_without_redis_metadata_reports_what_the_worker_knows(broker: Broker, client: Client) -> None:
    until_served(client)
    with redis_stopped(broker):
        for version in (0, 1, 12, 13):
            topics = [MetadataRequestTopic(name=name) for name in ("known", "unknown")]
            answer = client.call(MetadataRequest(topics=topics), version)
            assert len(answer.brokers) == 1
            assert answer.error_code == ErrorCode.NONE
            known, unknown = answer.topics
            assert (known.error_code, len(known.partitions)) == (ErrorCode.NONE, 1)
            assert (unknown.name, unknown.error_code) == ("unknown", ErrorCode.LEADER_NOT_AVAILABLE)
        every = client.call(MetadataRequest(topics=None), 12)
        assert "known" in [each.name for each in every.topics]
    until_served(client)


@pytest.mark.slow
@pytest.mark.embedded  # its process is stopped
def test_without_redis_what_needs_none_is_answered(broker: Broker, client: Client) -> None:
    with redis_stopped(broker):
        assert client.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
        assert client.call(FindCoordinatorRequest(key="group"), 2).error_code == ErrorCode.NONE
        producer = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        assert client.call(producer, 4).error_code == ErrorCode.NONE
        request = DescribeClusterRequest(include_cluster_authorized_operations=False)
        assert client.call(request, 0).error_code == ErrorCode.NONE
    until_served(client)


@pytest.mark.slow
@pytest.mark.embedded  # its process is stopped
def test_without_redis_a_producer_without_acks_is_closed(broker: Broker, client: Client) -> None:
    until_served(client)
    with redis_stopped(broker):
        client.send(produce_request("known", acks=0), 8)
        assert client.is_closed_by_broker()


def caller(version: int) -> Caller:
    return Caller("client", Session("peer:1"), version)


def broken(_request: Message, _caller: object, _api: object) -> Message:
    raise ZeroDivisionError("secret of ours")


def test_a_fault_of_ours_is_logged_once_and_answered(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    handlers = {60: Handler(DescribeClusterRequest, object, broken, describe_cluster.refuse)}
    with caplog.at_level(logging.DEBUG, "korvet.server.net.dispatch"):
        answered = answer(dispatcher(redis, handlers, [object()]), request, 2)
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

    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    handlers = {60: Handler(DescribeClusterRequest, object, refused, describe_cluster.refuse)}
    gc.disable()
    try:
        answer(dispatcher(redis, handlers, [object()]), request, 2)
        assert [each() for each in raised] == [None, None]
    finally:
        gc.enable()


def test_a_request_does_not_outlive_its_answer(redis: Redis) -> None:
    def served(*_: object) -> DescribeClusterResponse:
        return DescribeClusterResponse(cluster_id="", controller_id=0, brokers=[])

    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    handlers = {60: Handler(DescribeClusterRequest, object, served, describe_cluster.refuse)}
    gc.collect()
    gc.disable()
    try:
        answer(dispatcher(redis, handlers, [object()]), request, 2)
        assert not [each for each in gc.get_objects() if isinstance(each, PendingResponse)]
    finally:
        gc.enable()


def test_a_redis_that_is_away_is_logged_once_and_not_with_every_request(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    def away(_request: Message, _caller: object, _api: object) -> Message:
        raise StorageUnavailableError("Redis is away")

    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    handlers = {60: Handler(DescribeClusterRequest, object, away, describe_cluster.refuse)}
    by = dispatcher(redis, handlers, [object()])
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            assert answer(by, request, 2).error_code == AWAY
    [record] = caplog.records
    assert record.message == "Redis unavailable"


def unsayable(_request: Message, _caller: object, _error: KafkaError) -> Message:
    return DescribeClusterResponse(error_message=cast("str", 5), cluster_id="")


def test_a_fault_that_cannot_be_answered_is_logged_and_closes_the_connection(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_request: Message, _caller: object, _api: object) -> Message:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "no")

    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    handlers = {60: Handler(DescribeClusterRequest, object, refused, unsayable)}
    ours, theirs = socket.socketpair()
    with theirs, caplog.at_level(logging.INFO):
        settings = Settings()
        budgets = Budgets.of(settings.queued_max_request_bytes)
        connection = ClientConnection(
            Channel(ours),
            Session("peer:1"),
            dispatcher(redis, handlers, [object()]),
            ConnectionLimits.of(settings),
            budgets,
        )
        theirs.sendall(request_frame(request, 2))
        connection.serve()
        assert theirs.recv(1) == b""
    [record] = caplog.records
    assert record.exc_info is not None


def test_a_response_that_cannot_be_encoded_is_a_fault_of_ours_and_answered(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    def unencodable(request: Message, caller: Caller, _api: object) -> Message:
        return unsayable(request, caller, KafkaError(AWAY))

    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    handlers = {60: Handler(DescribeClusterRequest, object, unencodable, describe_cluster.refuse)}
    answered = answer(dispatcher(redis, handlers, [object()]), request, 2)
    assert answered.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(caplog.records) == 1


def test_a_broken_protocol_is_left_to_the_connection(redis: Redis) -> None:
    unknown = frame_of(b"\x03\xe7\0\0\0\0\0\1\xff\xff")
    with received(unknown) as frame, pytest.raises(ProtocolError, match="API key 999"):
        dispatcher(redis, {}, []).begin(frame, Session("peer:1"))


@pytest.mark.parametrize("variant", ["filled", "null", "plain"])
def test_every_handler_can_refuse_in_every_version(variant: str) -> None:
    """A refusal that cannot be encoded would close the connection, with a traceback, for a Redis that is away."""
    for handler in HANDLERS.values():
        first, last = handler.request.api.versions
        for version in range(first, last + 1):
            request = sample(handler.request, version, variant)
            with contextlib.suppress(ProtocolError):  # a Produce request without acks has no response
                response = handler.refuse(request, caller(version), KafkaError(AWAY, "away"))
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
        found = [EpochEndOffset(partition=each.partition) for each in topic.partitions]
        seen.append(had)
        return OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="", partitions=found)])

    api = OffsetForLeaderEpochRequest
    handler = Handler(api, type(None), handle, handle)
    asked = [OffsetForLeaderPartition(partition=each, leader_epoch=0) for each in range(1000)]
    frame = request_frame(api(topics=[OffsetForLeaderTopic(topic="", partitions=asked)]), 4)
    with received(frame) as here:
        others = gevent.spawn(run)
        dispatcher(redis, {api.api.key: handler}, [None]).begin(here, Session("peer:1")).result()
        seen.append(had)
        others.kill()
    steps = [after - before for before, after in pairwise([0, *seen])]
    assert min(steps) >= 1000 // turns.CALLS_PER_LOOK - 1, steps


def test_a_response_of_very_many_parts_is_sent_in_few(redis: Redis) -> None:
    api, count = OffsetForLeaderEpochRequest, 4 * CHUNKS_MAX

    def handle(_request: OffsetForLeaderEpochRequest, *_: object) -> OffsetForLeaderEpochResponse:
        found = [OffsetForLeaderTopicResult(topic=str(each), partitions=[]) for each in range(count)]
        return OffsetForLeaderEpochResponse(topics=found)

    handlers = {api.api.key: Handler(api, type(None), handle, handle)}
    with received(request_frame(api(topics=[]), 4)) as frame:
        chunks = dispatcher(redis, handlers, [None]).begin(frame, Session("peer:1")).result().chunks
    assert len(chunks) < 50
    answered = decode_response(OffsetForLeaderEpochResponse, 4, b"".join(chunks)[4:])
    assert [each.topic for each in answered.topics] == [str(each) for each in range(count)]
