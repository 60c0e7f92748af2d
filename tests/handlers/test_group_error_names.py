"""Errors of groups by bytes, in every version that can carry them: what no test of one API alone provokes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from korvet.errors import ErrorCode, KafkaError, StorageUnavailableError
from korvet.handlers import offset_fetch
from korvet.handlers.common import group_error_code
from korvet.handlers.context import Caller
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from korvet.protocol.messages.list_groups import ListGroupsRequest
from korvet.protocol.messages.offset_delete import OffsetDeleteRequest
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from korvet.protocol.schema import Message
from korvet.security.session import Session
from tests.handlers.groups import Member, join_request, sync_request
from tests.handlers.test_offset_commit import commit
from tests.support import redis_servers
from tests.support.broker import Broker, korvet_broker
from tests.support.topic_client import Client

ROOM = 2
NOW = "group.initial.rebalance.delay.ms=0"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker whose groups have room for two members."""
    flags = ("--set", f"group.max.size={ROOM}", "--set", NOW)
    with korvet_broker(tmp_path_factory.mktemp("small"), *flags, workers=1) as running:
        yield running


def stable(client: Client, group: str, **fields: Any) -> Member:
    """Return the one member of a new group."""
    member = Member(client, group, **fields)
    member.join()
    member.sync({member.id: b"part"})
    return member


@pytest.mark.parametrize("version", range(10))
def test_a_full_group_takes_nobody_else(small: Broker, version: int) -> None:
    group = f"full-{version}"
    with Client(small.address) as first, Client(small.address) as second, Client(small.address) as third:
        members = [stable(first, group), Member(second, group)]
        members[1].begin_join()
        members[0].join()
        members[1].end_join()
        refused = third.call(join_request(group), version)
        assert (refused.error_code, refused.generation_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, -1)
        members[1].begin_sync()
        assert members[0].sync().error_code == members[1].end_sync().error_code == ErrorCode.NONE
        assert members[1].leave() == ErrorCode.NONE
        refused_join = third.call(join_request(group), 4)
        assert refused_join.error_code == ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize("version", range(5, 10))
def test_a_fenced_instance_does_not_join(client: Client, topic: str, version: int) -> None:
    old = stable(client, topic, group_instance_id="one")
    assert Member(client, topic, group_instance_id="one").join().error_code == ErrorCode.NONE
    assert old.join(version).error_code == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("version", range(3, 6))
def test_a_fenced_instance_gets_no_assignment_and_does_not_leave(
    client: Client, topic: str, version: int
) -> None:
    old = stable(client, topic, group_instance_id="one")
    Member(client, topic, group_instance_id="one").join()
    assert old.sync(version=version).error_code == ErrorCode.FENCED_INSTANCE_ID
    named = [MemberIdentity(member_id=old.id, group_instance_id="one")]
    answer = client.call(LeaveGroupRequest(group_id=topic, members=named), version)
    assert [each.error_code for each in answer.members] == [ErrorCode.FENCED_INSTANCE_ID]


@pytest.mark.parametrize("version", [3, 4])
def test_a_fenced_instance_has_no_heartbeat(client: Client, topic: str, version: int) -> None:
    old = stable(client, topic, group_instance_id="one")
    Member(client, topic, group_instance_id="one").join()
    assert old.heartbeat(version, group_instance_id="one") == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("version", [7, 8, 9])
