"""Questions about consumer groups: which there are, who is in them, and their deletion.

Reached as `AdminClient.groups`. Knows ListGroups, DescribeGroups and DeleteGroups; not where groups are kept, which
the client finds.

The bytes in which the consumers of a group are told what they read: the protocol type `consumer`, versions 0 and up.

Brokers pass these bytes without reading them, so they hold whatever a client put there. Later versions add fields
behind those read here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from korvet.admin.errors import AdminError, BrokerError
from korvet.admin.types import TopicPartition, bad_group, for_each
from korvet.errors import ErrorCode
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from korvet.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from korvet.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")


def partitions_of(assignment: bytes) -> list[TopicPartition] | None:
    """Return the partitions of an assignment, sorted; None where the bytes are no consumer's assignment.

    A member that has none gets no bytes at all from some clients: that is the empty assignment.
    """
    if not assignment:
        return []
    try:
        return sorted(_read(assignment))
    except (struct.error, ValueError):
        return None


def _read(data: bytes) -> list[TopicPartition]:
    """Read version, then the topics with their partitions; a number of the peer's sizes no allocation."""
    (version,) = _SHORT.unpack_from(data)
    (topics,) = _INT.unpack_from(data, _SHORT.size)
    if version < 0 or topics < 0:
        raise ValueError("negative version or length")
    position = _SHORT.size + _INT.size
    found = []
    for _ in range(topics):
        (length,) = _SHORT.unpack_from(data, position)
        position += _SHORT.size
        if length < 0 or position + length > len(data):
            raise ValueError("a topic's name reaches behind the bytes")
        topic = data[position : position + length].decode()
        position += length
        (count,) = _INT.unpack_from(data, position)
        position += _INT.size
        if count < 0 or position + count * _INT.size > len(data):
            raise ValueError("partitions reach behind the bytes")
        partitions = struct.unpack_from(f">{count}i", data, position)
        position += count * _INT.size
        found += [TopicPartition(topic, each) for each in partitions]
    return found


if TYPE_CHECKING:
    from korvet.admin.client import AdminClient
    from korvet.admin.connection import Address, Deadline

EMPTY = "Empty"
"""The state of a group without members that has committed offsets."""

_DEAD = "Dead"
_CONSUMER = "consumer"


class Group(msgspec.Struct, frozen=True):
    """A group as it is listed. State and type are empty where the broker is too old to tell."""

    group_id: str
    protocol_type: str
    state: str
    type: str


class Member(msgspec.Struct, frozen=True):
    """A member of a group; `instance_id` only of a static one.

    `partitions` is what it reads: None where the group is no consumers', or the bytes are not theirs.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: bytes
    partitions: list[TopicPartition] | None


class GroupDescription(msgspec.Struct, frozen=True):
    """A group that is there. `protocol` is the assignor that its members have chosen; empty until they have."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: list[Member]


class Groups:
    """The questions about groups."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def list(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[Group]:
        """Return the groups of all brokers, by name; only those in one of `states` and of one of `types`, if given.

        Raises AdminError: UnsupportedError where brokers are too old for what is asked (states since Kafka 2.6).

            >>> empty = admin.groups.list(states=["Empty"])
        """
        request = ListGroupsRequest(states_filter=[*states], types_filter=[*types])
        found = self._client.question(lambda deadline: self._list(request, deadline))
        return [found[name] for name in sorted(found)]

    def describe(self, group_ids: Iterable[str]) -> dict[str, GroupDescription | AdminError]:
        """Return each group, or why it is not described: GroupIdNotFoundError where there is none.

        >>> described = admin.groups.describe(["billing", "shipping"])
        """
        return self._client.settle(group_ids, self._client.coordinators, self._describe, refuse=bad_group)

    def delete(self, group_ids: Iterable[str]) -> dict[str, AdminError | None]:
        """Delete groups with all that they have committed; returns for each what kept it from being deleted.

        These are GroupIdNotFoundError, and NonEmptyGroupError where members are left.

            >>> admin.groups.delete(["billing"])
            {'billing': None}
        """
        return self._client.settle(group_ids, self._client.coordinators, self._delete, refuse=bad_group)

    def _list(self, request: ListGroupsRequest, deadline: Deadline) -> dict[str, Group]:
        """Ask every broker: each of Kafka's lists the groups that it keeps, each of Korvet's all of them."""
        found: dict[str, Group] = {}
        for address in self._client.topology_now((), deadline).brokers.values():
            response = self._client.ask(address, request, ListGroupsResponse, deadline)
            error = BrokerError.of(response.error_code)
            if error is not None:
                raise error
            for each in response.groups:
                found[each.group_id] = Group(
                    each.group_id, each.protocol_type, each.group_state, each.group_type
                )
        return found

    def _describe(
        self, address: Address, group_ids: Sequence[str], deadline: Deadline
    ) -> dict[str, GroupDescription | AdminError]:
        request = DescribeGroupsRequest(groups=[*group_ids])
        response = self._client.ask(address, request, DescribeGroupsResponse, deadline)
        return for_each(address, group_ids, {each.group_id: _description(each) for each in response.groups})

    def _delete(
        self, address: Address, group_ids: Sequence[str], deadline: Deadline
    ) -> dict[str, AdminError | None]:
        request = DeleteGroupsRequest(groups_names=[*group_ids])
        response = self._client.ask(address, request, DeleteGroupsResponse, deadline)
        results: dict[str, AdminError | None] = {
            each.group_id: BrokerError.of(each.error_code) for each in response.results
        }
        return for_each(address, group_ids, results)


def _description(group: DescribedGroup) -> GroupDescription | AdminError:
    """Read one group; before version 6 one that is not there is called dead."""
    code = group.error_code
    if code == ErrorCode.NONE and group.group_state == _DEAD:
        code = ErrorCode.GROUP_ID_NOT_FOUND
    error = BrokerError.of(code, group.error_message)
    if error is not None:
        return error
    members = [_member(each, group.protocol_type) for each in group.members]
    members.sort(key=lambda member: (member.client_id, member.member_id))
    return GroupDescription(
        group.group_id, group.group_state, group.protocol_type, group.protocol_data, members
    )


def _member(member: DescribedGroupMember, protocol_type: str) -> Member:
    assignment = bytes(member.member_assignment)
    return Member(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        assignment,
        partitions_of(assignment) if protocol_type == _CONSUMER else None,
    )
