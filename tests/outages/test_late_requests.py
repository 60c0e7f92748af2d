"""Requests in the buffers of a worker that is stopped for longer than its lease, and their fate."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.delete_topics import DeleteTopicsResponse
from korvet.protocol.messages.fetch import FetchResponse
from korvet.protocol.messages.heartbeat import HeartbeatResponse
from korvet.protocol.messages.metadata import MetadataResponse
from korvet.protocol.messages.offset_commit import OffsetCommitResponse
from korvet.protocol.messages.produce import ProduceResponse
from korvet.protocol.schema import Message
from tests.handlers import apis
from tests.handlers.groups import LEAVE, Member
from tests.support import ops, processes, redis_servers
from tests.support.batches import batch, values
from tests.support.broker import Broker, korvet_cluster
from tests.support.connections import ends
from tests.support.messages import message
from tests.support.topic_client import Client, fetch_request, produce_request
from tests.support.wire_client import request_frame

COMMIT, DELETE, FETCH, HEARTBEAT, METADATA, PRODUCE = 8, 5, 11, 4, 9, 8
LEASE_MS = 1200
SETTINGS = {
    "broker.lease.ms": LEASE_MS,
    "group.initial.rebalance.delay.ms": 0,
    "queued.max.request.bytes": 1_000_000,
    "socket.request.max.bytes": 1_000_000,
    "request.control.max.bytes": 1_000_000,
}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """Run two brokers of one worker each, with short leases."""
    directory = tmp_path_factory.mktemp("brokers")
    with redis_servers.embedded_server() as url, korvet_cluster(directory, url, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def broker(brokers: list[Broker]) -> Broker:
    """Give the one that is stopped at times."""
    return brokers[0]


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address) as connection:
        connection.described("none")  # answered: so it was accepted
        yield connection


@pytest.fixture
def other(brokers: list[Broker]) -> Iterator[Client]:
    """Give a connection to the other broker."""
    with Client(brokers[1].address) as connection:
        yield connection


@contextlib.contextmanager
def stopped(broker: Broker) -> Iterator[None]:
    """Stop all processes of a broker, for longer than a lease."""
    with processes.stopped(broker.pid, *processes.descendants(broker.pid)):
        yield
        wait_for_a_lease(1.25)


def wait_for_a_lease(times: float = 1) -> None:
    """Wait for as long as a lease: a worker that runs has renewed its own, of one that does not it has ended."""
    began = time.monotonic()
    processes.wait_until(lambda: time.monotonic() > began + times * LEASE_MS / 1000, "a lease has ended")


def hang_up(client: Client) -> int:
    """Close a connection and return its port."""
    port: int = client.socket.getsockname()[1]
    client.close()
    return port


def wait_until_closed(broker: Broker, port: int) -> None:
    """Wait until the worker has done what came from this port, and closed the connection too."""
    [worker] = broker.worker_pids()
    processes.wait_until(lambda: port not in peers(worker), "the worker closes the connection")


def peers(pid: int) -> set[int]:
    """Return the remote ports of a process' connections."""
    return {int(remote.partition(":")[2], 16) for _, remote in ends(pid, established=False)}


def commit_request(group: str, topic: str, offset: int) -> Message:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": None}
    topics = [{"name": topic, "partitions": [partition]}]
    given = {"group_id": group, "generation_id_or_member_epoch": -1, "topics": topics}
    return message(apis.OffsetCommit, given, COMMIT)


def outcome(answer: Any) -> int:
    """Return the error of the one partition that an answer is about."""
    [topic] = answer.topics
    [partition] = topic.partitions
    code: int = partition.error_code
    return code


def commit(client: Client, group: str, topic: str, offset: int) -> None:
    assert outcome(client.call(commit_request(group, topic, offset), COMMIT)) == ErrorCode.NONE


def committed(client: Client, group: str, topic: str) -> int:
    asked = {"name": topic, "partition_indexes": [0]}
    [answer] = client.ask(apis.OffsetFetch, 7, group_id=group, topics=[asked]).topics
    [partition] = answer.partitions
    offset: int = partition.committed_offset
    return offset


def delete_request(topic: str) -> Message:
    return message(apis.DeleteTopics, {"topic_names": [topic], "timeout_ms": 1000}, DELETE)


def refused_deletions(broker: Broker) -> float:
    counted = ops.samples(broker, "korvet_requests_total")
    return sum(
        count for labels, count in counted.items() if set(labels) >= {"DeleteTopics", "REQUEST_TIMED_OUT"}
    )


def read(client: Client, topic: str) -> list[bytes | None]:
    return values(client.fetch(topic, partition_max_bytes=1 << 22).records)


def test_a_commit_in_the_buffer_does_not_take_back_one_that_another_broker_acknowledged(
    broker: Broker, client: Client, other: Client
) -> None:
    other.create("commits")
    commit(client, "billing", "commits", 10)
    gone = Client(broker.address)
    with stopped(broker):
        for item in (client, gone):
            item.send(commit_request("billing", "commits", 20), COMMIT)
        port = hang_up(gone)
        commit(other, "billing", "commits", 60)
    answer = client.receive(OffsetCommitResponse, COMMIT)
    assert outcome(answer) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    wait_until_closed(broker, port)
    assert committed(other, "billing", "commits") == 60
    commit(client, "billing", "commits", 70)  # it is current again
    assert committed(other, "billing", "commits") == 70