def test_a_fenced_instance_commits_nothing(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    old = stable(client, topic, group_instance_id="one")
    Member(client, topic, group_instance_id="one").join()
    by: dict[str, Any] = {"generation_id_or_member_epoch": old.generation, "member_id": old.id}
    codes = commit(client, topic, topic, 1, version=version, group_instance_id="one", **by)
    assert codes == [ErrorCode.FENCED_INSTANCE_ID]


@pytest.mark.parametrize("version", range(6))
def test_a_sync_of_another_generation_or_member_in_every_version(
    two_clients: tuple[Client, Client], topic: str, version: int
) -> None:
    member, other = stable(two_clients[0], topic), Member(two_clients[1], topic)
    assert member.sync(version=version, generation=9).error_code == ErrorCode.ILLEGAL_GENERATION
    unknown = two_clients[0].call(sync_request(topic, "nobody", 1), version)
    assert unknown.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    other.begin_join()
    while not member.heartbeat():
        pass
    assert member.sync(version=version).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    member.join()
    other.end_join()


@pytest.mark.parametrize("version", range(2, 10))
def test_a_commit_that_breaks_the_rules_in_every_version(
    two_clients: tuple[Client, Client], topic: str, version: int
) -> None:
    client = two_clients[0]
    client.create(topic)
    member, other = stable(client, topic), Member(two_clients[1], topic)

    def code(generation: int, member_id: str, **fields: Any) -> int:
        by: dict[str, Any] = {"generation_id_or_member_epoch": generation, "member_id": member_id}
        [found] = commit(client, topic, topic, 1, version=version, **by, **fields)
        return found

    assert code(1, member.id, metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert code(2, member.id) == ErrorCode.ILLEGAL_GENERATION
    assert code(1, "nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(-1, "") == ErrorCode.UNKNOWN_MEMBER_ID
    other.begin_join()
    member.join()
    other.end_join()
    assert code(2, member.id) == ErrorCode.REBALANCE_IN_PROGRESS


def test_no_version_has_members_of_a_group_without_a_name(client: Client) -> None:
    requests: list[tuple[Message, int]] = [
        *((join_request("", "m"), version) for version in range(10)),
        *((sync_request("", "m", 1), version) for version in range(6)),
        *((HeartbeatRequest(group_id="", generation_id=1, member_id="m"), version) for version in range(5)),
        *((LeaveGroupRequest(group_id="", member_id="m"), version) for version in range(3)),
        *((LeaveGroupRequest(group_id="", members=[]), version) for version in range(3, 6)),
    ]
    for request, version in requests:
        code = client.call(request, version).error_code
        assert code == ErrorCode.INVALID_GROUP_ID, (type(request).__name__, version)


def offsets_asked(version: int) -> OffsetFetchRequest:
    """Ask for offsets in the form of a version."""
    if version >= 8:
        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    topics = [OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
    return OffsetFetchRequest(group_id="g", topics=topics)


def every_request() -> Iterator[tuple[Message, int]]:
    """Return what clients of groups ask, in every version."""
    for version in range(10):
        yield join_request("g", "m"), version
    for version in range(6):
        yield sync_request("g", "m", 1), version
        yield ListGroupsRequest(), version
    for version in range(3):
        yield LeaveGroupRequest(group_id="g", member_id="m"), version
    for version in range(3, 6):
        yield LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")]), version
    for version in range(5):
        yield HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), version
    for version in range(1, 11):
        yield offsets_asked(version), version
    for version in range(7):
        yield DescribeGroupsRequest(groups=["g"]), version
    for version in range(3):
        yield DeleteGroupsRequest(groups_names=["g"]), version
    yield OffsetDeleteRequest(group_id="g", topics=[]), 0


def codes_in(answer: Any) -> set[int]:
    """Return every error that stands anywhere in an answer, but for none."""
    found = {answer.error_code} if hasattr(answer, "error_code") else set()
    for name in ("groups", "results", "topics", "partitions", "members"):
        for each in getattr(answer, name, None) or ():
            found |= codes_in(each)
    return found - {ErrorCode.NONE}


def test_without_redis_every_request_sends_its_client_to_the_coordinator_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with redis_servers.DurableServer() as server:
        flags = ("--redis-url", server.url, "--set", NOW)
        with (
            korvet_broker(tmp_path_factory.mktemp("away"), *flags, workers=1) as broker,
            Client(broker.address) as client,
        ):
            client.create("orders")
            commit(client, "g", "orders", 1)
            server.kill()
            for request, version in every_request():
                answer = client.call(request, version)
                what = (type(request).__name__, version)
                assert codes_in(answer) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}, what
            for version in range(2, 10):
                assert commit(client, "g", "orders", 1, version=version) == [
                    ErrorCode.COORDINATOR_NOT_AVAILABLE
                ]
            # Which broker that is needs no Redis: it is asked for as soon as the others say so.
            assert client.call(FindCoordinatorRequest(key="g"), 3).error_code == ErrorCode.NONE


ERRORS = [
    (StorageUnavailableError("Redis is away"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "a row is malformed"), ErrorCode.KAFKA_STORAGE_ERROR),
    (KafkaError(ErrorCode.UNKNOWN_MEMBER_ID), ErrorCode.UNKNOWN_MEMBER_ID),
]


def caller(version: int) -> Caller:
    return Caller("client", Session("127.0.0.1:1"), version)


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_only_a_redis_that_is_away_is_another_code_for_groups(error: KafkaError, code: ErrorCode) -> None:
    assert group_error_code(error) == code


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_an_offset_fetch_carries_its_error_where_its_version_can(error: KafkaError, code: ErrorCode) -> None:
    topics = [OffsetFetchRequestTopics(name="orders", partition_indexes=[3])]
    request = OffsetFetchRequest(group_id="g", topics=topics)
    first = offset_fetch.refuse(request, caller(1), error)
    assert [each.error_code for each in first.topics[0].partitions] == [code]
    later = offset_fetch.refuse(request, caller(2), error)
    assert (later.error_code, later.topics) == (code, [])
    groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "h")]
    newest = offset_fetch.refuse(OffsetFetchRequest(groups=groups), caller(10), error)
    assert [(each.group_id, each.error_code) for each in newest.groups] == [("g", code), ("h", code)]
