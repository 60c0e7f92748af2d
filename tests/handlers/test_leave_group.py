"""LeaveGroup by bytes: one member, many, and static ones by their instance."""

from __future__ import annotations

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tests.handlers.groups import Member
from tests.support.topic_client import Client


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
