"""Requests about groups: list, describe and delete them. Reached as `AdminClient.groups`.

Brokers pass on the assignments of members of classic groups without reading them, so a client can put any bytes there.
They are read here for the protocol type `consumer`. Groups of the consumer protocol (KIP-848), share groups (KIP-932)
and streams groups (KIP-1071) have requests of their own, which brokers since Kafka 4.0, 4.1 and 4.2 serve: those that
are no classic groups are asked for by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from korvet.admin.connection import Deadline
from korvet.admin.errors import AdminError, BrokerError, GroupIdNotFoundError, error_in, raise_error_in
from korvet.admin.routing import Attempt, ClusterClient
from korvet.admin.types import Outcomes, TopicPartition, group_name_error
from korvet.errors import ErrorCode, ProtocolError
from korvet.protocol.compile import decode
from korvet.protocol.messages import (
    consumer_group_describe,
    describe_groups,
    share_group_describe,
    streams_group_describe,
)
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from korvet.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from korvet.protocol.schema import Api, Message, Part
from korvet.protocol.wire import int16, int32, string

EMPTY = "Empty"
"""The state of a group without members that has committed offsets."""

CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
"""The types of groups: of the classic protocol, of the consumer protocol, share groups, and streams groups."""

_DEAD = "Dead"


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
    """A group in a list. State and type are empty if the broker is too old to have them."""

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


class Groups:
    """The requests about groups."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def list(self, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[Group]:
        """Return the groups of all brokers, by name; only those in one of `states` and of one of `types`, if given.

        Raises AdminError: UnsupportedError if a broker is too old for a filter (states since Kafka 2.6).

            >>> empty = admin.groups.list(states=["Empty"])
        """
        request = ListGroupsRequest(states_filter=[*states], types_filter=[*types])

        def attempt(deadline: Deadline) -> dict[str, Group]:
            # A broker of Kafka lists the groups that it coordinates, one of Korvet lists all.
            found: dict[str, Group] = {}
            for address in self._client.topology_now((), deadline).brokers.values():
                response = Attempt(self._client, address, deadline).send(request, ListGroupsResponse)
                raise_error_in(response.error_code)
                for each in response.groups:
                    found[each.group_id] = Group(
                        each.group_id, each.protocol_type, each.group_state, each.group_type
                    )
            return found

        return [each for _, each in sorted(self._client.retry(attempt).items())]

    def describe(self, group_ids: Iterable[str]) -> Outcomes[str, GroupDescription]:
        """Return each group or an error: GroupIdNotFoundError if there is none.

        >>> described = admin.groups.describe(["billing", "shipping"])
        """

        def ask(attempt: Attempt, keys: Sequence[str]) -> Outcomes[str, GroupDescription]:
            request = describe_groups.DescribeGroupsRequest(groups=[*keys])
            response = attempt.send(request, describe_groups.DescribeGroupsResponse)
            found = {each.group_id: _description(each) for each in response.groups}
            consumers = _not_found(found)
            if consumers and attempt.serves(consumer_group_describe.ConsumerGroupDescribeRequest):
                asked = consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=consumers)
                answer = attempt.send(asked, consumer_group_describe.ConsumerGroupDescribeResponse)
                found |= _known(
                    {group.group_id: _assigned_description(group, CONSUMER) for group in answer.groups}
                )
            shares = _not_found(found)
            if shares and attempt.serves(share_group_describe.ShareGroupDescribeRequest):
                asked_of = share_group_describe.ShareGroupDescribeRequest(group_ids=shares)
                answered = attempt.send(asked_of, share_group_describe.ShareGroupDescribeResponse)
                found |= _known(
                    {group.group_id: _assigned_description(group, SHARE) for group in answered.groups}
                )
            streams = _not_found(found)
            if streams and attempt.serves(streams_group_describe.StreamsGroupDescribeRequest):
                asked_last = streams_group_describe.StreamsGroupDescribeRequest(group_ids=streams)
                last = attempt.send(asked_last, streams_group_describe.StreamsGroupDescribeResponse)
                found |= _known({group.group_id: _streams_description(group) for group in last.groups})
            return found

        return self._client.for_each(group_ids, self._client.to_coordinators, ask, error_of=group_name_error)

    def delete(self, group_ids: Iterable[str]) -> Outcomes[str, None]:
        """Delete groups with all their committed offsets. Returns None or an error for each.

        Errors are GroupIdNotFoundError, and NON_EMPTY_GROUP if the group has members.

            >>> admin.groups.delete(["billing"])
            {'billing': None}
        """

        def ask(attempt: Attempt, keys: Sequence[str]) -> Outcomes[str, None]:
            response = attempt.send(DeleteGroupsRequest(groups_names=[*keys]), DeleteGroupsResponse)
            return {each.group_id: error_in(each.error_code) for each in response.results}

        return self._client.for_each(group_ids, self._client.to_coordinators, ask, error_of=group_name_error)


