"""Requests about groups: list, describe and delete them. Reached as `AdminClient.groups`.

Brokers pass on the assignments of members of classic groups without reading them, so a client can put any bytes there.
They are read here for the protocol type `consumer`. Groups of the consumer protocol (KIP-848), share groups (KIP-932)
and streams groups (KIP-1071) have requests of their own, the latter two since Kafka 4.1 and 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from korvet.admin.errors import (
    AdminError,
    GroupIdNotFoundError,
    UnsupportedError,
    error_in,
)
from korvet.admin.routing import Attempt, Requests, Route
from korvet.admin.types import Outcomes, TopicPartition
from korvet.errors import ErrorCode, ProtocolError
from korvet.protocol.compile import decode
from korvet.protocol.messages import (
    consumer_group_describe,
    delete_groups,
    describe_groups,
    list_groups,
    share_group_describe,
    streams_group_describe,
)
from korvet.protocol.schema import Api, Message, Part
from korvet.protocol.wire import int16, int32, string

EMPTY = "Empty"
"""The state of a group without members that has committed offsets."""

CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
"""The types of groups: of the classic protocol, of the consumer protocol, share groups, and streams groups."""


_OF_ANOTHER_TYPE = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
"""The answers of a request about one type for a group of another type, and if the cluster does not have the type."""


class AssignedTopic(Part):
    """The partitions of a topic that a member reads."""

    topic: string
    partitions: list[int32]


class ConsumerAssignment(Message):
    """The assignment of a member of the protocol type `consumer`; later versions append fields."""

    api = Api(key=-1, versions=(0, 0))

    version: int16
    assigned_partitions: list[AssignedTopic]


class Group(msgspec.Struct, frozen=True):
    """A group in a list."""

    group_id: str
    protocol_type: str
    state: str
    type: str


class Member(msgspec.Struct, frozen=True):
    """A member of a group; only a static one has an `instance_id`.

    `partitions` are None if the group is not of consumers, or `assignment` cannot be read. In a group of the consumer
    protocol, and in a share group, there are only partitions.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: bytes
    partitions: list[TopicPartition] | None


