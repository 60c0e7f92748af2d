"""Heartbeat by bytes: the answer in each state of the group."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from tests.handlers.groups import Member
from tests.support.topic_client import Client


@pytest.mark.parametrize("version", range(5))
def test_a_heartbeat_says_whether_to_join_again(
    two_clients: tuple[Client, Client], topic: str, version: int
) -> None:
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
