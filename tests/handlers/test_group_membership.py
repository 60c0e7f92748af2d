"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup by bytes, over two workers: who is let in, and what each gets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tests.handlers.groups import Member, join_request, sync_request
from tests.support.broker import Broker
from tests.support.processes import wait_until
from tests.support.topic_client import Client

Two = tuple[Client, Client]


@pytest.mark.parametrize("version", range(4, 10))
def test_a_new_member_gets_its_id_first(client: Client, topic: str, version: int) -> None:
    first = client.call(join_request(topic), version)
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert re.fullmatch(r"wire-[0-9a-f-]{36}", first.member_id)
    joined = client.call(join_request(topic, first.member_id), version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id == first.member_id
    assert [(each.member_id, each.metadata) for each in joined.members] == [(first.member_id, b"topics")]
    assert joined.protocol_type == ("consumer" if version >= 7 else None)


@pytest.mark.parametrize("version", range(4))
def test_old_versions_join_at_once(client: Client, topic: str, version: int) -> None:
    joined = client.call(join_request(topic), version)
    assert (joined.error_code, joined.generation_id) == (0, 1)
    assert joined.leader == joined.member_id != ""


def test_members_on_two_workers_meet_in_a_group(two_clients: Two, topic: str) -> None:
    first, second = (Member(client, topic) for client in two_clients)
    first.join()
    assert first.sync({first.id: b"all"}).assignment == b"all"
    second.begin_join()
    answer = first.join()
    assert (answer.error_code, answer.generation_id) == (0, 2)
    assert {each.member_id for each in answer.members} == {first.id, second.id}
    followed = second.end_join()
    assert (followed.generation_id, followed.leader, followed.members) == (2, first.id, [])
    second.begin_sync()
    assert first.sync({first.id: b"1", second.id: b"2"}).assignment == b"1"
    assert second.end_sync().assignment == b"2"
    assert first.leave() == second.leave() == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": -1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": {}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"protocols": {"range": bytes((1 << 20) + 1)}}, ErrorCode.INVALID_REQUEST),
        ({"protocols": {f"p{n}": b"" for n in range(1001)}}, ErrorCode.INVALID_REQUEST),
    ],
)
@pytest.mark.parametrize("version", range(10))
def test_what_breaks_the_rules_is_refused_by_its_name(
    client: Client, topic: str, version: int, fields: dict[str, Any], code: ErrorCode
) -> None:
    given = dict(fields)
    answer = client.call(
        join_request(given.pop("group_id", topic), given.pop("member_id", ""), **given), version
    )
    assert (answer.error_code, answer.generation_id, answer.members) == (code, -1, [])


def test_a_member_with_too_much_metadata_is_refused_and_the_log_says_why(
    client: Client, broker: Broker, topic: str
) -> None:
    answer = client.call(join_request(topic, protocols={"range": bytes(4 << 20)}), 9)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    wait_until(lambda: "join refused" in broker.log(), "a line in the log")
    assert client.call(join_request(topic, protocols={"range": bytes(1000)}), 3).error_code == 0


def test_another_type_or_no_common_protocol_is_inconsistent(two_clients: Two, topic: str) -> None:
    Member(two_clients[0], topic).join()
    for fields in ({"protocol_type": "connect"}, {"protocols": {"sticky": b""}}):
        answer = two_clients[1].call(join_request(topic, **fields), 9)
        assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert answer.protocol_name is None


def test_a_static_member_that_restarts_fences_the_old_one(two_clients: Two, topic: str) -> None:
    old, new = (Member(client, topic, group_instance_id="one") for client in two_clients)
    old.join()
    old.sync({old.id: b"part"})
    answer = new.join()
    assert (answer.error_code, answer.generation_id, answer.skip_assignment) == (0, 1, True)
    assert re.fullmatch(r"one-[0-9a-f-]{36}", new.id)
    assert [(each.member_id, each.group_instance_id) for each in answer.members] == [(new.id, "one")]
    assert new.sync().assignment == b"part"
    assert old.heartbeat(group_instance_id="one") == ErrorCode.FENCED_INSTANCE_ID
    assert old.sync().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert old.join().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert new.heartbeat(group_instance_id="one") == 0


@pytest.mark.parametrize("version", [5, 8])
def test_a_static_leader_that_cannot_skip_gets_the_response_of_a_follower(
    client: Client, topic: str, version: int
) -> None:
    old, new = (Member(client, topic, group_instance_id="one") for _ in range(2))
    old.join()
    old.sync({old.id: b"part"})
    answer = new.join(version)
    assert (answer.leader, answer.members) == (old.id, [])
    assert new.sync().assignment == b"part"