def _description(group: describe_groups.DescribedGroup) -> GroupDescription | AdminError:
    code = group.error_code
    # Before version 6 an unknown group is described as dead.
    if code == ErrorCode.NONE and group.group_state == _DEAD:
        code = ErrorCode.GROUP_ID_NOT_FOUND
    error = error_in(code, group.error_message)
    if error is not None:
        return error
    members = [
        Member(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            bytes(each.member_assignment),
            partitions_of(bytes(each.member_assignment)) if group.protocol_type == CONSUMER else None,
        )
        for each in group.members
    ]
    members.sort(key=lambda member: (member.client_id, member.member_id))
    return GroupDescription(
        group.group_id, group.group_state, group.protocol_type, group.protocol_data, members
    )


def _known(outcomes: Outcomes[str, GroupDescription]) -> Outcomes[str, GroupDescription]:
    """Leave out the groups of which a request about one type knows nothing, or of a type that the cluster has not."""
    return {
        group: outcome
        for group, outcome in outcomes.items()
        if not isinstance(outcome, GroupIdNotFoundError)
        and not (isinstance(outcome, BrokerError) and outcome.code is ErrorCode.UNSUPPORTED_VERSION)
    }


def _not_found(outcomes: Outcomes[str, GroupDescription]) -> list[str]:
    return [each for each, outcome in outcomes.items() if isinstance(outcome, GroupIdNotFoundError)]


def _assigned_description(
    group: consumer_group_describe.DescribedGroup | share_group_describe.DescribedGroup, kind: str
) -> GroupDescription | AdminError:
    error = error_in(group.error_code, group.error_message)
    if error is not None:
        return error
    members = [
        Member(
            each.member_id,
            each.instance_id if isinstance(each, consumer_group_describe.Member) else None,
            each.client_id,
            each.client_host,
            b"",
            sorted(
                TopicPartition(topic.topic_name, index)
                for topic in each.assignment.topic_partitions
                for index in topic.partitions
            ),
        )
        for each in group.members
    ]
    members.sort(key=lambda member: (member.client_id, member.member_id))
    return GroupDescription(group.group_id, group.group_state, kind, group.assignor_name, members, kind)


def _streams_description(group: streams_group_describe.DescribedGroup) -> GroupDescription | AdminError:
    """Members have the partitions that their active tasks read.

    If a subtopology reads topics of several sizes there may be partitions among them that do not exist.
    """
    error = error_in(group.error_code, group.error_message)
    if error is not None:
        return error
    subtopologies = (group.topology.subtopologies if group.topology else None) or ()
    inputs = {
        each.subtopology_id: (*each.source_topics, *(topic.name for topic in each.repartition_source_topics))
        for each in subtopologies
    }
    members = [
        Member(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            b"",
            sorted(
                TopicPartition(topic, index)
                for tasks in each.assignment.active_tasks
                for topic in inputs.get(tasks.subtopology_id, ())
                for index in tasks.partitions
            ),
        )
        for each in group.members
    ]
    members.sort(key=lambda member: (member.client_id, member.member_id))
    return GroupDescription(group.group_id, group.group_state, STREAMS, "", members, STREAMS)


def partitions_of(assignment: bytes) -> list[TopicPartition] | None:
    """Return the partitions of an assignment, sorted; None if the bytes are not an assignment of a consumer.

    Some clients send no bytes at all for a member without partitions: that is the empty assignment.
    """
    if not assignment:
        return []
    try:
        found = decode(ConsumerAssignment, 0, assignment)
    except ProtocolError:
        return None
    if found.version < 0:
        return None
    return sorted(
        TopicPartition(each.topic, index) for each in found.assigned_partitions for index in each.partitions
    )
