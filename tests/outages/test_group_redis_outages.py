"""Redis is killed and started again under real consumers that commit: they carry on, and no committed offset goes back.

The server has on disk whatever it has answered. What it had not answered when it died may have been done or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.offset_commit import OffsetCommitResponse
from korvet.protocol.schema import Message
from tests.handlers import apis
from tests.handlers.groups import Member
from tests.support import reading
from tests.support.broker import Broker, korvet_cluster
from tests.support.crowd import Crowd
from tests.support.group_watch import GroupWatch
from tests.support.load import Load
from tests.support.messages import message
from tests.support.processes import wait_until
from tests.support.redis_servers import DurableServer
from tests.support.topic_client import Client

PARTITIONS = 12
PAUSE_MS = 20
SESSION_MS = 30_000
TOPIC = "orders"
COMMIT = 8


@pytest.fixture
def brokers(tmp_path: Path, server: DurableServer) -> Iterator[list[Broker]]:
    """Run two brokers on it, and one topic."""
    flags = ("--set", "group.initial.rebalance.delay.ms=0", "--set", "broker.lease.ms=20000")
    with korvet_cluster(tmp_path, server.url, *flags, brokers=2) as running:
        reading.create_topic(running[0].bootstrap, TOPIC, PARTITIONS)
        yield running


@pytest.mark.parametrize(
    ("kind", "assignor"),
    [
        pytest.param("confluent", "cooperative-sticky", marks=pytest.mark.smoke),
        ("kafka-python", "range"),
        ("aiokafka", "range"),
    ],
)
def test_members_carry_on_where_redis_dies_and_comes_back(
    brokers: list[Broker], server: DurableServer, kind: str, assignor: str
) -> None:
    bootstrap = ",".join(broker.bootstrap for broker in brokers)
    load = Load(bootstrap, TOPIC, PARTITIONS, pause_ms=PAUSE_MS)
    load.start()
    with (
        Crowd(bootstrap, TOPIC, session_ms=SESSION_MS, assignor=assignor) as crowd,
        GroupWatch(brokers, TOPIC, PARTITIONS) as watch,
    ):
        for host in ("a", "b"):
            crowd.host(kind, *(f"{host}{number}" for number in range(3)))
        before = watch.settle(crowd)
        watch.go_on()
        generation, views = watch.generation(), crowd.views()
        for _ in range(3):
            server.crash()
            watch.go_on()
            assert watch.settle(crowd) == before
            assert (watch.generation(), crowd.views()) == (generation, views)
        watch.finish(crowd, load)
        crowd.check(load.sent)


def commit_request(member: Member, offset: int) -> Message:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": None}
    given = {
        "group_id": member.group,
        "generation_id_or_member_epoch": member.generation,
        "member_id": member.id,
        "topics": [{"name": TOPIC, "partitions": [partition]}],
    }
    return message(apis.OffsetCommit, given, COMMIT)


def code_of(answer: Any) -> ErrorCode:
    [[partition]] = [topic.partitions for topic in answer.topics]
    return ErrorCode(partition.error_code)


def committed(client: Client, group: str) -> int:
    """Return what is committed, asked again where the broker had not yet found that its connection to Redis is cut."""
    result = None
    while result is None or result.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
        [result] = client.ask(apis.OffsetFetch, 8, groups=[{"group_id": group, "topics": None}]).groups
    assert result.error_code == ErrorCode.NONE
    [[partition]] = [topic.partitions for topic in result.topics]
    offset: int = partition.committed_offset
    return offset


def test_a_commit_that_redis_dies_with_is_retried_and_holds(
    brokers: list[Broker], server: DurableServer
) -> None:
    with Client(brokers[0].address) as client, Client(brokers[1].address) as other:
        member = Member(client, "billing")
        member.join()
        member.sync({member.id: b"part"})
        for offset in range(10, 60, 10):
            assert code_of(client.call(commit_request(member, offset), COMMIT)) == ErrorCode.NONE
            assert committed(other, "billing") == offset
            server.freeze()
            client.send(commit_request(member, offset + 1), COMMIT)
            server.crash()
            code = code_of(client.receive(OffsetCommitResponse, COMMIT))
            assert code in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            wait_until(
                lambda: code_of(client.call(commit_request(member, offset + 1), COMMIT)) == ErrorCode.NONE,  # noqa: B023 - called before the loop goes on
                "the retried commit is taken",
            )
            assert committed(client, "billing") == offset + 1
            assert member.heartbeat() == ErrorCode.NONE
