"""ConsumerGroupHeartbeat and ConsumerGroupDescribe by bytes, in both versions and over two workers (KIP-848)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from korvet.errors import ErrorCode
from korvet.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from korvet.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
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
from korvet.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from korvet.protocol.types import FeatureUpgradeType
from tests.handlers.test_group_administration import listed
from tests.support.processes import wait_until
from tests.support.topic_client import Client

VERSIONS = pytest.mark.parametrize("version", [0, 1])


def topic_id(client: Client, topic: str) -> bytes:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    [found] = client.call(request, 12).topics
    return bytes(found.topic_id)


class Member:
    """A member on a connection of its own."""

    def __init__(self, client: Client, group: str, *topics: str, version: int = 1, **fields: Any) -> None:
        self.client, self.group, self.version = client, group, version
        self.fields: dict[str, Any] = {"subscribed_topic_names": list(topics)} | fields
        self.id = str(uuid.uuid4()) if version else ""
        self.epoch = 0

    def send(self, **fields: Any) -> Any:
        given: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
        }
        answer = self.client.call(ConsumerGroupHeartbeatRequest(**given | fields), self.version)
        if answer.error_code == 0:
            self.id, self.epoch = answer.member_id, answer.member_epoch
        return answer

    def join(self, **fields: Any) -> Any:
        self.epoch = 0
        given = {"rebalance_timeout_ms": 60_000, "topic_partitions": [], **self.fields, **fields}
        return self.send(**given)


def assigned(answer: Any) -> dict[bytes, list[int]] | None:
    if answer.assignment is None:
        return None
    return {bytes(each.topic_id): list(each.partitions) for each in answer.assignment.topic_partitions}


def described(client: Client, group: str, version: int = 1, **fields: Any) -> Any:
    request = ConsumerGroupDescribeRequest(group_ids=[group, group], **fields)
    [found] = client.call(request, version).groups
    assert found.group_id == group
    return found


@VERSIONS
def test_two_members_on_two_workers_share_a_topic(
    two_clients: tuple[Client, Client], topic: str, version: int
) -> None:
    at, other = two_clients
    at.create(topic, partitions=4)
    topic_id_ = topic_id(at, topic)
    one, two = Member(at, topic, topic, version=version), Member(other, topic, topic, version=version)
    answer = one.join()
    assert (answer.error_code, answer.error_message, answer.member_epoch) == (0, None, 1)
    assert answer.heartbeat_interval_ms == 5000
    assert answer.member_id == one.id
    assert assigned(answer) == {topic_id_: [0, 1, 2, 3]}
    assert assigned(one.send()) is None
    assert assigned(two.join()) == {}
    revoke = one.send()
    assert (revoke.member_epoch, assigned(revoke)) == (1, {topic_id_: [0, 1]})
    assert described(other, topic).group_state == "Reconciling"
    kept = TopicPartitions(topic_id=topic_id_, partitions=[0, 1])
    assert one.send(topic_partitions=[kept]).member_epoch == 2
    assert assigned(two.send()) == {topic_id_: [2, 3]}
    assert listed(at, topic, types_filter=["consumer"]) == {topic: ("consumer", "Stable", "consumer")}
    assert listed(at, topic, types_filter=["classic"]) == {}
    found = described(at, topic, version)
    assert (found.error_code, found.group_state, found.group_epoch, found.assignment_epoch) == (
        *(0, "Stable"),
        *(2, 2),
    )
    assert found.assignor_name == "uniform"
    members = {each.member_id: each for each in found.members}
    assert members.keys() == {one.id, two.id}
    member = members[two.id]
    assert (member.member_epoch, member.subscribed_topic_names, member.subscribed_topic_regex) == (
        *(2, [topic]),
        None,
    )
    for assignment in (member.assignment, member.target_assignment):
        [part] = assignment.topic_partitions
        assert (bytes(part.topic_id), part.topic_name, part.partitions) == (topic_id_, topic, [2, 3])
    assert member.member_type == (1 if version else -1)
    assert two.send(member_epoch=-1).member_epoch == -1
    assert one.send(member_epoch=-1).error_code == 0
    assert described(at, topic).group_state == "Empty"


def test_version_1_needs_the_clients_own_id(client: Client, topic: str) -> None:
    member = Member(client, topic, topic)
    member.id = ""
    answer = member.join()
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.INVALID_REQUEST,
        "MemberId can't be empty.",
    )


def test_an_error_has_its_message(client: Client, topic: str) -> None:
    member = Member(client, topic, topic)
    member.epoch = 5
    answer = member.send()
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert answer.error_message
    answer = member.join(subscribed_topic_regex="(")
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert member.join(server_assignor="own").error_code == ErrorCode.UNSUPPORTED_ASSIGNOR


def test_what_is_no_group_of_the_protocol_is_not_described_and_the_reverse(
    client: Client, topic: str
) -> None:
    client.create(topic)
    missing = described(client, topic)
    assert (missing.error_code, missing.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {topic} not found.",
    )
    Member(client, topic, topic).join()
    [classic] = client.call(DescribeGroupsRequest(groups=[topic]), 6).groups
    assert (classic.error_code, classic.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {topic} is not a classic group.",
    )
    [classic] = client.call(DescribeGroupsRequest(groups=[topic]), 5).groups
    assert (classic.error_code, classic.group_state) == (0, "Dead")
    assert described(client, topic).authorized_operations == -(2**31)
    assert described(client, topic, include_authorized_operations=True).authorized_operations > 0


@pytest.mark.parametrize("version", [8, 9, 10])
def test_offsets_are_committed_and_fetched_with_the_members_epoch(
    client: Client, topic: str, version: int
) -> None:
    client.create(topic)
    of_topic: Any = {"topic_id": topic_id(client, topic)} if version >= 10 else {"name": topic}
    member = Member(client, topic, topic)
    member.join()

    def commit(epoch: int) -> int:
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=5, committed_metadata=None
        )
        request = OffsetCommitRequest(
            group_id=topic,
            generation_id_or_member_epoch=epoch,
            member_id=member.id,
            topics=[OffsetCommitRequestTopic(**of_topic, partitions=[partition])],
        )
        [committed] = client.call(request, version).topics
        code: int = committed.partitions[0].error_code
        return code

    def fetch(epoch: int, member_id: str | None) -> int:
        asked = OffsetFetchRequestGroup(
            group_id=topic,
            member_id=member_id,
            member_epoch=epoch,
            topics=[OffsetFetchRequestTopics(**of_topic, partition_indexes=[0])],
        )
        [group] = client.call(OffsetFetchRequest(groups=[asked]), version).groups
        if group.error_code:
            code: int = group.error_code
            return code
        assert group.topics[0].partitions[0].committed_offset == 5
        return 0

    if version < 9:
        # Its client cannot know the member's epoch.
        assert commit(1) == commit(0) == ErrorCode.UNSUPPORTED_VERSION
    else:
        assert commit(1) == 0
        assert commit(0) == ErrorCode.STALE_MEMBER_EPOCH
        assert fetch(1, member.id) == fetch(-1, None) == 0
        assert fetch(2, member.id) == ErrorCode.STALE_MEMBER_EPOCH
        assert fetch(1, "nobody") == ErrorCode.UNKNOWN_MEMBER_ID


def _is_refused(act: Callable[[], Any]) -> bool:
    return bool(act().error_code == ErrorCode.UNSUPPORTED_VERSION)


def test_without_the_feature_there_is_no_such_protocol(
    two_clients: tuple[Client, Client], topic: str
) -> None:
    at, other = two_clients
    at.create(topic)

    def level(number: int, kind: FeatureUpgradeType) -> None:
        update = FeatureUpdateKey(feature="group.version", max_version_level=number, upgrade_type=kind)
        assert at.call(UpdateFeaturesRequest(feature_updates=[update]), 2).error_code == 0

    level(0, FeatureUpgradeType.SAFE_DOWNGRADE)
    try:
        for client in (at, other):
            joining = Member(client, topic, topic).join
            wait_until(partial(_is_refused, joining), "it is off")
    finally:
        level(1, FeatureUpgradeType.UPGRADE)
    assert Member(at, topic, topic).join().error_code == 0
