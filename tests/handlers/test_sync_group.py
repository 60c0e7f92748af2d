"""SyncGroup by bytes, over two workers: parts, and what keeps a member from its own."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from tests.handlers.groups import Member, sync_request
from tests.support.topic_client import Client

Two = tuple[Client, Client]


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
