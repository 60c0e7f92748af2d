"""Groups through the admin client: listed, described, deleted."""

from __future__ import annotations

import struct

import msgspec
import pytest

from korvet.admin.client import AdminClient
from korvet.admin.errors import (
    GroupIdNotFoundError,
)
from korvet.admin.groups import Group, GroupDescription, partitions_of
from korvet.admin.lag import progress_of
from korvet.admin.types import TopicPartition, settled
from korvet.errors import ErrorCode
from korvet.protocol.types import FeatureUpgradeType
from tests.admin.outcomes import code_of
from tests.support.group_consumer import joined, sharing, streaming
from tests.support.in_process import InProcessBroker
from tests.support.processes import wait_until
from tests.support.topic_client import Client


def committed(admin: AdminClient, client: Client, name: str) -> None:
    """Make a topic, and a group of the same name that has committed an offset of it."""
    client.create(name, partitions=2)
    settled(admin.offsets.alter(name, {TopicPartition(name, 0): 0}))


def test_a_group_without_members_is_listed_and_described_as_empty(
    admin: AdminClient, client: Client, name: str
) -> None:
    committed(admin, client, name)
    assert Group(name, "", "Empty", "classic") in [
        Group(each.group_id, each.protocol_type, each.state, each.type.lower())
        for each in admin.groups.list()
    ]
    assert admin.groups.describe([name]) == {name: GroupDescription(name, "Empty", "", "", [])}


def test_groups_are_listed_by_state(admin: AdminClient, client: Client, name: str) -> None:
    committed(admin, client, name)
    assert name in [each.group_id for each in admin.groups.list(states=["Empty"])]
    assert name not in [each.group_id for each in admin.groups.list(states=["Stable"])]


