"""Groups through the admin client: listed, described, deleted, with their offsets and lag."""

from __future__ import annotations

import struct

import msgspec
import pytest

from korvet.admin.client import AdminClient
from korvet.admin.errors import BrokerError, GroupIdNotFoundError, UnknownTopicOrPartitionError
from korvet.admin.groups import GroupDescription, partitions_of
from korvet.admin.lag import lag_of, parse_lags, progress_of
from korvet.admin.offsets import EARLIEST, LATEST, CommittedOffset, ShareGroupOffset
from korvet.admin.types import TIME_CODED_FROM, TopicPartition, settled
from korvet.errors import ErrorCode
from korvet.protocol.types import FeatureUpgradeType
from tests.admin.outcomes import code_of
from tests.support.group_consumer import joined, sharing, streaming
from tests.support.in_process import InProcessBroker
from tests.support.processes import wait_until
from tests.support.share_consumer import ShareConsumer
from tests.support.topic_client import Client


def test_a_group_of_the_consumer_protocol_is_described_as_any_other(
    broker: InProcessBroker, admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    other = f"{name} classic"
    settled(admin.offsets.alter(other, {TopicPartition(name, 0): 0}))
    with joined(broker.bootstrap, name, name, instance="desk 1", protocol="consumer"):
        described = settled(admin.groups.describe([other, name]))
        assert {item: result.type for item, result in described.items()} == {
            other: "classic",
            name: "consumer",
        }
        result = described[name]
        assert (result.protocol_type, result.protocol) == ("consumer", "uniform")
        [member] = result.members
        assert (member.client_id, member.instance_id) == ("reader", "desk 1")
        assert member.partitions == [TopicPartition(name, 0), TopicPartition(name, 1)]
        listed = {item.group_id: item.type for item in admin.groups.list(types=["consumer"])}
        assert listed[name] == "consumer"
        assert other not in listed
        assert code_of(admin.groups.delete([name])[name]) is ErrorCode.NON_EMPTY_GROUP


def test_a_share_group_is_described_as_any_other(admin: AdminClient, client: Client, name: str) -> None:
    client.create(name, partitions=2)
    missing = f"{name} missing"
    with sharing(client, name, name) as member_id:
        described = admin.groups.describe([missing, name])
        assert isinstance(described[missing], GroupIdNotFoundError)
        result = settled({name: described[name]})[name]
        assert (result.type, result.protocol_type, result.state) == ("share", "share", "Stable")
        [member] = result.members
        assert (member.member_id, member.instance_id) == (member_id, None)
        assert member.partitions == [TopicPartition(name, 0), TopicPartition(name, 1)]
        progress = progress_of(admin, [result], {})[name]
        assert [
            (partition.committed, partition.lag, partition.uncommitted, partition.member)
            for partition in progress
        ] == [(None, None, 0, None)] * 2

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
        [result] = settled(admin.groups.describe([name])).values()
        [member] = result.members
        assert (result.protocol_type, member.member_id, member.instance_id) == ("streams", member_id, None)
        more = msgspec.structs.replace(
            member, partitions=[*(member.partitions or ()), TopicPartition(name, 2)]
        )
        progress = progress_of(admin, [msgspec.structs.replace(result, members=[more])], {})[name]
        assert [(partition.partition.partition, partition.lag, partition.end) for partition in progress] == [
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


def test_committed_offsets_come_back_with_epoch_and_metadata(
    admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=3)
    zero, one, two = (TopicPartition(name, index) for index in range(3))
    assert admin.offsets.committed(name) == {}
    noted = CommittedOffset(7, leader_epoch=0, metadata="by hand")
    assert admin.offsets.alter(name, {zero: 5, two: noted}) == {zero: None, two: None}
    assert admin.offsets.committed(name) == {zero: CommittedOffset(5), two: noted}
    assert admin.offsets.committed(name, [one, two]) == {two: noted}


def test_what_cannot_be_committed_keeps_nothing_else_from_being(
    admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    zero, one, two = (TopicPartition(name, index) for index in range(3))
    outcomes = admin.offsets.alter(name, {zero: 4, one: CommittedOffset(1, metadata="x" * 5000), two: 4})
    assert outcomes[zero] is None
    assert code_of(outcomes[one]) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert isinstance(outcomes[two], UnknownTopicOrPartitionError)
    with pytest.raises(BrokerError, match="OFFSET_METADATA_TOO_LARGE"):
        settled(outcomes)
    assert admin.offsets.committed(name) == {zero: CommittedOffset(4)}


def test_share_groups_are_where_they_have_begun(admin: AdminClient, client: Client, name: str) -> None:
    topic_id = client.create(name, partitions=3)
    zero, one = TopicPartition(name, 0), TopicPartition(name, 1)
    consumer = ShareConsumer(client, name, name).on(topic_id, 0, 2)
    assert consumer.poll() == []
    start = client.append(name, b"1", b"2", b"3")
    consumer.accept(consumer.poll()[:1])
    nobody = f"{name} nobody"
    result = settled(admin.offsets.of_share_groups({name: None, nobody: None}))
    assert result[nobody] == {}
    # Nothing of the third partition, where it has begun too, was acknowledged.
    assert result[name] == {zero: ShareGroupOffset(start + 1, client.leader_epoch(name), 2)}
    assert settled(admin.offsets.of_share_groups({name: [zero, one], nobody: []})) == {
        name: {zero: result[name][zero]},
        nobody: {},
    }


def test_missing_partitions_do_not_hide_the_others(admin: AdminClient, topic: str) -> None:
    places = [TopicPartition(topic, 0), TopicPartition(topic, 9), TopicPartition(f"{topic}-not", 0)]
    there, *others = admin.offsets.at(dict.fromkeys(places, LATEST)).values()
    assert not isinstance(there, Exception)
    for outcome in others:
        assert isinstance(outcome, UnknownTopicOrPartitionError)
        assert not outcome.retriable


def test_asking_for_a_topic_does_not_make_it(admin: AdminClient, name: str) -> None:
    for _ in range(2):
        topology = admin.topology([name])
        assert topology.partitions == {}
        assert isinstance(topology.failed[name], BrokerError)


def test_what_was_committed_can_be_deleted_by_partition(
    broker: InProcessBroker, admin: AdminClient, client: Client, name: str
) -> None:
    client.create(name, partitions=2)
    zero, one = (TopicPartition(name, index) for index in range(2))
    settled(admin.offsets.alter(name, {zero: 1, one: 2}))
    assert admin.offsets.delete(name, [zero]) == {zero: None}
    assert admin.offsets.committed(name) == {one: CommittedOffset(2)}
    with joined(broker.bootstrap, name, name):
        assert code_of(admin.offsets.delete(name, [one])[one]) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert isinstance(admin.offsets.delete(f"{name} not", [one])[one], GroupIdNotFoundError)
    assert admin.offsets.committed(name) == {one: CommittedOffset(2)}


@pytest.mark.parametrize(
    ("committed", "start", "end", "lag"),
    [(0, 0, 0, 0), (2, 0, 5, 3), (5, 0, 5, 0), (0, 4, 5, 1), (9, 0, 5, 0), (0, 0, TIME_CODED_FROM, None)],
)
def test_lag_is_what_is_left_to_read(committed: int, start: int, end: int, lag: int | None) -> None:
    assert lag_of(committed, start, end) == lag


@pytest.mark.parametrize("bits", [8, 10, 12])
def test_a_log_with_offsets_of_times_is_known_by_its_end(
    admin: AdminClient, client: Client, name: str, bits: int
) -> None:
    client.create(name, storage_format="record", offset_sequence_bits=str(bits))
    place = TopicPartition(name, 0)
    first = client.append(name, *[b"value"] * 3)
    start = settled(admin.offsets.at({place: EARLIEST}))[place].offset
    end = settled(admin.offsets.at({place: LATEST}))[place].offset
    assert (start, end) == (first, first + 3)
    assert lag_of(0, start, end) is lag_of(first + 1, start, end) is None
    assert lag_of(end, start, end) == 0


def test_figures_are_read_with_any_name_and_sums_are_passed_over() -> None:
    page = """# HELP korvet_consumer_group_lag_records Records
# TYPE korvet_consumer_group_lag_records gauge
korvet_consumer_group_lag_records{group="a \\"b\\"\\\\\\n},x=1",partition="3",topic="orders"} 7.0
korvet_consumer_group_lag_records{group="a",partition="",topic="orders"} 9.0
korvet_consumer_group_lag_records{group="a",partition="0",topic="orders"} NaN
korvet_consumer_group_lag_records{group="a",partition="1",topic="orders"} +Inf
korvet_consumer_group_lag_records{group="big",partition="0",topic="orders"} 1.5e+09
korvet_log_records{partition="0",topic="orders"} 1.0
korvet_consumer_group_lag_seconds{group="big",partition="0",topic="orders"} 3600.25
korvet_consumer_group_lag_seconds{group="big",partition="1",topic="orders"} NaN
"""
    lags = parse_lags(page)
    assert lags.records == {
        ('a "b"\\\n},x=1', TopicPartition("orders", 3)): 7,
        ("big", TopicPartition("orders", 0)): 1_500_000_000,
    }
    assert lags.seconds == {("big", TopicPartition("orders", 0)): 3600.25}