def test_a_member_that_waits_for_one_that_leaves_is_answered(two_clients: Two, topic: str) -> None:
    first, second = (Member(client, topic) for client in two_clients)
    first.join()
    first.sync({first.id: b"all"})
    second.begin_join()
    assert first.heartbeat() in {0, ErrorCode.REBALANCE_IN_PROGRESS}
    assert first.leave() == 0
    answer = second.end_join()
    assert (answer.error_code, answer.leader) == (0, second.id)


@pytest.mark.parametrize("version", range(6))
def test_the_leader_brings_assignments_and_all_get_theirs(two_clients: Two, topic: str, version: int) -> None:
    first, second = (Member(client, topic) for client in two_clients)
    first.join()
    first.sync({first.id: b""})
    second.begin_join()
    first.join()
    second.end_join()
    second.begin_sync(version=version)
    leader = first.sync({first.id: b"\x00\x01", second.id: b"\xff"}, version)
    follower = second.end_sync(version)
    assert (leader.error_code, leader.assignment) == (0, b"\x00\x01")
    assert (follower.error_code, follower.assignment) == (0, b"\xff")
    expected = ("consumer", "range") if version >= 5 else (None, None)
    assert (follower.protocol_type, follower.protocol_name) == expected
    assert second.sync(version=version).assignment == b"\xff"


def test_a_sync_that_breaks_the_rules_is_refused_by_its_name(client: Client, topic: str) -> None:
    member = Member(client, topic)
    member.join()
    for fields, code in (
        ({"generation": 7}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert member.sync(**fields).error_code == code
    for request, code in (
        (sync_request("", member.id, 1), ErrorCode.INVALID_GROUP_ID),
        (sync_request(topic, "nobody", 1), ErrorCode.UNKNOWN_MEMBER_ID),
        (sync_request(f"no-{topic}", member.id, 1), ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert client.call(request, 5).error_code == code


def test_a_sync_that_waits_hears_of_a_new_rebalance(two_clients: Two, topic: str) -> None:
    first, second = (Member(client, topic) for client in two_clients)
    first.join()
    first.sync({first.id: b""})
    second.begin_join()
    first.join()
    second.end_join()
    second.begin_sync()
    # The leader changes what it asks for instead of assigning.
    first.begin_join(protocols={"range": b"other topics"})
    assert second.end_sync().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert second.sync().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    second.begin_join()
    assert first.end_join().generation_id == second.end_join().generation_id == 3


@pytest.mark.parametrize("version", range(5))
def test_a_heartbeat_says_whether_to_join_again(two_clients: Two, topic: str, version: int) -> None:
    first, second = (Member(client, topic) for client in two_clients)
    assert first.heartbeat(version) == ErrorCode.UNKNOWN_MEMBER_ID
    first.join()
    assert first.heartbeat(version) == 0
    first.sync({first.id: b""})
    assert first.heartbeat(version) == 0
    assert first.heartbeat(version, generation_id=5) == ErrorCode.ILLEGAL_GENERATION
    assert first.heartbeat(version, member_id="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    # A member that leads and joins again begins a rebalance, and waits for the pending id.
    second.begin_join()
    while not first.heartbeat(version):
        pass
    assert first.heartbeat(version) == ErrorCode.REBALANCE_IN_PROGRESS
    first.join()
    second.end_join()


def test_a_heartbeat_names_group_and_instance(client: Client, topic: str) -> None:
    member = Member(client, topic)
    member.join()
    assert member.heartbeat(group_instance_id="nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    member.group = ""
    assert member.heartbeat() == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(6))
def test_who_has_left_is_no_member(client: Client, topic: str, version: int) -> None:
    member = Member(client, topic)
    assert member.leave(version) == ErrorCode.UNKNOWN_MEMBER_ID
    member.join()
    assert member.leave(version) == 0
    assert member.leave(version) == ErrorCode.UNKNOWN_MEMBER_ID
    assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [3, 4, 5])
def test_of_many_members_each_has_its_own_outcome(client: Client, topic: str, version: int) -> None:
    member = Member(client, topic, group_instance_id="one")
    member.join()
    names = [("nobody", None), ("other", "one"), ("", "two"), ("", "one"), (member.id, None)]
    request = LeaveGroupRequest(
        group_id=topic,
        members=[MemberIdentity(member_id=name, group_instance_id=instance) for name, instance in names],
    )
    answer = client.call(request, version)
    assert answer.error_code == 0
    assert [(each.member_id, each.group_instance_id) for each in answer.members] == names
    assert [each.error_code for each in answer.members] == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]


@pytest.mark.parametrize("version", [0, 2, 3, 5])
def test_a_group_without_a_name_is_an_error_of_the_whole(client: Client, version: int) -> None:
    request = LeaveGroupRequest(group_id="", member_id="a") if version < 3 else LeaveGroupRequest(group_id="")
    assert client.call(request, version).error_code == ErrorCode.INVALID_GROUP_ID