def test_members_are_described_with_what_they_read(
    broker: InProcessBroker, admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    with joined(broker.bootstrap, name, name, instance="desk 1"):
        [described] = settled(admin.groups.describe([name])).values()
        assert (described.state, described.protocol_type, described.protocol) == (
            "Stable",
            "consumer",
            "range",
        )
        [member] = described.members
        assert member.client_id == "reader"
        assert member.instance_id == "desk 1"
        assert "127.0.0.1" in member.client_host
        assert member.partitions == [TopicPartition(name, 0), TopicPartition(name, 1)]


def test_a_group_of_the_consumer_protocol_is_described_as_any_other(
    broker: InProcessBroker, admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    other = f"{name} classic"
    settled(admin.offsets.alter(other, {TopicPartition(name, 0): 0}))
    with joined(broker.bootstrap, name, name, instance="desk 1", protocol="consumer"):
        described = settled(admin.groups.describe([other, name]))
        assert {each: found.type for each, found in described.items()} == {other: "classic", name: "consumer"}
        found = described[name]
        assert (found.protocol_type, found.protocol) == ("consumer", "uniform")
        [member] = found.members
        assert (member.client_id, member.instance_id) == ("reader", "desk 1")
        assert member.partitions == [TopicPartition(name, 0), TopicPartition(name, 1)]
        listed = {each.group_id: each.type for each in admin.groups.list(types=["consumer"])}
        assert listed[name] == "consumer"
        assert other not in listed
        assert code_of(admin.groups.delete([name])[name]) is ErrorCode.NON_EMPTY_GROUP


def test_a_share_group_is_described_as_any_other(admin: AdminClient, client: Client, name: str) -> None:
    client.create(name, partitions=2)
    missing = f"{name} missing"
    with sharing(client, name, name) as member_id:
        described = admin.groups.describe([missing, name])
        assert isinstance(described[missing], GroupIdNotFoundError)
        found = settled({name: described[name]})[name]
        assert (found.type, found.protocol_type, found.protocol, found.state) == (
            *("share", "share"),
            *("simple", "Stable"),
        )
        [member] = found.members
        assert (member.member_id, member.instance_id) == (member_id, None)
        assert member.partitions == [TopicPartition(name, 0), TopicPartition(name, 1)]
        assert [each.type for each in admin.groups.list(types=["share"]) if each.group_id == name] == [
            "share"
        ]
        assert code_of(admin.groups.delete([name])[name]) is ErrorCode.NON_EMPTY_GROUP
        progress = progress_of(admin, [found], {})[name]
        assert [(each.committed, each.lag, each.uncommitted, each.member) for each in progress] == [
            (None, None, 0, None)
        ] * 2

    def is_described() -> bool:
        return isinstance(admin.groups.describe([name])[name], GroupDescription)

    admin.cluster.update_features({"share.version": 0}, FeatureUpgradeType.SAFE_DOWNGRADE)
    try:
        wait_until(lambda: not is_described(), "the cluster has no share groups")
        assert isinstance(admin.groups.describe([name])[name], GroupIdNotFoundError)
    finally:
        admin.cluster.update_features({"share.version": 1})
        wait_until(is_described, "it has them again")
    settled(admin.groups.delete([name]))


def test_a_streams_group_is_described_by_the_partitions_that_its_tasks_read(
    admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    with streaming(client, name, name) as member_id:
        [found] = settled(admin.groups.describe([name])).values()
        assert (found.type, found.protocol_type, found.state) == ("streams", "streams", "Stable")
        [member] = found.members
        assert (member.member_id, member.instance_id) == (member_id, None)
        assert member.partitions == [TopicPartition(name, 0), TopicPartition(name, 1)]
        assert [each.type for each in admin.groups.list(types=["streams"]) if each.group_id == name] == [
            "streams"
        ]
        assert code_of(admin.groups.delete([name])[name]) is ErrorCode.NON_EMPTY_GROUP
        more = msgspec.structs.replace(
            member, partitions=[*(member.partitions or ()), TopicPartition(name, 2)]
        )
        progress = progress_of(admin, [msgspec.structs.replace(found, members=[more])], {})[name]
        assert [(each.partition.partition, each.lag, each.end) for each in progress] == [
            (0, None, 0),
            (1, None, 0),
        ]
    settled(admin.groups.delete([name]))


def test_a_group_with_members_is_not_deleted_and_takes_no_offsets(
    broker: InProcessBroker, admin: AdminClient, client: Client, name: str
) -> None:
    committed(admin, client, name)
    with joined(broker.bootstrap, name, name):
        assert code_of(admin.groups.delete([name])[name]) is ErrorCode.NON_EMPTY_GROUP
        [outcome] = admin.offsets.alter(name, {TopicPartition(name, 0): 0}).values()
        assert code_of(outcome) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_deleted_group_is_gone_with_what_it_committed(
    admin: AdminClient, client: Client, name: str
) -> None:
    committed(admin, client, name)
    outcomes = admin.groups.delete([name, f"{name} is not there"])
    assert outcomes[name] is None
    assert isinstance(outcomes[f"{name} is not there"], GroupIdNotFoundError)
    assert isinstance(admin.groups.describe([name])[name], GroupIdNotFoundError)
    assert admin.offsets.committed(name) == {}


def test_a_group_that_is_not_there_keeps_none_of_the_others_from_being_described(
    admin: AdminClient, client: Client, name: str
) -> None:
    committed(admin, client, name)
    nobody, there, unnamed = admin.groups.describe(["nobody", name, ""]).values()
    assert isinstance(nobody, GroupIdNotFoundError)
    assert isinstance(there, GroupDescription)
    assert code_of(unnamed) in (ErrorCode.INVALID_GROUP_ID, ErrorCode.GROUP_ID_NOT_FOUND)


def assignment(*topics: tuple[bytes, list[int]]) -> bytes:
    """Return an assignment as a consumer's leader writes it."""
    parts = [struct.pack(">hi", 1, len(topics))]
    for topic, partitions in topics:
        parts += [struct.pack(">h", len(topic)), topic]
        parts.append(struct.pack(f">i{len(partitions)}i", len(partitions), *partitions))
    return b"".join(parts)


def test_an_assignment_is_read_with_what_later_versions_add() -> None:
    data = assignment((b"orders", [1, 0]), (b"bills", [2]))
    wanted = [TopicPartition("bills", 2), TopicPartition("orders", 0), TopicPartition("orders", 1)]
    assert partitions_of(data) == partitions_of(data + b"\xff\xff\xff\xffmore") == wanted
    assert partitions_of(b"") == partitions_of(assignment()) == []


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        struct.pack(">hi", -1, 0),
        struct.pack(">hi", 0, -1),
        struct.pack(">hi", 0, 2**31 - 1),
        struct.pack(">hih", 0, 1, -1),
        struct.pack(">hih", 0, 1, 32767) + b"short",
        struct.pack(">hih1si", 0, 1, 1, b"a", 2**31 - 1),
        struct.pack(">hih1si", 0, 1, 1, b"a", -1),
        assignment((b"\xff", [0])),
    ],
)
def test_what_is_no_assignment_is_known_as_none(data: bytes) -> None:
    assert partitions_of(data) is None
