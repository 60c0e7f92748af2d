"""Groups through the admin client: listed, described, deleted."""

from __future__ import annotations

import struct

import msgspec
import pytest

from korvet.admin.client import AdminClient
from korvet.admin.errors import GroupIdNotFoundError
from korvet.admin.groups import GroupDescription, partitions_of
from korvet.admin.lag import progress_of
from korvet.admin.types import TopicPartition, settled
from korvet.errors import ErrorCode
from korvet.protocol.types import FeatureUpgradeType
from tests.admin.outcomes import code_of
from tests.support.group_consumer import joined, sharing, streaming
from tests.support.in_process import InProcessBroker
from tests.support.processes import wait_until
from tests.support.topic_client import Client


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
        assert (found.type, found.protocol_type, found.state) == ("share", "share", "Stable")
        [member] = found.members
        assert (member.member_id, member.instance_id) == (member_id, None)
        assert member.partitions == [TopicPartition(name, 0), TopicPartition(name, 1)]
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


def test_the_progress_of_a_streams_group_is_by_the_partitions_that_its_tasks_read(
    admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    with streaming(client, name, name) as member_id:
        [found] = settled(admin.groups.describe([name])).values()
        [member] = found.members
        assert (found.protocol_type, member.member_id, member.instance_id) == ("streams", member_id, None)
        more = msgspec.structs.replace(
            member, partitions=[*(member.partitions or ()), TopicPartition(name, 2)]
        )
        progress = progress_of(admin, [msgspec.structs.replace(found, members=[more])], {})[name]
        assert [(each.partition.partition, each.lag, each.end) for each in progress] == [
            (0, None, 0),
            (1, None, 0),
        ]
    settled(admin.groups.delete([name]))


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
    ],
)
def test_what_is_no_assignment_is_known_as_none(data: bytes) -> None:
    assert partitions_of(data) is None