@pytest.mark.parametrize("queued", [False, True], ids=["open before", "never accepted"])
def test_a_deletion_whose_client_hung_up_does_not_delete_the_topic_made_since(
    broker: Broker, client: Client, other: Client, *, queued: bool
) -> None:
    name = f"deletions-{queued}"
    other.create(name)
    not_begun = refused_deletions(broker)
    with stopped(broker):
        gone = Client(broker.address) if queued else client
        gone.send(delete_request(name), DELETE)
        port = hang_up(gone)
        other.delete(name)
        made = other.create(name)
        other.append(name, b"a")
    # A connection that was never accepted is none of the worker's for a while.
    processes.wait_until(lambda: refused_deletions(broker) > not_begun, "the late request is answered")
    wait_until_closed(broker, port)
    assert other.described(name).topic_id == made
    assert read(other, name) == [b"a"]
    assert "late request not begun, its client has gone" in broker.log()


def test_a_client_that_still_waits_is_served(broker: Broker, client: Client, other: Client) -> None:
    other.create("waited-for")
    with stopped(broker):
        client.send(delete_request("waited-for"), DELETE)
    [result] = client.receive(DeleteTopicsResponse, DELETE).responses
    assert result.error_code == ErrorCode.NONE
    assert other.described("waited-for").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("stalled", [False, True], ids=["running", "stopped"])
def test_what_clients_send_last_before_they_close_is_done(
    broker: Broker, other: Client, *, stalled: bool
) -> None:
    name = f"last-{stalled}"
    other.create(name)
    commit(other, name, name, 10)
    member = Member(other, f"members-{name}")
    assert member.join().error_code == ErrorCode.NONE
    assert member.sync({member.id: b"all"}).error_code == ErrorCode.NONE
    wait_for_a_lease()  # all of this is older than the worker's last look at the clock
    leave = message(apis.LeaveGroup, {"group_id": member.group, "members": [{"member_id": member.id}]}, LEAVE)
    with stopped(broker) if stalled else nullcontext():
        ports = []
        for request, version in (
            (produce_request(name, batch(b"a"), acks=0), PRODUCE),
            (leave, LEAVE),
            (commit_request(name, name, 20), COMMIT),
        ):
            client = Client(broker.address)
            client.send(request, version)
            ports.append(hang_up(client))
    for port in ports:
        wait_until_closed(broker, port)
    processes.wait_until(lambda: read(other, name) == [b"a"], "the record is there")
    processes.wait_until(lambda: committed(other, name, name) == 20, "the offset is committed")
    processes.wait_until(
        lambda: member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID, "the member has left its group"
    )


def test_a_client_that_only_sends_no_more_gets_its_answers(
    broker: Broker, client: Client, other: Client
) -> None:
    other.create("half")
    other.append("half", b"a")
    member = Member(other, "half")
    member.join()
    member.sync({member.id: b"all"})
    beat = {"group_id": "half", "member_id": member.id, "generation_id": member.generation}
    asked = {"topics": [{"name": "half-new"}], "allow_auto_topic_creation": True}
    with stopped(broker):
        client.send(delete_request("half"), DELETE)
        client.send(message(apis.Heartbeat, beat, HEARTBEAT), HEARTBEAT)
        client.send(produce_request("half", batch(b"b")), PRODUCE)
        client.send(message(apis.Metadata, asked, METADATA), METADATA)
        client.send(fetch_request("half"), FETCH)
        client.socket.shutdown(socket.SHUT_WR)
    [deleted] = client.receive(DeleteTopicsResponse, DELETE).responses
    assert deleted.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert client.receive(HeartbeatResponse, HEARTBEAT).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    [produced] = client.receive(ProduceResponse, PRODUCE).responses
    assert produced.partition_responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    [described] = client.receive(MetadataResponse, METADATA).topics
    assert described.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    [[fetched]] = [response.partitions for response in client.receive(FetchResponse, FETCH).responses]
    assert values(fetched.records) == read(other, "half") == [b"a"]
    assert other.described("half-new").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_deletion_whose_client_hangs_up_is_done_by_a_worker_that_runs(
    broker: Broker, client: Client, other: Client
) -> None:
    other.create("running")
    client.send(delete_request("running"), DELETE)
    wait_until_closed(broker, hang_up(client))
    assert other.described("running").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_request_that_waited_longer_than_a_lease_for_memory_is_not_begun_for_nobody(
    broker: Broker, other: Client
) -> None:
    other.create("waiting")
    large = produce_request("waiting", batch(b"x" * 900_000))
    with Client(broker.address) as first, Client(broker.address) as second:
        frame = request_frame(large, PRODUCE)
        first.send_bytes(frame[:-100])
        second.send_bytes(frame)
        port = hang_up(second)
        wait_for_a_lease(1.25)
        first.send_bytes(frame[-100:])
        assert first.receive(ProduceResponse, PRODUCE).responses[0].partition_responses[0].error_code == 0
        wait_until_closed(broker, port)
    assert len(read(other, "waiting")) == 1