class GroupDescription(msgspec.Struct, frozen=True):
    """A group. `protocol` is its assignor, empty until its members have chosen one. `type` as in a list."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: list[Member]
    type: str = CLASSIC


class Groups(Requests):
    """The requests about groups."""

    def list(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[Group]:
        """Return the groups of all brokers, by name; only those in one of `states` and of one of `types`, if given.

        Raises AdminError.

            >>> empty = admin.groups.list(states=["Empty"])
        """
        request = list_groups.ListGroupsRequest(states_filter=[*states], types_filter=[*types])
        # A broker of Kafka lists the groups that it coordinates, one of Korvet lists all.
        groups = {
            group.group_id: Group(group.group_id, group.protocol_type, group.group_state, group.group_type)
            for response in self._client.call_all(request, list_groups.ListGroupsResponse)
            for group in response.groups
        }
        return [group for _, group in sorted(groups.items())]

    def describe(self, group_ids: Iterable[str]) -> Outcomes[str, GroupDescription]:
        """Return each group or an error: GroupIdNotFoundError if there is none.

        >>> described = admin.groups.describe(["billing", "shipping"])
        """

        def ask(attempt: Attempt, keys: Sequence[str]) -> Outcomes[str, GroupDescription]:
            outcomes: Outcomes[str, GroupDescription] = {}
            left = [*keys]
            for kind in (CLASSIC, CONSUMER, SHARE, STREAMS):
                if not left:
                    break
                for group in _described(attempt, kind, left):
                    if kind == CLASSIC or group.error_code not in _OF_ANOTHER_TYPE:
                        outcomes[group.group_id] = _description(kind, group)
                left = [key for key in left if isinstance(outcomes.get(key), GroupIdNotFoundError)]
            return outcomes

        return self._client.for_each(group_ids, Route.GROUP, ask)

    def delete(self, group_ids: Iterable[str]) -> Outcomes[str, None]:
        """Delete groups with all their committed offsets. Returns None or an error for each.

        Errors are GroupIdNotFoundError, and NON_EMPTY_GROUP if the group has members.

            >>> admin.groups.delete(["billing"])
            {'billing': None}
        """

        def ask(attempt: Attempt, keys: Sequence[str]) -> Outcomes[str, None]:
            request = delete_groups.DeleteGroupsRequest(groups_names=[*keys])
            response = attempt.send(request, delete_groups.DeleteGroupsResponse)
            return {result.group_id: error_in(result.error_code) for result in response.results}

        return self._client.for_each(group_ids, Route.GROUP, ask)


_Assigned = (
    consumer_group_describe.DescribedGroup
    | share_group_describe.DescribedGroup
    | streams_group_describe.DescribedGroup
)


def _described(
    attempt: Attempt, kind: str, ids: list[str]
) -> Sequence[describe_groups.DescribedGroup | _Assigned]:
    """Ask about groups by the request of one type; nothing is known if the broker does not serve it."""
    try:
        if kind == CONSUMER:
            consumers = consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=ids)
            return attempt.send(consumers, consumer_group_describe.ConsumerGroupDescribeResponse).groups
        if kind == SHARE:
            shares = share_group_describe.ShareGroupDescribeRequest(group_ids=ids)
            return attempt.send(shares, share_group_describe.ShareGroupDescribeResponse).groups
        if kind == STREAMS:
            streams = streams_group_describe.StreamsGroupDescribeRequest(group_ids=ids)
            return attempt.send(streams, streams_group_describe.StreamsGroupDescribeResponse).groups
    except UnsupportedError:
        return []
    request = describe_groups.DescribeGroupsRequest(groups=ids)
    return attempt.send(request, describe_groups.DescribeGroupsResponse).groups


def _description(
    kind: str, group: describe_groups.DescribedGroup | _Assigned
) -> GroupDescription | AdminError:
    error = error_in(group.error_code, group.error_message)
    if error is not None:
        return error
    if isinstance(group, describe_groups.DescribedGroup):
        protocol_type, protocol = group.protocol_type, group.protocol_data
        members = [
            Member(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                bytes(member.member_assignment),
                partitions_of(bytes(member.member_assignment)) if protocol_type == CONSUMER else None,
            )
            for member in group.members
        ]
    else:
        protocol_type, protocol = kind, getattr(group, "assignor_name", "")
        members = [
            Member(
                member.member_id,
                getattr(member, "instance_id", None),
                member.client_id,
                member.client_host,
                b"",
                sorted(_assigned_partitions(group, member)),
            )
            for member in group.members
        ]
    members.sort(key=lambda member: (member.client_id, member.member_id))
    return GroupDescription(group.group_id, group.group_state, protocol_type, protocol, members, kind)


def _assigned_partitions(
    group: _Assigned,
    member: consumer_group_describe.Member | share_group_describe.Member | streams_group_describe.Member,
) -> Iterator[TopicPartition]:
    """Yield the partitions of a member; of a streams group those that its active tasks read.

    If a subtopology reads topics of several sizes there may be partitions among them that do not exist.
    """
    if not isinstance(member, streams_group_describe.Member):
        for topic in member.assignment.topic_partitions:
            for index in topic.partitions:
                yield TopicPartition(topic.topic_name, index)
        return
    topology = group.topology if isinstance(group, streams_group_describe.DescribedGroup) else None
    inputs = {
        part.subtopology_id: [
            *part.source_topics,
            *(topic.name for topic in part.repartition_source_topics),
        ]
        for part in (topology and topology.subtopologies) or ()
    }
    for tasks in member.assignment.active_tasks:
        for name in inputs.get(tasks.subtopology_id, ()):
            for index in tasks.partitions:
                yield TopicPartition(name, index)


def partitions_of(assignment: bytes) -> list[TopicPartition] | None:
    """Return the partitions of an assignment, sorted; None if the bytes are not an assignment of a consumer.

    Some clients send no bytes at all for a member without partitions: that is the empty assignment.
    """
    if not assignment:
        return []
    try:
        decoded = decode(ConsumerAssignment, 0, assignment)
    except ProtocolError:
        return None
    if decoded.version < 0:
        return None
    return sorted(
        TopicPartition(topic.topic, index)
        for topic in decoded.assigned_partitions
        for index in topic.partitions
    )
