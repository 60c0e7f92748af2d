"""ShareGroupHeartbeat and ShareGroupDescribe by bytes, and what other APIs say of a share group (KIP-932)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from korvet.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from korvet.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from korvet.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from korvet.protocol.types import CoordinatorType, FeatureUpgradeType
from korvet.share.store import SharePartitions
from korvet.share.types import Begin
from tests.handlers.groups import Member as ClassicMember
from tests.handlers.test_consumer_group import Member as Consumer
from tests.handlers.test_consumer_group import assigned, topic_id
from tests.handlers.test_group_administration import forget, listed
from tests.share.support import POLICY
from tests.support.domain import domain
from tests.support.processes import wait_until
from tests.support.share_consumer import ShareConsumer
from tests.support.topic_client import Client


class Member:
    """A member on a connection of its own."""

    def __init__(self, client: Client, group: str, *topics: str) -> None:
        self.client, self.group, self.topics = client, group, topics
        self.id, self.epoch = str(uuid.uuid4()), 0

    def send(self, **fields: Any) -> Any:
        given: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
        }
        answer = self.client.call(ShareGroupHeartbeatRequest(**given | fields), 1)
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
        return answer

    def join(self, **fields: Any) -> Any:
        self.epoch = 0
        return self.send(**{"subscribed_topic_names": list(self.topics)} | fields)


def described(client: Client, group: str, **fields: Any) -> Any:
    request = ShareGroupDescribeRequest(group_ids=[group, group], **fields)
    [found] = client.call(request, 1).groups
    assert found.group_id == group
    return found


def test_three_members_on_two_workers_share_two_partitions(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    at, other = two_clients
    at.create(topic, partitions=2)
    id_ = topic_id(at, topic)
    one, two, three = Member(at, topic, topic), Member(other, topic, topic), Member(other, topic, topic)
    answer = one.join(rack_id="r1")
    assert (answer.error_code, answer.error_message, answer.member_id) == (0, None, one.id)
    assert (answer.member_epoch, answer.heartbeat_interval_ms) == (1, 5000)
    assert assigned(answer) == {id_: [0, 1]}
    assert assigned(one.send()) is None
    assert len((assigned(two.join()) or {})[id_]) == 1, "at once, though the other one has it still"
    three.join()
    have = {member.id: assigned(member.send(subscribed_topic_names=[topic])) for member in (one, two, three)}
    assert {each.epoch for each in (one, two, three)} == {3}
    assert listed(at, topic, types_filter=["share"]) == {topic: ("share", "Stable", "share")}
    assert listed(at, topic, types_filter=["consumer"]) == listed(at, topic, types_filter=["classic"]) == {}
    found = described(at, topic)
    assert (found.error_code, found.error_message, found.group_state) == (0, None, "Stable")
    assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (3, 3, "simple")
    members = {each.member_id: each for each in found.members}
    parts = {name: each.assignment.topic_partitions for name, each in members.items()}
    assert {
        name: {bytes(each.topic_id): each.partitions for each in own} for name, own in parts.items()
    } == have
    assert {each.topic_name for own in parts.values() for each in own} == {topic}
    member = members[one.id]
    assert (member.rack_id, member.member_epoch, member.subscribed_topic_names) == ("r1", 3, [topic])
    assert (member.client_id, member.client_host) == ("wire", "/127.0.0.1")
    assert [each.send(member_epoch=-1).member_epoch for each in (one, two, three)] == [-1, -1, -1]
    assert (described(other, topic).group_state, described(other, topic).members) == ("Empty", [])


def test_an_error_has_its_message(client: Client, topic: str) -> None:
    member = Member(client, topic, topic)
    client.create(topic)
    answer = member.join(member_id="")
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.INVALID_REQUEST,
        "MemberId can't be empty.",
    )
    answer = member.send(member_epoch=5)
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert answer.error_message == f"Share group {topic} not found."
    member.join()
    assert member.send(member_id="other", member_epoch=1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert member.send(member_epoch=9).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_what_is_no_share_group_is_not_described_and_the_reverse(client: Client, topic: str) -> None:
    client.create(topic)
    found = described(client, topic)
    assert (found.error_code, found.error_message) == (
        *(ErrorCode.GROUP_ID_NOT_FOUND,),
        f"Group {topic} not found.",
    )
    consumer = f"{topic}-consumer"
    Consumer(client, consumer, topic).join()
    found = described(client, consumer)
    assert (found.error_code, found.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {consumer} is not a share group.",
    )
    Member(client, topic, topic).join()
    [found] = client.call(ConsumerGroupDescribeRequest(group_ids=[topic]), 1).groups
    assert (found.error_code, found.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {topic} is not a consumer group.",
    )
    [found] = client.call(DescribeGroupsRequest(groups=[topic]), 6).groups
    assert (found.error_code, found.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {topic} is not a classic group.",
    )
    [found] = client.call(DescribeGroupsRequest(groups=[topic]), 5).groups
    assert (found.error_code, found.group_state) == (0, "Dead")
    assert described(client, topic).authorized_operations == -(2**31)
    assert described(client, topic, include_authorized_operations=True).authorized_operations > 0


@pytest.mark.parametrize("version", [2, 8, 9, 10])
def test_other_clients_find_no_group_of_theirs(client: Client, topic: str, version: int) -> None:
    client.create(topic)
    member = Member(client, topic, topic)
    member.join()
    of_topic: Any = {"topic_id": topic_id(client, topic)} if version >= 10 else {"name": topic}

    def commit(epoch: int, member_id: str) -> int:
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=5, committed_metadata=None
        )
        request = OffsetCommitRequest(
            group_id=topic,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=[OffsetCommitRequestTopic(**of_topic, partitions=[partition])],
        )
        [committed] = client.call(request, version).topics
        code: int = committed.partitions[0].error_code
        return code

    def fetch(epoch: int, member_id: str | None) -> int:
        asked = OffsetFetchRequestTopics(**of_topic, partition_indexes=[0])
        if version < 8:
            [found] = client.call(OffsetFetchRequest(group_id=topic, topics=[asked]), version).topics
        else:
            group = OffsetFetchRequestGroup(
                group_id=topic, member_id=member_id, member_epoch=epoch, topics=[asked]
            )
            [answer] = client.call(OffsetFetchRequest(groups=[group]), version).groups
            assert answer.error_code == 0
            [found] = answer.topics
        offset: int = found.partitions[0].committed_offset
        return offset

    for _ in range(2):
        for epoch, member_id in ((1, member.id), (-1, ""), (7, "nobody")):
            assert commit(epoch, member_id) == ErrorCode.GROUP_ID_NOT_FOUND
        assert fetch(-1, None) == fetch(1, member.id) == fetch(7, "nobody") == -1
        assert forget(client, topic, topic, 0)[0] == ErrorCode.GROUP_ID_NOT_FOUND
        assert Consumer(client, topic, topic).join().error_code == ErrorCode.GROUP_ID_NOT_FOUND
        classic = ClassicMember(client, topic)
        classic.id, classic.generation = member.id, 1
        assert classic.join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert classic.sync().error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert classic.heartbeat() == classic.leave() == ErrorCode.UNKNOWN_MEMBER_ID
        member.send(member_epoch=-1)


def test_a_group_is_deleted_once_it_is_empty_with_what_it_has_of_partitions(
    client: Client, topic: str, broker_redis: str
) -> None:
    client.create(topic, partitions=2)
    member = Member(client, topic, topic)
    member.join()
    with domain(broker_redis) as made:
        parts, partitions = SharePartitions(made.redis), made.topics.get(topic).partitions
        assert None not in parts.begin(
            [Begin(each, topic, 0, redis_group=True, policy=POLICY) for each in partitions]
        )
        assert delete(client, topic) == ErrorCode.NON_EMPTY_GROUP
        assert None not in parts.offsets(topic, partitions), "nothing of a group with members is deleted"
        member.send(member_epoch=-1)
        assert listed(client, topic) == {topic: ("share", "Empty", "share")}
        assert delete(client, topic) == 0
        assert parts.offsets(topic, partitions) == [None, None]
    assert delete(client, topic) == ErrorCode.GROUP_ID_NOT_FOUND
    assert listed(client, topic) == {}
    assert member.join().member_epoch == 1


def delete(client: Client, group: str) -> int:
    [result] = client.call(DeleteGroupsRequest(groups_names=[group]), 2).results
    code: int = result.error_code
    return code


def test_the_coordinator_of_a_share_group_is_that_of_a_group(client: Client, topic: str) -> None:
    def find(kind: CoordinatorType, key: str) -> Any:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        [found] = client.call(request, 6).coordinators
        return found

    assert find(CoordinatorType.GROUP, topic).error_code == 0
    assert find(CoordinatorType.SHARE, f"{topic}:{uuid.uuid4()}:0").error_code == ErrorCode.INVALID_REQUEST


def _is_refused(join: Callable[[], Any]) -> bool:
    return bool(join().error_code == ErrorCode.UNSUPPORTED_VERSION)


def test_without_the_feature_there_are_no_share_groups(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    at, other = two_clients
    at.create(topic)

    def level(number: int, kind: FeatureUpgradeType) -> None:
        update = FeatureUpdateKey(feature="share.version", max_version_level=number, upgrade_type=kind)
        assert at.call(UpdateFeaturesRequest(feature_updates=[update]), 2).error_code == 0

    level(0, FeatureUpgradeType.SAFE_DOWNGRADE)
    try:
        for client in (at, other):
            joining = Member(client, topic, topic).join
            wait_until(partial(_is_refused, joining), "it is off")
            [found] = client.call(ShareGroupDescribeRequest(group_ids=[topic]), 1).groups
            assert (found.group_id, found.error_code) == (topic, ErrorCode.UNSUPPORTED_VERSION)
            consumer = ShareConsumer(client, topic, joins=False)
            assert consumer.send().error_code == ErrorCode.UNSUPPORTED_VERSION
            assert consumer.acknowledge({}).error_code == ErrorCode.UNSUPPORTED_VERSION
    finally:
        level(1, FeatureUpgradeType.UPGRADE)
    assert Member(at, topic, topic).join().error_code == 0
